"""Models by name, repository, folder and file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge_vl.errors import ModelError, RequestError
from edge_vl.models import BUNDLED, find_model, find_pulled, model_names
from edge_vl.pulled_model import MANIFEST


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EDGE_VL_MODELS_DIR", str(tmp_path / "shelf"))
    return tmp_path / "shelf"


@pytest.fixture
def pulled(shelf: Path, model_folder: Path) -> Path:
    """Put the tiny folder on the shelf as if it had been pulled from a repository."""
    shelf.mkdir()
    folder = model_folder.rename(shelf / "tiny")
    files = [
        {"path": path.name, "repo": "edge/tiny", "source": path.name, "nbytes": path.stat().st_size, "sha256": "0" * 64}
        for path in sorted(folder.iterdir())
    ]
    source = {"repo": "edge/tiny", "revision": "main", "commit": "1" * 40, "licence": "mit", "cache": "/gone"}
    manifest = {"schema": 1, "title": "Tiny", "pulled_at": "2026-01-01T00:00:00+00:00", "sources": [source]}
    (folder / MANIFEST).write_text(json.dumps({**manifest, "files": files}))
    return folder


def test_a_pulled_model_is_found_by_its_name_and_its_repository(pulled: Path) -> None:
    assert model_names() == (BUNDLED, "tiny")
    for name in ("tiny", "edge/tiny"):
        assert (find_model(name).path, find_model(name).name) == (pulled, "tiny")
    assert find_pulled("edge/other") is None


def test_settings_of_a_pulled_model_may_be_changed(pulled: Path) -> None:
    (pulled / "chat_template.jinja").write_text("{{ messages }}")
    assert find_model("tiny").chat_template == "{{ messages }}"


def test_a_name_comes_before_a_folder_and_a_path_is_always_a_folder(pulled: Path, tmp_path: Path) -> None:
    own = tmp_path / "tiny"
    own.mkdir()
    assert find_model("tiny").path == pulled
    for folder in ("./tiny", own, Path("tiny")):
        with pytest.raises(ModelError, match=r"has no config.json"):
            find_model(folder)


def test_a_name_of_the_catalog_says_how_to_pull_it(shelf: Path) -> None:
    with pytest.raises(ModelError, match=r"not on this machine yet; run: edge-vl models pull smolvlm-256m"):
        find_model("smolvlm-256m")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smolvlm-265m", "did you mean 'smolvlm-256m'"),
        ("bundle", "did you mean 'bundled'"),
        ("owner/model", "to pull it: edge-vl models pull owner/model"),
        ("./missing", "known names: bundled"),
        ("a/b/c", "known names: bundled"),
        ("..", "has no config.json"),
        ("x\0y", "cannot be a folder|nor a folder"),
        ("n" * 5000, "cannot be a folder"),
    ],
)
def test_an_unknown_name_is_told_with_a_hint(shelf: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        find_model(name)


def test_a_gguf_file_and_a_folder_of_them_are_models(shelf: Path) -> None:
    folder = find_model(BUNDLED).path / "gguf"
    assert find_model(folder).family == "gguf"
    file = folder / "edge-vl-bundled-text-f16.gguf"
    assert find_model(str(file)).file == file


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 9}', '{"schema": 1, "sources": [], "files": [{"path": "x"}]}'])
def test_a_damaged_manifest_is_told_and_left_out_of_the_list(pulled: Path, text: str) -> None:
    (pulled / MANIFEST).write_text(text)
    assert model_names() == (BUNDLED,)
    with pytest.raises(ModelError, match=MANIFEST):
        find_model("tiny")


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd"])
def test_a_manifest_does_not_lead_out_of_its_folder(pulled: Path, path: str) -> None:
    manifest = json.loads((pulled / MANIFEST).read_text())
    manifest["files"][0]["path"] = path
    (pulled / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match="is damaged"):
        find_model("tiny")


def test_without_a_home_there_is_the_bundled_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    for name in ("EDGE_VL_MODELS_DIR", "EDGE_VL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert model_names() == (BUNDLED,)
    assert find_model(BUNDLED).name == BUNDLED


def test_what_is_no_name_is_refused() -> None:
    with pytest.raises(RequestError):
        find_model(7)  # type: ignore[arg-type]
