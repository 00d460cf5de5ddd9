"""How large a made model's files become."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from edge_vl.made_models.weights import Shape

__all__ = ["DTYPES", "VISION_PRECISIONS", "expected_bytes", "num_passes"]

DTYPES = ("fp32", "f16", "q8_0", "q4_0")
"""`fp32` means the ONNX files; the others are GGUF files."""

VISION_PRECISIONS = ("f16", "q8_0")
"""In which there is a vision encoder as GGUF."""

_SMALL_FILES_BYTES = 32 * 2**20  # tokenizers and the like
_BITS = {"fp32": 32, "f16": 16, "q8_0": 8.5, "q4_0": 4.5}
_BLOCK = 32
_TEXT_PREFIXES = ("model.text_model.", "lm_head.", "blk.", "token_embd.", "output")
_VOCABULARY_PREFIXES = ("model.text_model.embed_tokens.", "lm_head.", "token_embd.")


def expected_bytes(parameters: Mapping[str, Shape], dtypes: Sequence[str]) -> int:
    """Return how large the files of a model will be, a little too much rather than too little."""
    total = float(_SMALL_FILES_BYTES)
    for name, size in parameters.items():
        for dtype in dtypes:
            if _is_in(name, dtype):
                total += math.prod(size) * _bits(name, size, dtype) / 8
    return int(total)


def _is_in(name: str, dtype: str) -> bool:
    return dtype != "q4_0" or name.startswith(_TEXT_PREFIXES)


def _bits(name: str, size: Shape, dtype: str) -> float:
    """Return the bits of a value, never too few."""
    if len(size) != 2:
        return 32
    if size[-1] % _BLOCK:
        return max(16, _BITS[dtype])
    is_vocabulary = name.startswith(_VOCABULARY_PREFIXES)  # the head has eight bits in a file of four
    return _BITS["q8_0"] if dtype == "q4_0" and is_vocabulary else _BITS[dtype]


def num_passes(name: str, dtypes: Sequence[str]) -> int:
    """Return in how many of the files a parameter is written, as far as dtypes tell them apart."""
    return sum(_is_in(name, dtype) for dtype in dtypes)
