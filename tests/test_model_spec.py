"""Tests of model folders and names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge_vl import ModelError, RequestError
from edge_vl.families import family_of
from edge_vl.model_spec import read_model_spec
from edge_vl.models import find_model, model_names


def edit(folder: Path, name: str, **changes: Any) -> None:
    content = json.loads((folder / name).read_text())
    content.update(changes)
    (folder / name).write_text(json.dumps(content))


def test_the_bundled_model_is_found_by_name() -> None:
    model = find_model("bundled")
    assert (model.name, model.family) == ("bundled", "idefics3")
    assert "bundled" in model_names()


def test_a_folder_is_a_model_and_gives_it_its_name(model_folder: Path) -> None:
    model = find_model(model_folder)
    assert (model.name, model.family) == ("tiny", "idefics3")
    assert model.config["text_config"]["max_position_embeddings"] == 4096


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "tokenizer.json", "chat_template.jinja"])
def test_a_missing_file_is_named(model_folder: Path, name: str) -> None:
    (model_folder / name).unlink()
    with pytest.raises(ModelError, match=name.replace(".", r"\.")) as caught:
        read_model_spec(model_folder)
    assert caught.value.file.endswith(name)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b"", b"[" * 200_000, b'{"a":' * 200_000])
def test_a_broken_file_is_named(model_folder: Path, content: bytes) -> None:
    (model_folder / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_model_spec(model_folder)


def test_a_configuration_without_a_type_is_refused(model_folder: Path) -> None:
    (model_folder / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="model_type"):
        read_model_spec(model_folder)


def test_an_unknown_family_says_which_are_known(model_folder: Path) -> None:
    edit(model_folder, "config.json", model_type="frobnicator")
    with pytest.raises(ModelError, match=r"frobnicator.*idefics3"):
        family_of(read_model_spec(model_folder))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.json", {"chat_template": "T"}),
        ("processor_config.json", {"chat_template": "T"}),
        ("tokenizer_config.json", {"chat_template": "T"}),
        (
            "tokenizer_config.json",
            {"chat_template": [{"name": "tool", "template": "X"}, {"name": "default", "template": "T"}]},
        ),
    ],
)
def test_the_chat_template_is_found_where_each_version_puts_it(
    model_folder: Path, name: str, content: dict[str, Any]
) -> None:
    (model_folder / "chat_template.jinja").unlink()
    (model_folder / name).write_text(json.dumps(content))
    assert read_model_spec(model_folder).chat_template == "T"


def test_a_name_that_is_nearly_right_gets_a_hint() -> None:
    with pytest.raises(ModelError, match="did you mean 'bundled'"):
        find_model("bundeld")
    with pytest.raises(ModelError, match="known names: bundled"):
        find_model("no/such/model")
    with pytest.raises(ModelError, match="neither a folder nor a GGUF file"):
        find_model(__file__)
    with pytest.raises(ModelError, match="there is no file"):
        find_model("missing.gguf")


@pytest.mark.parametrize("key", ["text_config", "vision_config"])
@pytest.mark.parametrize("value", [5, "x", None, [1]])
def test_a_part_that_is_no_object_is_named(model_folder: Path, key: str, value: object) -> None:
    edit(model_folder, "config.json", **{key: value})
    with pytest.raises(ModelError, match=rf"config\.json: {key} should be an object"):
        read_model_spec(model_folder)


@pytest.mark.parametrize("entry", [{"name": "default"}, {"name": "default", "template": 5}, 5])
def test_a_chat_template_without_its_text_is_missing(model_folder: Path, entry: object) -> None:
    (model_folder / "chat_template.jinja").unlink()
    (model_folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": [entry]}))
    with pytest.raises(ModelError, match="no chat template"):
        read_model_spec(model_folder)


@pytest.mark.parametrize("name", ["a" * 300, "~no-such-user-here/x", "a\0b"])
def test_a_name_that_no_folder_can_have_is_a_model_error(name: str) -> None:
    with pytest.raises(ModelError, match=r"cannot be a folder|neither a model"):
        find_model(name)


@pytest.mark.parametrize("name", [None, 5, b"bundled", ["bundled"]])
def test_what_is_no_name_is_a_request_error(name: Any) -> None:
    with pytest.raises(RequestError, match="a text or a path") as caught:
        find_model(name)
    assert caught.value.field == "model"
