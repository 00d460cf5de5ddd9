"""Fresh virtual environments that need no network: their dependencies are links to those of the tests' own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "CHANGELOG.md",
    "CMakeLists.txt",
    "LICENSE",
    "README.md",
    "device_profiles",
    "edge_vl",
    "engines",
    "kernels",
    "pyproject.toml",
)
"""What an installation is made from."""


@dataclass(frozen=True, slots=True)
class FreshEnvironment:
    """A virtual environment in which nothing of ours is installed yet.

    Attributes:
        folder: of the environment.
        dependencies: where it finds what we depend on.
    """

    folder: Path
    dependencies: Path

    @staticmethod
    def make(folder: Path) -> FreshEnvironment:
        """Make it, with every distribution of the tests' environment but ours."""
        venv.create(folder, with_pip=False, symlinks=True)
        dependencies = folder / "dependencies"
        dependencies.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if entry.suffix != ".pth" and "edge_vl" not in entry.name and entry.name != "__pycache__":
                (dependencies / entry.name).symlink_to(entry)
        environment = FreshEnvironment(folder, dependencies)
        site_packages = Path(environment.path_of("purelib"))
        (site_packages / "dependencies.pth").write_text(f"{dependencies}\n")
        return environment

    @property
    def scripts(self) -> Path:
        """Where its interpreter and console scripts are."""
        return self.folder / "bin"

    def path_of(self, kind: str) -> str:
        """Return one of its installation paths, by sysconfig's name."""
        return sysconfig.get_path(kind, vars={"base": str(self.folder), "platbase": str(self.folder)})

    def install(self, *what: str, environ: dict[str, str] | None = None) -> None:
        """Install with the tests' own pip, from files only."""
        target = ["--python", str(self.scripts / "python")]
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
        run([sys.executable, "-m", "pip", *target, "install", *options, *what], environ=environ)

    def evaluate(self, code: str) -> Any:
        """Run code that prints one JSON value, away from any checkout, and return that value."""
        return json.loads(run([str(self.scripts / "python"), "-I", "-c", code], cwd=self.folder))


def copy_sources(folder: Path) -> Path:
    """Copy what an installation is made from, so that a build leaves no trace in the checkout."""
    folder.mkdir()
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*_cache"))
        else:
            shutil.copy2(source, folder / name)
    return folder


def build(project: Path, out: Path, *options: str, environ: dict[str, str] | None = None) -> None:
    """Build distributions with the tools of the tests' environment."""
    run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *options, str(project)], environ=environ
    )


def run(command: list[str], *, cwd: Path | None = None, environ: dict[str, str] | None = None) -> str:
    """Run a command and return what it printed; when it fails, the error shows everything it said."""
    merged = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | (environ or {})
    done = subprocess.run(command, cwd=cwd, env=merged, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} returned {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout
