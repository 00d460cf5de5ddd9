"""What a decoder graph takes and gives, read from the graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edge_vl.errors import ModelError
from edge_vl_onnxruntime.session import Session

__all__ = ["COUNTS", "FLOAT_TYPES", "PAST", "PRESENT", "ROLES", "DecoderGraph", "read_decoder_graph"]

FLOAT_TYPES: Mapping[str, type[np.float32] | type[np.float16]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
}
_INTEGER_TYPES: Mapping[str, type[np.int64] | type[np.int32]] = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
PAST = re.compile(r"past(?:_key_values)?[._](\d+)[._](?:decoder[._])?(key|value)")
"""Name of a cache input."""

PRESENT = re.compile(r"present(?:_key_values)?[._](\d+)[._](?:decoder[._])?(key|value)")
"""Name of a cache output."""

COUNTS = ("num_logits_to_keep", "logits_to_keep")
"""Inputs that say for how many rows logits are wanted."""

_TOTALS = ("total_sequence_length",)
_PASTS = ("past_sequence_length", "past_seq_len")
_SEQLENS = ("seqlens_k",)
_MAX_SIZE = 1 << 24  # of any dimension
_POSITIONS = ("position_ids", "cache_position")
ROLES = {
    "inputs_embeds": "embeds",
    "attention_mask": "mask",
    "use_cache_branch": "branch",
    **dict.fromkeys(COUNTS, "count"),
    **dict.fromkeys(_TOTALS, "total"),
    **dict.fromkeys(_PASTS, "past"),
    **dict.fromkeys(_SEQLENS, "seqlens"),
    **dict.fromkeys(_POSITIONS, "positions"),
}
"""What to put into an input of this name."""


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """One input that is not part of the cache.

    Attributes:
        name: in the graph.
        role: what to put there: embeds, mask, positions, count, total, past, seqlens or branch.
        dtype: NumPy type.
        rank: number of dimensions.
    """

    name: str
    role: str
    dtype: Any
    rank: int


@dataclass(frozen=True, slots=True, eq=False)
class DecoderGraph:
    """Names, types and sizes.

    Attributes:
        embeds: the input of embeddings.
        others: every further input that is not part of the cache.
        past_names: cache inputs, layer by layer, key before value.
        present_names: cache outputs in the same order.
        cache_dtype: of keys and values.
        num_layers: decoder layers.
        num_kv_heads: key/value heads.
        head_dim: width of a head.
        hidden_size: width of an embedding.
        vocab_size: length of a row of logits.
        logits: name of that output.
        keeps_one: it can be asked for the last row only.
    """

    embeds: Input
    others: tuple[Input, ...]
    past_names: tuple[str, ...]
    present_names: tuple[str, ...]
    cache_dtype: Any
    num_layers: int
    num_kv_heads: int
    head_dim: int
    hidden_size: int
    vocab_size: int
    logits: str
    keeps_one: bool


def read_decoder_graph(session: Session, text_config: Mapping[str, Any]) -> DecoderGraph:
    """Read a decoder's inputs and outputs.

    Args:
        session: the loaded decoder.
        text_config: fills in sizes that the graph leaves open.

    Raises:
        ModelError: an input is unknown, missing, or of a type that is not understood.
    """
    past: dict[tuple[int, str], Any] = {}
    others: list[Input] = []
    unknown: list[str] = []
    for node in session.native.get_inputs():
        if match := PAST.fullmatch(node.name):
            past[int(match[1]), match[2]] = node
        elif node.name in ROLES:
            others.append(_input(session, node))
        else:
            unknown.append(f"{node.name} {node.type}{node.shape}")
    outputs = {node.name: node for node in session.native.get_outputs()}
    present = {(int(match[1]), match[2]): name for name in outputs if (match := PRESENT.fullmatch(name))}
    embeds = next((entry for entry in others if entry.role == "embeds"), None)
    layers = len(past) // 2
    wanted = [(layer, kind) for layer in range(layers) for kind in ("key", "value")]
    if embeds is None or embeds.rank != 3:
        raise _mismatch(session, "has no input inputs_embeds of rank 3; a decoder over input_ids takes no pictures")
    if unknown:
        raise _mismatch(session, f"needs inputs that are not known here: {', '.join(unknown)}")
    if not past or sorted(past) != wanted or sorted(present) != wanted:
        raise _mismatch(
            session,
            f"does not pair its cache: inputs {_names(past)}, outputs {_names(present)}; "
            "export it with past_key_values.N.key/value and present.N.key/value",
        )
    if "logits" not in outputs:
        raise _mismatch(session, f"has no output logits; it has {', '.join(outputs)}")
    first = past[0, "key"]
    cache_types = {node.type for node in past.values()}
    if len(cache_types) != 1 or first.type not in FLOAT_TYPES or len(first.shape) != 4:
        raise _mismatch(
            session, f"has a cache of type {', '.join(sorted(cache_types))}{first.shape}, not float[b,h,n,d]"
        )
    heads = text_config.get("num_attention_heads")
    kv_heads = _size(session, first.shape[1], "key/value heads", text_config.get("num_key_value_heads", heads))
    hidden = _size(session, _shape_of(session, embeds.name)[-1], "hidden size", text_config.get("hidden_size"))
    head_dim = text_config.get("head_dim") or (hidden // heads if isinstance(heads, int) and heads else None)
    return DecoderGraph(
        embeds=embeds,
        others=tuple(entry for entry in others if entry is not embeds),
        past_names=tuple(past[key].name for key in wanted),
        present_names=tuple(present[key] for key in wanted),
        cache_dtype=FLOAT_TYPES[first.type],
        num_layers=layers,
        num_kv_heads=kv_heads,
        head_dim=_size(session, first.shape[3], "head width", head_dim),
        hidden_size=hidden,
        vocab_size=_size(session, outputs["logits"].shape[-1], "vocabulary", text_config.get("vocab_size")),
        logits="logits",
        keeps_one=any(entry.role == "count" for entry in others),
    )


def _input(session: Session, node: Any) -> Input:
    """Check the type and rank of an input with a known name."""
    role = ROLES[node.name]
    types: Mapping[str, Any] = {"embeds": FLOAT_TYPES, "branch": {"tensor(bool)": np.bool_}}.get(role, _INTEGER_TYPES)
    if node.type not in types:
        raise _mismatch(session, f"has an input {node.name} of type {node.type}, not {' or '.join(types)}")
    rank = len(node.shape)
    if role == "positions" and rank > 2:
        raise _mismatch(session, f"has an input {node.name} of rank {rank} (M-RoPE), which is not supported")
    return Input(node.name, role, types[node.type], rank)


def _shape_of(session: Session, name: str) -> Sequence[Any]:
    return next(node.shape for node in session.native.get_inputs() if node.name == name)


def _size(session: Session, dimension: object, what: str, fallback: object) -> int:
    """Return a dimension that is a number in the graph, or else in the configuration."""
    for candidate in (dimension, fallback):
        if isinstance(candidate, int) and not isinstance(candidate, bool) and 0 < candidate <= _MAX_SIZE:
            return candidate
    raise _mismatch(
        session, f"leaves its {what} open ({dimension}) and config.json does not say it in a way that makes sense"
    )


def _names(entries: Mapping[tuple[int, str], object]) -> str:
    return ", ".join(f"{layer}.{kind}" for layer, kind in sorted(entries)) or "none"


def _mismatch(session: Session, text: str) -> ModelError:
    return ModelError(f"{session.path} {text}", file=str(session.path))
