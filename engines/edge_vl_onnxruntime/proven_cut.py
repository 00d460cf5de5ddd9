"""A cut that was proven, and what a file holds of it: facts that JSON can say, and arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edge_vl.kv_policy import guarded_layers
from edge_vl_onnxruntime.graph_cut import CutAttention, CutGraph, CutRope, Operand, Piece
from edge_vl_onnxruntime.session import Session

__all__ = ["ProvenCut", "describe_cut", "read_cut"]

_COUNTS = ("num_query_heads", "num_kv_heads", "head_dim")
_PLAIN = ("layer", "context", *_COUNTS, "scale")
_OPERANDS = ("query", "key", "value")
_FLOATS = ("float32", "float16")


class _Node(NamedTuple):
    """An input or output, as `onnxruntime.InferenceSession` describes it."""

    name: str
    type: str
    shape: list[Any]


@dataclass(frozen=True, slots=True)
class _Described:
    """What a whole graph takes and gives, without the graph."""

    inputs: list[_Node]
    outputs: list[_Node]

    def get_inputs(self) -> list[_Node]:
        return self.inputs

    def get_outputs(self) -> list[_Node]:
        return self.outputs


@dataclass(frozen=True, slots=True, eq=False)
class ProvenCut:
    """A cut that was proven.

    Attributes:
        cut: the pieces.
        decoder: describes the whole graph: what it takes and gives. It cannot run.
        key_errors: of each layer in 4 and in 8 bits, see `key_error.key_errors`; empty: not measured yet.
    """

    cut: CutGraph
    decoder: Session
    key_errors: tuple[tuple[float, ...], ...] = ()

    @property
    def guards(self) -> tuple[int, ...]:
        """Layers whose keys must not have 4 bits, once that is measured."""
        coarse, fine = self.key_errors
        return guarded_layers(coarse, guarded_errors=fine)

    @classmethod
    def of(cls, cut: CutGraph, decoder: Session) -> Self:
        """Describe a loaded decoder, which is not kept."""
        native = decoder.native
        nodes = (
            [_Node(node.name, node.type, list(node.shape)) for node in described]
            for described in (native.get_inputs(), native.get_outputs())
        )
        return cls(cut, dataclasses.replace(decoder, native=_Described(*nodes)))


def describe_cut(known: ProvenCut, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    """Return what JSON can say about a cut, and put everything else into `arrays`."""
    cut, native = known.cut, known.decoder.native
    ropes: dict[int, int] = {}
    attentions = []
    for attention in cut.attentions:
        facts: dict[str, Any] = {name: getattr(attention, name) for name in _PLAIN}
        facts["context_dtype"] = np.dtype(attention.context_dtype).name
        for name in _OPERANDS:
            operand: Operand = getattr(attention, name)
            facts[name] = [operand.name, np.dtype(operand.dtype).name, operand.layout, operand.offset]
        facts["rope"] = None
        if attention.rope is not None:  # all layers have the same as a rule
            number = facts["rope"] = ropes.setdefault(id(attention.rope.cosines), len(ropes))
            facts["is_interleaved"] = attention.rope.is_interleaved
            arrays[f"cosines_{number}"], arrays[f"sines_{number}"] = attention.rope.cosines, attention.rope.sines
        attentions.append(facts)
    for number, piece in enumerate(cut.pieces):
        arrays[f"piece_{number}"] = np.frombuffer(piece.graph, np.uint8)
    for number, values in enumerate(cut.constants.values()):
        arrays[f"constant_{number}"] = values
    return {
        "attentions": attentions,
        "pieces": [[piece.inputs, piece.outputs] for piece in cut.pieces],
        "constants": list(cut.constants),
        "folder": str(cut.folder),
        "positions": cut.positions,
        "shares_scales": cut.shares_scales,
        "inputs": [[node.name, node.type, node.shape] for node in native.get_inputs()],
        "outputs": [[node.name, node.type, node.shape] for node in native.get_outputs()],
        "device": known.decoder.device,
        "threads": known.decoder.threads,
        "key_errors": known.key_errors,
    }


def read_cut(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], path: Path) -> ProvenCut:
    """Return what `describe_cut` was given.

    Args:
        facts: what it returned.
        arrays: what it put there.
        path: the graph.

    Raises:
        ValueError: something is not as it writes it; so are KeyError, TypeError and IndexError.
    """
    ropes: dict[int, CutRope] = {}
    attentions = []
    for layer, entry in enumerate(facts["attentions"]):
        number = entry["rope"]
        if number is not None and number not in ropes:
            ropes[number] = _read_rope(entry, arrays[f"cosines_{number}"], arrays[f"sines_{number}"])
        attentions.append(_read_attention(layer, entry, None if number is None else ropes[number]))
    pieces = tuple(
        Piece(arrays[f"piece_{number}"].tobytes(), _names(inputs), _names(outputs))
        for number, (inputs, outputs) in enumerate(facts["pieces"])
    )
    _check(attentions and len(pieces) == len(attentions) + 1, "pieces")
    _check(isinstance(facts["shares_scales"], bool), "shares_scales")
    cut = CutGraph(
        pieces=pieces,
        attentions=tuple(attentions),
        constants={name: arrays[f"constant_{number}"] for number, name in enumerate(_names(facts["constants"]))},
        folder=Path(_text(facts["folder"])),
        positions=_text(facts["positions"]),
        shares_scales=facts["shares_scales"],
    )
    described = _Described(
        [_read_node(node) for node in facts["inputs"]], [_read_node(node) for node in facts["outputs"]]
    )
    decoder = Session(described, path, _text(facts["device"]), _number(facts["threads"]))
    key_errors = tuple(tuple(map(_real, errors)) for errors in facts["key_errors"])
    _check([len(errors) for errors in key_errors] in ([], [len(attentions)] * 2), "key_errors")
    return ProvenCut(cut, decoder, key_errors)


def _read_rope(entry: Mapping[str, Any], cosines: NDArray[Any], sines: NDArray[Any]) -> CutRope:
    _check(cosines.dtype == sines.dtype == np.float32, "type of a rope")
    _check(cosines.ndim == 2 and cosines.size and cosines.shape == sines.shape, "shape of a rope")
    _check(isinstance(entry["is_interleaved"], bool), "is_interleaved")
    return CutRope(cosines, sines, entry["is_interleaved"])


def _read_attention(layer: int, entry: Mapping[str, Any], rope: CutRope | None) -> CutAttention:
    _check(entry["layer"] == layer and math.isfinite(_real(entry["scale"])), "attention")
    num_query_heads, num_kv_heads, head_dim = (_number(entry[name]) for name in _COUNTS)
    query, key, value = (_read_operand(*entry[name]) for name in _OPERANDS)
    return CutAttention(
        layer=layer,
        query=query,
        key=key,
        value=value,
        context=_text(entry["context"]),
        context_dtype=_read_float(entry["context_dtype"]),
        num_query_heads=num_query_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        scale=entry["scale"],
        rope=rope,
    )


def _read_operand(name: str, dtype: str, layout: Any, offset: int) -> Operand:
    _check(layout in ("rows", "heads"), "layout")
    return Operand(_text(name), _read_float(dtype), layout, _number(offset, low=0))


def _read_float(name: str) -> np.dtype[Any]:
    _check(name in _FLOATS, "type of an operand")
    return np.dtype(name)


def _read_node(node: tuple[str, str, list[Any]]) -> _Node:
    name, kind, shape = node
    _check(all(isinstance(size, (int, str, type(None))) for size in shape), "shape")
    return _Node(_text(name), _text(kind), list(shape))


def _names(found: list[str]) -> tuple[str, ...]:
    _check(isinstance(found, list), "names")
    return tuple(map(_text, found))


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise ValueError(f"{found!r:.40} is no text")
    return found


def _number(found: object, low: int = 1) -> int:
    if type(found) is not int or found < low:
        raise ValueError(f"{found!r:.40} is no number from {low} on")
    return found


def _real(found: object) -> float:
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        raise ValueError(f"{found!r:.40} is no number")
    return found


def _check(is_right: object, what: str) -> None:
    if not is_right:
        raise ValueError(f"{what} is not as it was written")
