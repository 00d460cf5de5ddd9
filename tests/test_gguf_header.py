"""Tests of the GGUF header reader, against the gguf package's writer and against damage."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import edge_vl
from edge_vl.errors import ModelError
from edge_vl.gguf_header import read_gguf_header

BUNDLED = Path(edge_vl.__file__).parent / "bundled_model" / "gguf"


def write(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.name", "tiny")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("llama.rope.freq_base", 0.5)
    writer.add_bool("a.flag", True)
    writer.add_array("llama.attention.head_count_kv", [1, 4, 2])
    writer.add_array("tokenizer.ggml.tokens", ["a", "ä", ""])
    writer.add_array("tokenizer.ggml.scores", [float(n) for n in range(5000)])
    writer.add_tensor("one", np.ones((3, 32), np.float32))
    writer.add_tensor("two", gguf.quants.quantize(np.ones((2, 64), np.float32), gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_metadata_and_tensors_are_what_was_written(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    header = read_gguf_header(tmp_path / "tiny.gguf")
    assert header.architecture == "llama"
    assert header.metadata["general.name"] == "tiny"
    assert header.metadata["llama.rope.freq_base"] == 0.5
    assert header.metadata["a.flag"] is True
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "ä", ""]
    assert "tokenizer.ggml.scores" not in header.metadata
    assert header.number("block_count") == 3
    assert header.number("attention.head_count_kv") == 4
    assert header.number("nothing") == 0
    one, two = header.tensors
    assert (one.name, one.shape, one.dtype, one.nbytes) == ("one", (32, 3), "f32", 384)
    assert (two.shape, two.dtype, two.nbytes) == ((64, 2), "q8_0", 136)
    assert header.weights_bytes == 520
    assert header.dtype == "f32"
    with (tmp_path / "tiny.gguf").open("rb") as file:
        file.seek(one.offset)
        np.testing.assert_array_equal(np.frombuffer(file.read(one.nbytes), np.float32), np.ones(96, np.float32))


def test_every_type_has_the_sizes_that_the_gguf_package_knows() -> None:
    from edge_vl.gguf_header import _TYPES

    for number, (name, block, nbytes) in _TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert kind.name.lower() == name
        assert gguf.GGML_QUANT_SIZES[kind] == (block, nbytes)


@pytest.mark.parametrize("name", ["edge-vl-bundled-text-f16.gguf", "mmproj-edge-vl-bundled-f16.gguf"])
def test_a_file_of_the_bundled_model_reads_as_in_the_gguf_package(name: str) -> None:
    header, reader = read_gguf_header(BUNDLED / name), gguf.GGUFReader(BUNDLED / name)
    assert header.is_projector == name.startswith("mmproj")
    assert [(t.name, t.shape, t.nbytes, t.offset) for t in header.tensors] == [
        (t.name, tuple(int(n) for n in t.shape), int(t.n_bytes), int(t.data_offset)) for t in reader.tensors
    ]
    assert set(header.metadata) == {key for key in reader.fields if not key.startswith("GGUF.")}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty; download it again"),
        (b"GG", "is not a GGUF file"),
        (b"hello, I am text", "is not a GGUF file: it begins with b'hell'"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
    ],
)
def test_what_is_no_gguf_file_is_a_model_error_that_says_what_it_is(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "no.gguf").write_bytes(content)
    with pytest.raises(ModelError, match=rf"no\.gguf.*{said}"):
        read_gguf_header(tmp_path / "no.gguf")


def test_a_pipe_is_refused_and_nobody_waits_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelError, match="no ordinary file"):
        read_gguf_header(tmp_path / "pipe.gguf")


def test_a_missing_file_and_a_folder_are_model_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.gguf", tmp_path):
        with pytest.raises(ModelError, match="cannot be read"):
            read_gguf_header(path)


def test_a_file_cut_anywhere_is_a_model_error(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    data = (tmp_path / "tiny.gguf").read_bytes()
    last = max(tensor.offset + tensor.nbytes for tensor in read_gguf_header(tmp_path / "tiny.gguf").tensors)
    for length in (*range(0, 400, 7), 4000, last - 1):
        (tmp_path / "cut.gguf").write_bytes(data[:length])
        with pytest.raises(ModelError):
            read_gguf_header(tmp_path / "cut.gguf")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(at=st.integers(4, 600), value=st.integers(0, 255))
def test_a_damaged_byte_is_a_model_error_or_another_value_and_nothing_else(tmp_path: Path, at: int, value: int) -> None:
    source = tmp_path / "tiny.gguf"
    if not source.exists():
        write(source)
    data = bytearray(source.read_bytes())
    data[at] = value
    (tmp_path / "damaged.gguf").write_bytes(data)
    with suppress(ModelError):
        assert read_gguf_header(tmp_path / "damaged.gguf").weights_bytes <= len(data)
