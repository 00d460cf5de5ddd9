"""Tests of models that are nothing but GGUF files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import edge_vl
from edge_vl.errors import ModelError
from edge_vl.families import family_of
from edge_vl.gguf_spec import gguf_files
from edge_vl.model_spec import GGUF_FAMILY, read_model_spec

BUNDLED = Path(edge_vl.__file__).parent / "bundled_model"
TEXT, PROJECTOR = "edge-vl-bundled-text-f16.gguf", "mmproj-edge-vl-bundled-f16.gguf"


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """Copy the two files of the bundled model, and nothing else."""
    folder = tmp_path / "pair"
    shutil.copytree(BUNDLED / "gguf", folder)
    return folder


def test_a_folder_of_gguf_files_is_a_model_whose_metadata_is_its_configuration(pair: Path) -> None:
    spec = read_model_spec(pair)
    whole = read_model_spec(BUNDLED)
    assert spec.family == GGUF_FAMILY
    assert family_of(spec) is None
    assert spec.has_vision
    assert spec.name == "pair"
    assert spec.chat_template == whole.chat_template
    assert spec.tokenizer_file == pair / TEXT
    assert spec.tokenizer_config["eos_token"] == "<end_of_utterance>"
    for section in ("text_config", "vision_config"):
        expected = whole.config[section]
        found = {key: value for key, value in spec.config[section].items() if key in expected}
        assert found
        assert found == {key: expected[key] for key in found}


def test_a_named_file_is_the_model_and_finds_its_vision_encoder(pair: Path) -> None:
    spec = read_model_spec(pair / TEXT)
    assert spec.file == pair / TEXT
    assert spec.path == pair
    assert spec.has_vision


def test_a_text_model_alone_reads_text_only(pair: Path) -> None:
    (pair / PROJECTOR).unlink()
    assert not read_model_spec(pair).has_vision


def test_a_vision_encoder_is_not_a_model(pair: Path) -> None:
    with pytest.raises(ModelError, match="vision encoder"):
        read_model_spec(pair / PROJECTOR)
    (pair / TEXT).unlink()
    with pytest.raises(ModelError, match="no GGUF file of a text model"):
        read_model_spec(pair)


def test_a_template_beside_the_files_wins(pair: Path) -> None:
    (pair / "chat_template.jinja").write_text("mine")
    assert read_model_spec(pair).chat_template == "mine"
    (pair / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="cannot be read"):
        read_model_spec(pair)


def test_later_parts_of_a_split_file_are_no_models_of_their_own(pair: Path) -> None:
    (pair / TEXT).rename(pair / "big-00001-of-00002.gguf")
    (pair / "big-00002-of-00002.gguf").write_bytes(b"GGUF")
    assert [path.name for path in gguf_files(pair)] == ["big-00001-of-00002.gguf", PROJECTOR]


def test_a_folder_in_the_hugging_face_layout_stays_one_though_it_has_gguf_files() -> None:
    assert read_model_spec(BUNDLED).family == "idefics3"


def test_a_type_that_no_family_knows_needs_gguf_files(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(BUNDLED, folder, ignore=shutil.ignore_patterns("onnx"))
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"idefics3"', '"qwen2_5_vl"'))
    assert family_of(read_model_spec(folder)) is None
    shutil.rmtree(folder / "gguf")
    with pytest.raises(ModelError, match="through GGUF files only"):
        family_of(read_model_spec(folder))


def test_folders_pipes_and_dead_links_called_gguf_are_no_files_of_the_model(pair: Path) -> None:
    (pair / "folder.gguf").mkdir()
    os.mkfifo(pair / "pipe.gguf")
    (pair / "link.gguf").symlink_to(pair / "missing")
    assert [path.name for path in gguf_files(pair)] == [TEXT, PROJECTOR]
