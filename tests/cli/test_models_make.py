"""`edge-vl models make`, with a model of full size."""

from __future__ import annotations

import json
from pathlib import Path

from edge_vl.gguf_header import read_gguf_header
from tests.cli.conftest import RunCli


def test_the_256m_model_is_made_in_its_exact_size(cli: RunCli, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    done = cli(
        "models", "make", "smolvlm-256m", "--longest-edge", "1024", "--dtypes", "q8_0", "--output", str(folder)
    )  # fmt: skip
    assert done.code == 0, done.err
    assert done.out.strip() == str(folder)
    assert "random weights" in done.err
    text = read_gguf_header(folder / "gguf" / "smolvlm-256m-text-q8_0.gguf")
    vision = read_gguf_header(folder / "gguf" / "mmproj-smolvlm-256m-q8_0.gguf")
    assert (text.number("block_count"), text.number("embedding_length"), text.dtype) == (30, 576, "q8_0")
    assert vision.metadata["clip.vision.preproc_image_size"] == 1024
    assert json.loads((folder / "edge_vl_made.json").read_text())["num_parameters"] == 256_484_928


def test_an_unknown_shape_is_a_usage_error(cli: RunCli, tmp_path: Path) -> None:
    done = cli("models", "make", "smolvlm-300m", "--output", str(tmp_path / "model"))
    assert done.code == 2
    assert "did you mean 'smolvlm-" in done.err
    assert not list(tmp_path.iterdir())


def test_an_unknown_dtype_is_a_usage_error(cli: RunCli, tmp_path: Path) -> None:
    done = cli("models", "make", "smolvlm-256m", "--dtypes", "int3", "--output", str(tmp_path / "model"))
    assert done.code == 2
    assert "unknown dtype 'int3'; known: fp32, f16, q8_0, q4_0" in done.err
