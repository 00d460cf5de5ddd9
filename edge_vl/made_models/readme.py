"""The README of a made model: that it knows nothing, and how it was made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge_vl.made_models.shapes import ModelShape

__all__ = ["readme"]


def readme(shape: ModelShape, facts: Mapping[str, Any]) -> str:
    """Write the README of a made model's folder.

    Args:
        shape: what was made.
        facts: `num_parameters`, `seed`, `edge_vl` (its version), `tokenizer` (where it comes from), `dtypes`.
    """
    text, vision = shape.text, shape.vision
    option = f" --longest-edge {shape.longest_edge}" if shape.longest_edge else ""
    edge = f", longest edge {shape.longest_edge}" if shape.longest_edge else ""
    lines = (
        f"# {shape.name}: random weights",
        "",
        f"**This model knows nothing.** Its weights are random numbers; its dimensions are those of {shape.name}.",
        "It is for timing and for memory: how long a step takes does not depend on the values. "
        "Its answers mean nothing.",
        "",
        f"Made by `edge-vl models make {shape.name}{option} --seed {facts['seed']}`, edge_vl {facts['edge_vl']}.",
        "",
        f"- Parameters: {facts['num_parameters']:,}",
        f"- Text: {text.num_layers} layers, {text.hidden_size} wide, {text.num_heads} heads"
        f" ({text.num_kv_heads} for keys and values), feed-forward {text.ffn_size}, vocabulary {text.vocab_size}, "
        + ("head tied to the embedding" if text.is_tied else "head of its own"),
        f"- Vision: {vision.num_layers} layers, {vision.hidden_size} wide, {vision.num_heads} heads,"
        f" feed-forward {vision.ffn_size}, tiles of {vision.tile_side} pixels of {vision.tokens_per_tile} tokens{edge}",
        f"- Tokenizer: {facts['tokenizer']}",
        f"- Files: {_files(facts['dtypes'])}",
    )
    return "\n".join(lines) + "\n"


def _files(dtypes: Sequence[str]) -> str:
    """Say what lies where."""
    precisions = [dtype for dtype in dtypes if dtype != "fp32"]
    places = ["`onnx/` in the Hugging Face export layout (fp32)"] if "fp32" in dtypes else []
    if precisions:
        places.append(f"`gguf/` for llama.cpp, text model and vision encoder (mmproj) in {', '.join(precisions)}")
    return "; ".join(places)
