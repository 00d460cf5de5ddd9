"""Finding files, and what is said about files that cannot be used."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from edge_vl.engine import LaneOptions
from edge_vl.errors import EngineError, ModelError
from edge_vl.model_spec import GGUF_FAMILY, ModelSpec, read_model_spec
from edge_vl.models import find_model
from edge_vl_llama_cpp import engine as llama_engine
from edge_vl_llama_cpp import library
from edge_vl_llama_cpp.files import find_projector_file, find_text_file
from tests.engines.tiny_gguf import HIDDEN, write_pair, write_text, write_text_model, write_vision

ONE_THREAD = LaneOptions(threads=1)
TEXT, VISION = "tiny-text-f16.gguf", "mmproj-tiny-f16.gguf"


def stand_in(folder: Path) -> ModelSpec:
    """Return a spec of a folder whose files cannot be read as one."""
    return ModelSpec(
        name="stand-in",
        path=folder,
        family=GGUF_FAMILY,
        config={},
        preprocessor={},
        generation={},
        chat_template="",
        tokenizer_file=folder / TEXT,
        tokenizer_config={},
    )


def spoil(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif how == "header cut off":
        path.write_bytes(data[:900])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "pointer":
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    else:
        path.write_bytes(b"PK\x03\x04" + data)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("truncated", "cut off"),
        ("header cut off", "cut off"),
        ("empty", "empty"),
        ("pointer", "git lfs pull"),
        ("other", "not a GGUF file"),
    ],
)
def test_a_spoilt_file_is_a_model_error_that_says_what_is_wrong(pair: ModelSpec, how: str, said: str) -> None:
    spec = stand_in(pair.path)
    spoil(pair.path / VISION, how)
    with pytest.raises(ModelError, match=said) as caught:
        llama_engine.load_vision(spec, ONE_THREAD)
    assert caught.value.file == str(pair.path / VISION)
    shutil.copy(pair.path / TEXT, pair.path / "keep")
    spoil(pair.path / TEXT, how)
    with pytest.raises(ModelError, match=said) as caught:
        llama_engine.load_language(spec, ONE_THREAD)
    assert caught.value.file in {str(pair.path / TEXT), str(pair.path / VISION)}


def test_a_folder_without_files_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no text model"):
        llama_engine.load_language(stand_in(tmp_path), ONE_THREAD)
    with pytest.raises(ModelError, match="no text model"):
        llama_engine.load_vision(stand_in(tmp_path), ONE_THREAD)


def test_an_encoder_of_another_model_is_refused_with_both_widths(tmp_path: Path) -> None:
    spec = write_pair(tmp_path, "gemma3", hidden=2 * HIDDEN)
    with pytest.raises(ModelError, match=rf"{2 * HIDDEN} wide.*takes {HIDDEN}.*published"):
        llama_engine.load_vision(spec, ONE_THREAD)


def test_a_folder_that_is_named_like_a_file_is_passed_over(pair: ModelSpec) -> None:
    (pair.path / VISION).unlink()
    (pair.path / VISION).mkdir()
    with pytest.raises(ModelError, match="has no vision encoder"):
        llama_engine.load_vision(pair, ONE_THREAD)


def test_an_encoder_that_does_not_say_its_width_is_refused_by_its_last_tensor(tmp_path: Path) -> None:
    write_text(tmp_path / TEXT, "gemma3")
    write_vision(tmp_path / VISION, "gemma3", hidden=2 * HIDDEN)
    reader = gguf.GGUFReader(tmp_path / VISION, "r+")
    field = reader.get_field("clip.vision.projection_dim")
    assert field is not None
    field.parts[field.data[0]][0] = 0
    reader.data.flush()
    del reader, field
    with pytest.raises(ModelError, match=rf"takes image embeds {HIDDEN} wide.*{2 * HIDDEN} wide"):
        llama_engine.load_vision(read_model_spec(tmp_path), ONE_THREAD)


def test_what_llama_cpp_says_about_a_file_is_quoted(tmp_path: Path) -> None:
    spec = write_text_model(tmp_path)
    writer = gguf.GGUFWriter(tmp_path / TEXT, "abacus")
    writer.add_context_length(64)
    writer.add_block_count(1)
    writer.add_embedding_length(4)
    writer.add_tokenizer_model("gpt2")
    writer.add_tensor("x", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelError, match="unknown model architecture: 'abacus'"):
        llama_engine.load_language(spec, ONE_THREAD)


def test_a_file_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    spec = write_text_model(tmp_path)
    data = (tmp_path / TEXT).read_bytes()
    (tmp_path / TEXT).write_bytes(data.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.muddle"[:20]))
    with pytest.raises(ModelError, match="no tokenizer"):
        llama_engine.load_language(spec, ONE_THREAD)


def test_a_model_that_writes_in_another_way_than_token_by_token_is_refused(tmp_path: Path) -> None:
    spec = write_text_model(tmp_path, "dream")
    with pytest.raises(ModelError, match="writes text"):
        llama_engine.load_language(spec, ONE_THREAD)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    spec = write_text_model(tmp_path, "llama")
    data = (tmp_path / TEXT).read_bytes()
    (tmp_path / TEXT).write_bytes(data.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xp.weight"))
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight"):
        llama_engine.load_language(spec, ONE_THREAD)
    assert not llama_engine._models._entries


def test_an_encoder_without_its_tensors_is_refused(pair: ModelSpec) -> None:
    data = (pair.path / VISION).read_bytes()
    (pair.path / VISION).write_bytes(data.replace(b"mm.soft_emb_norm.weight", b"mm.soft_emb_xxxx.weight"))
    with pytest.raises(ModelError, match="soft_emb_norm"):
        llama_engine.load_vision(pair, ONE_THREAD)


def test_two_models_of_one_shape_and_precision_are_not_guessed_between(tmp_path: Path) -> None:
    write_text(tmp_path / "one.gguf", "llama", seed=1)
    write_text(tmp_path / "two.gguf", "llama", seed=2)
    with pytest.raises(ModelError, match=r"one\.gguf, two\.gguf\); name one file"):
        read_model_spec(tmp_path)
    assert read_model_spec(tmp_path / "two.gguf").file == tmp_path / "two.gguf"


def test_a_text_model_alone_says_that_it_reads_text_only(tmp_path: Path) -> None:
    spec = write_text_model(tmp_path)
    assert llama_engine.describe(spec)["vision_dtypes"] == []
    with pytest.raises(ModelError, match="reads text only"):
        llama_engine.load_vision(spec, ONE_THREAD)


def test_an_encoder_for_sound_is_no_vision_encoder(pair: ModelSpec) -> None:
    data = (pair.path / VISION).read_bytes().replace(b"clip.has_vision_encoder", b"clip.has_audiox_encoder")
    (pair.path / VISION).write_bytes(data.replace(b"clip.projector_type", b"clip.projectoxxtype"))
    with pytest.raises(ModelError, match="sound"):
        llama_engine.load_vision(pair, ONE_THREAD)


def test_the_most_faithful_file_is_taken_and_another_one_by_name(tmp_path: Path) -> None:
    (tmp_path / "gguf").mkdir()
    write_text(tmp_path / TEXT, "llama")
    write_text(tmp_path / "gguf" / "tiny-text-q8.gguf", "llama")
    data = bytearray((tmp_path / "gguf" / "tiny-text-q8.gguf").read_bytes())
    at = data.index(b"general.file_type") + len(b"general.file_type") + 4
    data[at : at + 4] = (15).to_bytes(4, "little")  # q4_k_m
    (tmp_path / "gguf" / "tiny-text-q8.gguf").write_bytes(data)
    spec = read_model_spec(tmp_path)
    assert llama_engine.describe(spec)["language_dtypes"] == ["fp16", "q4_k_m"]
    assert find_text_file(spec, "auto").path == tmp_path / TEXT
    assert find_text_file(spec, "q4_k_m").path.name == "tiny-text-q8.gguf"
    with pytest.raises(ModelError, match="it has fp16, q4_k_m"):
        find_text_file(spec, "q8_0")


def test_a_file_that_was_named_wins_over_the_others(tmp_path: Path) -> None:
    write_text_model(tmp_path)
    write_text(tmp_path / "other.gguf", "qwen2vl")
    spec = read_model_spec(tmp_path / "other.gguf")
    assert find_text_file(spec, "auto").path == tmp_path / "other.gguf"
    assert llama_engine.describe(spec)["architecture"] == "qwen2vl"
    with pytest.raises(ModelError, match="in fp16, not in q8_0"):
        find_text_file(spec, "q8_0")
    with pytest.raises(ModelError, match="mmproj"):
        find_text_file(replace(spec, file=write_and_return(tmp_path / VISION)), "auto")


def write_and_return(path: Path) -> Path:
    write_vision(path, "gemma3")
    return path


def test_different_models_of_one_precision_are_not_guessed_between(tmp_path: Path) -> None:
    write_text(tmp_path / "one.gguf", "llama")
    write_text(tmp_path / "two.gguf", "llama", hidden=2 * HIDDEN)
    with pytest.raises(ModelError, match=r"one\.gguf, two\.gguf"):
        find_text_file(read_model_spec(tmp_path), "auto")


def test_the_encoder_that_fits_is_taken_from_several(tmp_path: Path) -> None:
    write_text(tmp_path / TEXT, "gemma3")
    write_vision(tmp_path / "mmproj-a.gguf", "gemma3", hidden=2 * HIDDEN)
    write_vision(tmp_path / "mmproj-b.gguf", "gemma3")
    spec = read_model_spec(tmp_path)
    assert find_projector_file(spec, find_text_file(spec, "auto"), "auto").path.name == "mmproj-b.gguf"


def test_a_folder_without_gguf_files_is_described_as_nothing(tmp_path: Path) -> None:
    assert llama_engine.describe(stand_in(tmp_path)) == {}


def test_a_tokenizer_of_another_model_is_refused_with_what_differs(copy_bundled: ModelSpec) -> None:
    path = copy_bundled.tokenizer_file
    text = path.read_text()
    path.write_text(text.replace("<global-img>", "<glubal-img>"))
    with pytest.raises(ModelError, match=r"'<glubal-img>' in it and '<global-img>' in the model"):
        llama_engine.load_language(read_model_spec(copy_bundled.path), ONE_THREAD)
    rules = json.loads(text)
    ids = {digit: rules["model"]["vocab"][digit] for digit in "0123456789"}
    rules["model"]["vocab"] |= dict(zip(ids, reversed(ids.values()), strict=True))
    path.write_text(json.dumps(rules))
    with pytest.raises(ModelError, match=r"stands for b'\d' in it and for b'\d' in the model"):
        llama_engine.load_language(read_model_spec(copy_bundled.path), ONE_THREAD)


def test_an_encoder_that_normalises_in_another_way_than_the_configuration_says_is_refused(
    copy_bundled: ModelSpec,
) -> None:
    spec = replace(copy_bundled, preprocessor={**copy_bundled.preprocessor, "image_mean": [0.4, 0.5, 0.5]})
    with pytest.raises(ModelError, match="image_mean"):
        llama_engine.load_vision(spec, ONE_THREAD)


def test_an_encoder_of_another_kind_than_the_configuration_is_refused(copy_bundled: ModelSpec) -> None:
    for file in (copy_bundled.path / "gguf").glob("mmproj*"):
        write_vision(file, "internvl", hidden=256)
    with pytest.raises(ModelError, match=r"'internvl'.*idefics3"):
        llama_engine.load_vision(copy_bundled, ONE_THREAD)


def test_a_backend_that_cannot_be_used_is_reported_with_its_error_and_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "_opened", [])
    monkeypatch.setitem(__import__("sys").modules, "llama_cpp", None)
    status = llama_engine.status()
    assert not status.is_available
    assert "llama_cpp" in status.reason
    assert "pip install" in status.install
    with pytest.raises(EngineError, match="pip install"):
        llama_engine.load_language(find_model("bundled"), ONE_THREAD)


def test_another_version_of_the_backend_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    import llama_cpp

    monkeypatch.setattr(library, "_opened", [])
    for version in ("0.3.9", "0.4.0", "1.0"):
        monkeypatch.setattr(llama_cpp, "__version__", version)
        assert f"{version} is not understood" in llama_engine.status().reason
