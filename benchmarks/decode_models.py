"""One language model of SmolLM2-135M's shape in every form that `kv-decode` compares, made once and kept.

All forms have the same random weights: a plain export and a graph around `GroupQueryAttention`, each in float32 and
with 4-bit weights, and GGUF files for llama.cpp. The head is the token embedding; the vocabulary is SmolVLM's, 128
entries longer than SmolLM2's. The context is longer than the real model's, so that 32k entries fit.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.progress import report
from edge_vl.environment import cache_dir
from edge_vl.made_models.shapes import ModelShape, find_shape

__all__ = ["CONTEXT_LENGTH", "GGUF_PRECISIONS", "WEIGHTS", "DecodeModels", "decode_models", "make_decode_models"]

CONTEXT_LENGTH = 33_792
WEIGHTS = ("fp32", "q4")
"""Precisions of the ONNX files, as the engine calls them."""

GGUF_PRECISIONS = {"fp32": "f16", "q4": "q4_0"}
"""What llama.cpp computes with beside each of them: it is used with half precision where others have single."""

_BLOCK = 32  # weights that share a scale, as in q4_0
_ACCURACY_LEVEL = 4  # activations in 8 bits: ONNX Runtime's fastest
_SMALL_LAYERS = 4


@dataclass(frozen=True, slots=True)
class DecodeModels:
    """Folders of one model.

    Attributes:
        plain: with the plain export, `gguf/` in it.
        gqa: with the graph around `GroupQueryAttention`.
    """

    plain: Path
    gqa: Path

    def gguf(self, weights: str) -> Path:
        """Return llama.cpp's file beside ONNX files of a precision."""
        return self.plain / "gguf" / f"text-{GGUF_PRECISIONS[weights]}.gguf"

    def config(self) -> dict[str, Any]:
        """Return the `text_config` of the model."""
        text: dict[str, Any] = json.loads((self.plain / "config.json").read_text(encoding="utf-8"))["text_config"]
        return text


def decode_models(*, is_small: bool = False) -> DecodeModels:
    """Return the models; makes them if they are not there.

    Args:
        is_small: four layers instead of thirty, to try things out.

    Raises:
        ModelError: they cannot be made.
    """
    base = find_shape("smolvlm-256m")
    layers = _SMALL_LAYERS if is_small else base.text.num_layers
    text = dataclasses.replace(base.text, num_layers=layers, is_tied=True, max_positions=CONTEXT_LENGTH)
    folder = cache_dir() / "made" / f"smollm2-135m-decode-{layers}"
    if not folder.is_dir():
        report(f"making {folder}: every form of the model, once")
        place = folder.with_name(f".{folder.name}.part")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        make_decode_models(dataclasses.replace(base, text=text), place)
        place.rename(folder)
    return DecodeModels(folder / "plain", folder / "gqa")


def make_decode_models(shape: ModelShape, folder: Path) -> DecodeModels:
    """Write every form of a model into a folder.

    Args:
        shape: of the family `idefics3`; its vision encoder is not made.
        folder: is there.

    Raises:
        ModelError: a package is missing.
    """
    from benchmarks.gqa_graph import gqa_decoder
    from edge_vl.made_models.configuration import write_configurations
    from edge_vl.made_models.idefics3_gguf import write_text
    from edge_vl.made_models.idefics3_onnx import decoder, embed_tokens
    from edge_vl.made_models.parameters import idefics3_parameters
    from edge_vl.made_models.smollm2_tokenizer import smollm2_file, smolvlm_tokenizer
    from edge_vl.made_models.weights import RandomWeights

    models = DecodeModels(folder / "plain", folder / "gqa")
    tokenizer = smolvlm_tokenizer(smollm2_file())
    for place, build in ((models.plain, decoder), (models.gqa, gqa_decoder)):
        (place / "onnx").mkdir(parents=True)
        config = write_configurations(place, shape, tokenizer)
        weights = RandomWeights(idefics3_parameters(config))
        embed_tokens(weights, config).save(place / "onnx" / "embed_tokens.onnx")
        graph = place / "onnx" / "decoder_model_merged.onnx"
        build(weights, config).save(graph)
        _quantize(graph, place / "onnx" / "decoder_model_merged_q4.onnx")
    (models.plain / "gguf").mkdir()
    for precision in GGUF_PRECISIONS.values():
        title = f"{shape.name}, random weights"
        write_text(models.plain / "gguf" / f"text-{precision}.gguf", title, weights, config, models.plain, precision)
    return models


def _quantize(source: Path, target: Path) -> None:
    """Write a graph with all matrices in 4 bits, 32 weights to a scale, symmetric."""
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    logging.getLogger().setLevel(logging.WARNING)  # the import above has every node reported
    quantizer = MatMulNBitsQuantizer(
        onnx.load(source), block_size=_BLOCK, is_symmetric=True, accuracy_level=_ACCURACY_LEVEL
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(target), use_external_data_format=False)
