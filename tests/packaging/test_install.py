"""Wheel, editable install, and wheel from the sdist: each one finds packages, engines, model and compiled kernels."""

from __future__ import annotations

import shutil
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

from edge_vl_kernels import available_isas
from tests.packaging.fresh_environment import ROOT, FreshEnvironment, build, copy_sources, run

pytestmark = [
    pytest.mark.packaging,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
    pytest.mark.filterwarnings("default::ResourceWarning"),
]

PACKAGES = ("edge_vl", "edge_vl_device_profiles", "edge_vl_kernels", "edge_vl_llama_cpp", "edge_vl_onnxruntime")
INSPECT = """
import importlib, json, sys
from importlib.metadata import entry_points, version
import edge_vl
def loaded():
    return sorted({
        name.partition(".")[0] for name, module in list(sys.modules.items())
        if (getattr(module, "__file__", None) or "").startswith(DEPENDENCIES)
    })
at_import = loaded()
edge_vl.Runtime, edge_vl.open_source
with_runtime = loaded()
from importlib.resources import files
import edge_vl_kernels, numpy
tile = edge_vl_kernels.normalize_tile(numpy.zeros((2, 2, 3), numpy.uint8), 1 / 255, (0.5,) * 3, (0.5,) * 3)
status = edge_vl_kernels.status()
print(json.dumps({
    "at_import": at_import,
    "with_runtime": with_runtime,
    "version": version("edge-vl"),
    "packages": {name: importlib.import_module(name).__file__ for name in PACKAGES},
    "typed": [(files(name) / "py.typed").is_file() for name in PACKAGES],
    "engines": {point.name: point.value for point in entry_points(group="edge_vl.engines")},
    "model": sorted(file.name for file in (files("edge_vl") / "bundled_model").iterdir()),
    "compiled": status.compiled,
    "isas": edge_vl_kernels.available_isas(),
    "library": str(status.library),
    "reason": status.reason,
    "corner": float(tile[0, 0, 0]),
}))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_sources(tmp_path_factory.mktemp("sources") / "project")


@pytest.fixture(scope="module")
def wheel(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    build(project, out, "--wheel")
    return only(out, "*.whl")


@pytest.fixture(scope="module")
def from_sdist(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and a wheel from nothing but the sdist."""
    out = tmp_path_factory.mktemp("sdist")
    build(project, out)
    return out


@pytest.fixture(scope="module", params=["wheel", "sdist", "editable"])
def installed(
    request: pytest.FixtureRequest, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> FreshEnvironment:
    environment = FreshEnvironment.make(tmp_path_factory.mktemp(request.param) / "environment")
    if request.param == "editable":
        environment.install("--editable", str(project))
    elif request.param == "sdist":
        environment.install(str(only(request.getfixturevalue("from_sdist"), "*.whl")))
    else:
        environment.install(str(request.getfixturevalue("wheel")))
    return environment


def only(folder: Path, pattern: str) -> Path:
    (file,) = folder.glob(pattern)
    return file


def model_files() -> set[str]:
    model = ROOT / "edge_vl/bundled_model"
    return {
        file.relative_to(ROOT).as_posix()
        for file in model.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }


def inspected(environment: FreshEnvironment) -> str:
    return INSPECT.replace("DEPENDENCIES", repr(str(environment.dependencies))).replace("PACKAGES", repr(PACKAGES))


def test_every_installation_is_complete(installed: FreshEnvironment) -> None:
    found = installed.evaluate(inspected(installed))

    assert found["version"] == "0.1.0"
    assert all(found["typed"])
    assert found["engines"] == {
        "llama_cpp": "edge_vl_llama_cpp:engine",
        "onnxruntime": "edge_vl_onnxruntime:engine",
    }
    assert found["compiled"], found["reason"]
    assert tuple(found["isas"]) == available_isas()
    assert found["library"].startswith(str(installed.folder))
    assert found["corner"] == -1.0
    assert not any(file.startswith(str(ROOT)) for file in found["packages"].values())
    in_checkout = {name.split("/")[2] for name in model_files()}
    assert in_checkout <= set(found["model"])


def test_importing_edge_vl_loads_nothing_else_and_its_runtime_numpy_and_pillow_only(
    installed: FreshEnvironment,
) -> None:
    found = installed.evaluate(inspected(installed))

    assert (found["at_import"], found["with_runtime"]) == ([], ["PIL", "numpy"])


def test_the_console_script_starts(installed: FreshEnvironment) -> None:
    assert "Usage" in run([str(installed.scripts / "edge-vl"), "--help"], cwd=installed.folder)


def test_the_wheel_names_its_platform_and_no_python_abi(wheel: Path) -> None:
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")

    assert wheel.name == f"edge_vl-0.1.0-py3-none-{platform}.whl"


def test_the_wheel_holds_the_packages_the_model_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())

    assert {name.partition("/")[0] for name in names} == {*PACKAGES, "edge_vl-0.1.0.dist-info"}
    assert model_files() <= names
    assert any(name.endswith(".onnx") for name in names)
    assert any(name.endswith(".gguf") for name in names)
    assert "edge_vl_device_profiles/generic-cpu.toml" in names
    assert any(name.endswith("/LICENSE") for name in names)
    assert not any(name.endswith((".cpp", ".h", ".pyc")) for name in names)


def test_the_sdist_holds_what_a_build_needs(from_sdist: Path) -> None:
    with tarfile.open(only(from_sdist, "*.tar.gz")) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    assert {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "kernels/csrc/cpu/scalar.cpp"} <= names
    assert "device_profiles/edge_vl_device_profiles/generic-cpu.toml" in names
    assert model_files() <= names


def test_a_new_file_is_seen_at_once_in_an_editable_installation(tmp_path: Path) -> None:
    project = copy_sources(tmp_path / "project")
    environment = FreshEnvironment.make(tmp_path / "environment")
    environment.install("--editable", str(project))

    (project / "edge_vl/written_later.py").write_text("answer = 42\n")
    (project / "edge_vl/folder_made_later").mkdir()
    (project / "edge_vl/folder_made_later/__init__.py").write_text("answer = 43\n")
    (project / "engines/edge_vl_onnxruntime/written_later.py").write_text("answer = 44\n")
    (project / "edge_vl/bundled_model/written_later.txt").write_text("45")

    assert environment.evaluate(
        "from importlib.resources import files\n"
        "from edge_vl import folder_made_later, written_later\n"
        "from edge_vl_onnxruntime import written_later as engine\n"
        "text = (files('edge_vl') / 'bundled_model/written_later.txt').read_text()\n"
        "print([written_later.answer, folder_made_later.answer, engine.answer, int(text)])"
    ) == [42, 43, 44, 45]


def test_without_a_compiler_the_wheel_is_pure_and_says_why(project: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    nothing.mkdir()
    # CMake looks for compilers in the usual places too, whatever PATH says: name one that is not there.
    build(project, tmp_path, "--wheel", environ={"PATH": str(nothing), "CXX": str(nothing / "c++")})
    pure = only(tmp_path, "*.whl")
    environment = FreshEnvironment.make(tmp_path / "environment")
    environment.install(str(pure))

    found = environment.evaluate(inspected(environment))

    assert pure.name == "edge_vl-0.1.0-py3-none-any.whl"
    assert not found["compiled"]
    assert found["isas"] == ["reference"]
    assert "without a C++ compiler" in found["reason"]
    assert found["corner"] == -1.0
