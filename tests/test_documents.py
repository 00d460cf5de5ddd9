"""The Python of the documents runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from edge_vl.gateway.camera_commands import Command

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["README.md", "docs/sdk.md", "docs/cameras.md"])
def test_the_python_of_a_document_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), name, "exec"), {"__name__": "document"})
    assert "a red circle at the top left" in capsys.readouterr().out


def test_every_link_of_the_documents_leads_somewhere() -> None:
    for document in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_every_topic_of_a_camera_is_in_the_table() -> None:
    rows = [line for line in (ROOT / "docs/mqtt.md").read_text().splitlines() if "/camera/<camera>/" in line]
    states, sets = ([row for row in rows if f"<what>/{kind}`" in row] for kind in ("state", "set"))
    assert len(states) == len(sets) == 1
    for command in get_args(Command):
        assert f"`{command}`" in states[0], command
        assert f"`{command}`" in sets[0], command
    assert "| yes |" in states[0]


@pytest.mark.parametrize(
    "path", ["README.md", "docs/mqtt.md", "docs/cameras.md", "examples/systemd/edge-vl-gateway.service"]
)
def test_a_new_environment_is_told_to_install_from_the_checkout(path: str) -> None:
    text = " ".join((ROOT / path).read_text().split())
    assert re.search(r"pip install '/path/to/this/checkout\[", text)
    for found in re.finditer(r"pip install 'edge-vl\[", text):
        assert "is installed already" in text[found.start() - 120 : found.start()]
