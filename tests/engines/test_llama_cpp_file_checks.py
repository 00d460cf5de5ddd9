"""What would make llama.cpp abort is refused before it sees it."""

from __future__ import annotations

from pathlib import Path

import gguf
import pytest

from edge_vl.engine import LaneOptions
from edge_vl.errors import ModelError
from edge_vl.model_spec import ModelSpec, read_model_spec
from edge_vl_llama_cpp import engine as llama_engine
from edge_vl_llama_cpp.files import find_text_file
from tests.engines.tiny_gguf import PAIRS, write_pair, write_text, write_text_model, write_vision

ONE_THREAD = LaneOptions(threads=1)
TEXT, VISION = "tiny-text-f16.gguf", "mmproj-tiny-f16.gguf"


def set_number(file: Path, key: str, value: float) -> None:
    """Change a number in the header of a file."""
    reader = gguf.GGUFReader(file, "r+")
    field = reader.get_field(key)
    assert field is not None
    field.parts[field.data[0]][0] = value
    reader.data.flush()


@pytest.mark.parametrize(
    ("family", "key", "value"),
    [
        *((family, "vision.patch_size", value) for family in PAIRS for value in (0, 1, 7)),
        *((family, "vision.attention.head_count", value) for family in PAIRS for value in (0, 7)),
        *((family, "vision.embedding_length", value) for family in PAIRS for value in (0, 1)),
        *((family, "vision.block_count", 0) for family in PAIRS),
        *((family, "vision.image_size", value) for family in ("gemma3", "internvl") for value in (0, 1, 7, 1 << 31)),
        *(("internvl", "vision.projector.scale_factor", value) for value in (1, 7)),
    ],
)
def test_numbers_of_an_encoder_that_llama_cpp_would_abort_on_are_refused(
    tmp_path: Path, family: str, key: str, value: int
) -> None:
    spec = write_pair(tmp_path, family)
    set_number(tmp_path / VISION, f"clip.{key}", value)
    with pytest.raises(ModelError, match="damaged"):
        llama_engine.load_vision(spec, ONE_THREAD)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("block_count", 0),
        ("block_count", 1 << 31),
        ("embedding_length", 0),
        ("rope.dimension_count", 0),
        ("rope.dimension_count", 7),
        ("attention.head_count_kv", 3),
    ],
)
def test_numbers_of_a_text_model_that_llama_cpp_would_abort_on_are_refused(
    tmp_path: Path, key: str, value: int
) -> None:
    spec = write_text_model(tmp_path, "llama")
    set_number(tmp_path / TEXT, f"llama.{key}", value)
    with pytest.raises(ModelError, match="damaged"):
        llama_engine.load_language(spec, ONE_THREAD)


def rename(file: Path, name: str, other: str) -> None:
    """Damage a name, which keeps its length, in the header of a file."""
    data = file.read_bytes()
    assert len(name) == len(other)
    assert data.count(name.encode()) >= 1
    at = data.index(len(name).to_bytes(8, "little") + name.encode()) + 8
    file.write_bytes(data[:at] + other.encode() + data[at + len(name) :])


@pytest.mark.parametrize(
    ("family", "name"),
    [
        *((family, "v.patch_embd.weight") for family in PAIRS),
        *((family, f"v.blk.0.attn_{part}.weight") for family in PAIRS for part in ("q", "k", "v", "out")),
        *((family, f"v.blk.0.attn_{part}.bias") for family in PAIRS for part in ("q", "k", "v")),
        *((family, f"v.blk.0.{part}") for family in PAIRS for part in ("ln1.weight", "ln2.bias", "ffn_up.weight")),
        ("gemma3", "v.position_embd.weight"),
        ("gemma3", "v.post_ln.bias"),
        ("internvl", "v.class_embd"),
        ("internvl", "v.position_embd.weight"),
        ("qwen2vl", "v.patch_embd.weight.1"),
        ("qwen2vl", "v.post_ln.bias"),
    ],
)
def test_a_tensor_that_an_encoder_needs_is_missed_by_name(tmp_path: Path, family: str, name: str) -> None:
    spec = write_pair(tmp_path, family)
    rename(tmp_path / VISION, name, name[:-1] + "X")
    with pytest.raises(ModelError, match=f"lacks the tensor {name};") as caught:
        llama_engine.load_vision(spec, ONE_THREAD)
    assert caught.value.file == str(tmp_path / VISION)


def test_a_tensor_that_one_layer_of_an_encoder_lacks_is_missed(copy_bundled: ModelSpec) -> None:
    file = next((copy_bundled.path / "gguf").glob("mmproj*"))
    rename(file, "v.blk.2.ffn_down.bias", "v.blk.2.ffn_down.biaX")
    with pytest.raises(ModelError, match=r"lacks the tensor v\.blk\.2\.ffn_down\.bias"):
        llama_engine.load_vision(copy_bundled, ONE_THREAD)


@pytest.mark.parametrize("family", PAIRS)
@pytest.mark.parametrize("name", ["v.blk.0.attn_k.weight", "v.blk.0.ln1.bias", "v.patch_embd.weight"])
def test_a_tensor_of_another_shape_than_an_encoder_needs_is_refused(tmp_path: Path, family: str, name: str) -> None:
    spec = write_pair(tmp_path, family)
    data = bytearray((tmp_path / VISION).read_bytes())
    at = data.index(len(name).to_bytes(8, "little") + name.encode()) + 8 + len(name) + 4
    data[at : at + 8] = (2).to_bytes(8, "little")
    (tmp_path / VISION).write_bytes(data)
    with pytest.raises(ModelError, match="damaged"):
        llama_engine.load_vision(spec, ONE_THREAD)


@pytest.mark.parametrize("part", ["q", "k", "v"])
def test_a_bias_that_a_text_model_lacks_beside_others_is_missed(tmp_path: Path, part: str) -> None:
    spec = write_text_model(tmp_path, "qwen2vl")
    rename(tmp_path / TEXT, f"blk.0.attn_{part}.bias", f"blk.0.attn_{part}.biaX")
    with pytest.raises(ModelError, match=rf"lacks the tensor blk\.0\.attn_{part}\.bias"):
        llama_engine.load_language(spec, ONE_THREAD)


def test_an_encoder_that_does_not_say_how_it_merges_patches_is_refused(copy_bundled: ModelSpec) -> None:
    file = next((copy_bundled.path / "gguf").glob("mmproj*"))
    rename(file, "clip.vision.projector.scale_factor", "clip.vision.projector.scale_factoX")
    with pytest.raises(ModelError, match=r"projector\.scale_factor"):
        llama_engine.load_vision(copy_bundled, ONE_THREAD)


def test_pictures_that_an_encoder_would_cut_into_far_too_many_tiles_are_refused(copy_bundled: ModelSpec) -> None:
    file = next((copy_bundled.path / "gguf").glob("mmproj*"))
    set_number(file, "clip.vision.preproc_image_size", 1 << 20)
    with pytest.raises(ModelError, match="cut into tiles of 64"):
        llama_engine.load_vision(copy_bundled, ONE_THREAD)


def test_an_encoder_that_does_not_say_how_pictures_are_cut_needs_the_configuration(copy_bundled: ModelSpec) -> None:
    file = next((copy_bundled.path / "gguf").glob("mmproj*"))
    set_number(file, "clip.vision.preproc_image_size", 0)
    llama_engine.load_vision(copy_bundled, ONE_THREAD).close()
    with pytest.raises(ModelError, match="preproc_image_size"):
        llama_engine.load_vision(read_model_spec(copy_bundled.path / "gguf"), ONE_THREAD)


@pytest.mark.parametrize("text", [b"a", b"a\0"])
def test_two_tokens_of_one_text_are_refused(tmp_path: Path, text: bytes) -> None:
    spec = write_text_model(tmp_path)
    data = (tmp_path / TEXT).read_bytes()
    old = b"re" if len(text) == 2 else b"b"
    prefix = len(text).to_bytes(8, "little")
    at = data.index(prefix + old, data.index(b"tokenizer.ggml.tokens")) + 8
    (tmp_path / TEXT).write_bytes(data[:at] + text + data[at + len(text) :])
    with pytest.raises(ModelError, match="two tokens with the text 'a'"):
        llama_engine.load_language(spec, ONE_THREAD)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 1e38])
def test_an_epsilon_that_cannot_be_one_is_refused(tmp_path: Path, value: float) -> None:
    spec = write_pair(tmp_path, "gemma3")
    set_number(tmp_path / VISION, "clip.vision.attention.layer_norm_epsilon", value)
    with pytest.raises(ModelError, match="layer_norm_epsilon"):
        llama_engine.load_vision(spec, ONE_THREAD)
    set_number(tmp_path / TEXT, "gemma3.attention.layer_norm_rms_epsilon", value)
    with pytest.raises(ModelError, match="layer_norm_rms_epsilon"):
        llama_engine.load_language(spec, ONE_THREAD)


@pytest.mark.parametrize(
    ("key", "value"),
    [("image_mean", 1e38), ("image_mean", float("nan")), ("image_std", 0.0), ("image_std", 1e-38)],
)
def test_colours_that_cannot_be_normalised_with_are_refused(tmp_path: Path, key: str, value: float) -> None:
    spec = write_pair(tmp_path, "qwen2vl")
    set_number(tmp_path / VISION, f"clip.vision.{key}", value)
    with pytest.raises(ModelError, match=key):
        llama_engine.load_vision(spec, ONE_THREAD)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_a_rotation_with_a_base_that_is_no_number_is_refused(copy_bundled: ModelSpec, value: float) -> None:
    set_number(find_text_file(copy_bundled, "auto").path, "llama.rope.freq_base", value)
    with pytest.raises(ModelError, match="freq_base"):
        llama_engine.load_language(copy_bundled, ONE_THREAD)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.head_count", 100),
        ("attention.key_length", 5),
        ("attention.value_length", 8),
        ("rope.dimension_count", 100),
        ("rope.dimension_count", 8),
        ("rope.dimension_sections", 110),
        ("context_length", 1 << 31),
    ],
)
def test_numbers_of_heads_that_do_not_fit_the_rotation_are_refused(tmp_path: Path, key: str, value: int) -> None:
    spec = write_text_model(tmp_path, "qwen2vl")
    set_number(tmp_path / TEXT, f"qwen2vl.{key}", value)
    with pytest.raises(ModelError, match="damaged"):
        llama_engine.load_language(spec, ONE_THREAD)


@pytest.mark.parametrize(("key", "value"), [("min", 0), ("min", 5), ("max", 0), ("max", (1 << 31) - 1)])
def test_numbers_of_tiles_that_no_picture_can_be_cut_into_are_refused(tmp_path: Path, key: str, value: int) -> None:
    spec = write_pair(tmp_path, "internvl")
    set_number(tmp_path / VISION, f"clip.vision.preproc_{key}_tiles", value)
    with pytest.raises(ModelError, match="tiles"):
        llama_engine.load_vision(spec, ONE_THREAD)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("clip.use_gelu", 0),
        ("clip.has_vision_encoder", 0),
        ("clip.vision.block_count", 5),
        ("clip.vision.image_size", 6),
        ("clip.vision.attention.layer_norm_epsilon", 4),
    ],
)
def test_a_value_of_another_type_than_llama_cpp_asserts_is_refused(tmp_path: Path, key: str, kind: int) -> None:
    spec = write_pair(tmp_path, "gemma3")
    data = bytearray((tmp_path / VISION).read_bytes())
    data[data.index(key.encode()) + len(key)] = kind
    (tmp_path / VISION).write_bytes(data)
    with pytest.raises(ModelError, match=f"{key} as a value of type {kind}"):
        llama_engine.load_vision(spec, ONE_THREAD)


@pytest.mark.parametrize(("text", "projector"), [("gemma3", "qwen2vl_merger"), ("qwen2vl", "gemma3")])
def test_a_text_model_and_an_encoder_of_other_kinds_are_no_pair(tmp_path: Path, text: str, projector: str) -> None:
    write_text(tmp_path / TEXT, text)
    write_vision(tmp_path / VISION, projector)
    with pytest.raises(ModelError, match=f"projector '{projector}' is not made for.*'{text}'"):
        llama_engine.load_vision(read_model_spec(tmp_path), ONE_THREAD)
