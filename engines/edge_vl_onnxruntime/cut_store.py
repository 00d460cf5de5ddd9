"""What is known about a decoder's cut, kept from one load to the next: its pieces, or why it runs whole.

An entry is one file in the cache folder, named after the graph's identity and everything that made it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from edge_vl.kv_policy import guarded_layers
from edge_vl_onnxruntime.graph_cut import CutAttention, CutGraph, CutRope, Operand, Piece
from edge_vl_onnxruntime.session import ENGINE, Session, import_onnxruntime

__all__ = ["CutStore", "ProvenCut"]

_ENTRIES_KEPT = 32
_END_BYTES = 1 << 20


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


class CutStore:
    """The entry of one decoder."""

    def __init__(self, root: Path | None, path: Path, text_config: Mapping[str, Any], isa: str) -> None:
        """Name the entry.

        Args:
            root: the cache folder; None: nothing is kept.
            path: the graph.
            text_config: what the cutter is told besides.
            isa: the kernels that the proof runs on.
        """
        self._path = path.resolve()
        self._file = None if root is None else root / ENGINE / f"cut-{_digest(self._path, text_config, isa)}.npz"

    def load(self) -> ProvenCut | str | None:
        """Return a proven cut, or why the graph runs whole; None if that is not known."""
        if self._file is None:
            return None
        try:
            with np.load(io.BytesIO(self._file.read_bytes()), allow_pickle=False) as entry:
                arrays = dict(entry.items())
            facts = json.loads(arrays["facts"].tobytes())
            if "reason" in facts:
                return str(facts["reason"])
            return _read(facts, arrays, self._path)
        except Exception:  # not there, not whole, or of another time: it is made again
            return None

    def reason(self) -> str | None:
        """Return why the graph runs whole, empty if it is proven that it need not; None if that is not known."""
        known = self.load()
        return "" if isinstance(known, ProvenCut) else known

    def save(self, known: ProvenCut | str) -> None:
        """Keep a proven cut, or why the graph runs whole. What cannot be written is found out again next time."""
        if self._file is None:
            return
        arrays: dict[str, NDArray[Any]] = {}
        facts = {"reason": known} if isinstance(known, str) else _describe(known, arrays)
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        aside = ""
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(prefix=".cut-", dir=self._file.parent, delete=False) as file:
                aside = file.name
                np.savez(file, allow_pickle=False, **arrays)
            Path(aside).replace(self._file)
            aside = ""
            for old in sorted(self._file.parent.glob("cut-*.npz"), key=_age, reverse=True)[_ENTRIES_KEPT:]:
                old.unlink()
        if aside:
            with contextlib.suppress(OSError):
                Path(aside).unlink()

    def forget(self) -> None:
        """Remove the entry."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _digest(path: Path, text_config: Mapping[str, Any], isa: str) -> str:
    """Hash what the file is, by its name, size, time and ends, and what reads it."""
    digest = hashlib.blake2b(digest_size=12)
    version = import_onnxruntime().__version__
    digest.update(f"{version}|{isa}|{json.dumps(text_config, sort_keys=True, default=str)}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    for part in sorted(path.parent.glob(f"{path.name}*")):
        state = part.stat()
        digest.update(f"|{part}|{state.st_size}|{state.st_mtime_ns}|".encode())
        with part.open("rb") as file:
            digest.update(file.read(_END_BYTES))
            file.seek(max(0, state.st_size - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return digest.hexdigest()


def _describe(known: ProvenCut, arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
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


_PLAIN = ("layer", "context", "num_query_heads", "num_kv_heads", "head_dim", "scale")
_OPERANDS = ("query", "key", "value")


def _read(facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], path: Path) -> ProvenCut:
    """Return what `_describe` was given."""
    ropes: dict[int, CutRope] = {}
    attentions = []
    for entry in facts["attentions"]:
        number = entry["rope"]
        if number is not None and number not in ropes:
            ropes[number] = CutRope(arrays[f"cosines_{number}"], arrays[f"sines_{number}"], entry["is_interleaved"])
        operands = (
            Operand(text, np.dtype(dtype), layout, offset)
            for text, dtype, layout, offset in (entry[name] for name in _OPERANDS)
        )
        layer, context, num_query_heads, num_kv_heads, head_dim, scale = (entry[name] for name in _PLAIN)
        query, key, value = operands
        attentions.append(
            CutAttention(
                layer=layer,
                query=query,
                key=key,
                value=value,
                context=context,
                context_dtype=np.dtype(entry["context_dtype"]),
                num_query_heads=num_query_heads,
                num_kv_heads=num_kv_heads,
                head_dim=head_dim,
                scale=scale,
                rope=None if number is None else ropes[number],
            )
        )
    cut = CutGraph(
        pieces=tuple(
            Piece(arrays[f"piece_{number}"].tobytes(), tuple(inputs), tuple(outputs))
            for number, (inputs, outputs) in enumerate(facts["pieces"])
        ),
        attentions=tuple(attentions),
        constants={name: arrays[f"constant_{number}"] for number, name in enumerate(facts["constants"])},
        folder=Path(facts["folder"]),
        positions=facts["positions"],
        shares_scales=facts["shares_scales"],
    )
    described = _Described([_Node(*node) for node in facts["inputs"]], [_Node(*node) for node in facts["outputs"]])
    return ProvenCut(
        cut, Session(described, path, facts["device"], facts["threads"]), tuple(map(tuple, facts["key_errors"]))
    )
