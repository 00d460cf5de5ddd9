"""A decoder graph run whole, and in pieces with attention in NumPy between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from edge_vl_onnxruntime.decoder_graph import PAST, PRESENT, ROLES
from edge_vl_onnxruntime.graph_cut import CutAttention, CutGraph, Operand

Array = NDArray[Any]


def open_graph(graph: bytes | Path, folder: Path) -> Any:
    """Load a graph with one thread; its weights lie in a folder."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    if isinstance(graph, bytes):
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    source = graph if isinstance(graph, bytes) else str(graph)
    return onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def dtype_of(entry: Any) -> Any:
    return {
        "tensor(float)": np.float32,
        "tensor(float16)": np.float16,
        "tensor(int64)": np.int64,
        "tensor(int32)": np.int32,
        "tensor(bool)": np.bool_,
    }[entry.type]


class WholeRun:
    """The graph as it is, for one sequence."""

    def __init__(self, path: Path) -> None:
        self.session = open_graph(path, path.parent)
        self.inputs = self.session.get_inputs()
        self.past: dict[str, Array] = {}
        self.length = 0
        for entry in self.inputs:
            if PAST.fullmatch(entry.name):
                shape = (1, entry.shape[1], 0, entry.shape[3])
                self.past[entry.name] = np.zeros(shape, dtype_of(entry))

    def step(self, embeds: Array) -> Array:
        """Append (rows, width) and return logits, float32 (rows, vocabulary)."""
        rows, past = len(embeds), self.length
        feeds: dict[str, Array] = dict(self.past)
        for entry in self.inputs:
            if entry.name not in feeds:
                feeds[entry.name] = graph_input(entry, embeds, np.arange(past, past + rows), past + rows)
        names = [entry.name for entry in self.session.get_outputs()]
        results = dict(zip(names, self.session.run(names, feeds), strict=True))
        present = {match.groups(): results[name] for name in names if (match := PRESENT.fullmatch(name))}
        for name in self.past:
            match = PAST.fullmatch(name)
            assert match is not None
            self.past[name] = present[match.groups()]
        self.length += rows
        logits: Array = results["logits"][0].astype(np.float32)
        return logits


def graph_input(entry: Any, embeds: Array, positions: Array, total: int) -> Array:
    """Return what goes into an input that is not part of the cache."""
    kind = dtype_of(entry)
    role = ROLES[entry.name]
    if role == "embeds":
        return embeds[None].astype(kind)
    if role == "mask":
        return np.ones((1, total), kind)
    if role == "branch":
        return np.array([True])
    if role == "positions":
        return positions.astype(kind).reshape((1, -1) if len(entry.shape) == 2 else (-1,))
    number = {"count": len(embeds), "total": total, "past": total - len(embeds), "seqlens": total - 1}[role]
    return np.full((1,) * len(entry.shape), number, kind)


class CutRun:
    """The pieces, with caches of any number of sequences."""

    def __init__(self, graph: CutGraph) -> None:
        self.graph = graph
        self.sessions = [open_graph(piece.graph, graph.folder) for piece in graph.pieces]

    def new_cache(self) -> list[tuple[Array, Array]]:
        """Return no keys and values, layer by layer."""
        return [
            (np.zeros((0, entry.num_kv_heads, entry.head_dim)), np.zeros((0, entry.num_kv_heads, entry.head_dim)))
            for entry in self.graph.attentions
        ]

    def step(self, parts: list[tuple[list[tuple[Array, Array]], Array]], last: list[int] | None = None) -> Array:
        """Append (rows, width) to each of several caches in one run.

        Args:
            parts: caches and their new rows.
            last: rows of the run that are to have logits; all of them.

        Returns:
            logits, float32 (rows, vocabulary).
        """
        embeds = np.concatenate([rows for _, rows in parts])
        positions = np.concatenate([np.arange(len(c[0][0]), len(c[0][0]) + len(rows)) for c, rows in parts])
        tensors: dict[str, Array] = dict(self.graph.constants)
        for place, (session, piece) in enumerate(zip(self.sessions, self.graph.pieces, strict=True)):
            is_last = place == len(self.graph.attentions)
            feeds = {}
            for entry in session.get_inputs():
                value = tensors.get(entry.name)
                if value is None:
                    value = graph_input(entry, embeds, positions, -1)
                if is_last and last is not None and "rows" in entry.shape:
                    value = np.take(value, last, entry.shape.index("rows"))
                feeds[entry.name] = value
            results = session.run(list(piece.outputs), feeds)
            tensors.update(zip(piece.outputs, results, strict=True))
            if not is_last:
                attention = self.graph.attentions[place]
                tensors[attention.context] = self.attend(attention, tensors, parts)
        logits: Array = tensors["logits"][0].astype(np.float32)
        return logits

    def attend(self, attention: CutAttention, tensors: dict[str, Array], parts: Any) -> Array:
        """Append keys and values and attend to them, in float64."""
        query, key, value = (
            read(tensors[operand.name], operand, heads, attention.head_dim)
            for operand, heads in (
                (attention.query, attention.num_query_heads),
                (attention.key, attention.num_kv_heads),
                (attention.value, attention.num_kv_heads),
            )
        )
        contexts, start = [], 0
        for cache, rows in parts:
            end = start + len(rows)
            keys, values = cache[attention.layer]
            past = len(keys)
            q, k = (turn(entry[start:end], past, attention) for entry in (query, key))
            keys, values = np.concatenate([keys, k]), np.concatenate([values, value[start:end]])
            cache[attention.layer] = keys, values
            contexts.append(attend(q, keys, values, attention.scale).reshape(end - start, -1))
            start = end
        context: Array = np.concatenate(contexts)[None].astype(attention.context_dtype)
        return context


def read(tensor: Array, operand: Operand, num_heads: int, head_dim: int) -> Array:
    """Return float64 (rows, heads, head_dim)."""
    assert tensor.dtype == operand.dtype
    if operand.layout == "heads":
        assert tensor.shape[:2] == (1, num_heads)
        rows = tensor[0].transpose(1, 0, 2)
    else:
        part = tensor[0, :, operand.offset : operand.offset + num_heads * head_dim]
        rows = part.reshape(len(part), num_heads, head_dim)
    return np.asarray(rows, np.float64)


def turn(rows: Array, past: int, attention: CutAttention) -> Array:
    """Turn (rows, heads, head_dim) by their positions, if the attention does that."""
    rope = attention.rope
    if rope is None:
        return rows
    cosines, sines = (table[past : past + len(rows), None] for table in (rope.cosines, rope.sines))
    half = cosines.shape[-1]
    turned = rows.copy()
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    if not rope.is_interleaved:
        first, second = slice(half), slice(half, 2 * half)
    turned[..., first] = rows[..., first] * cosines - rows[..., second] * sines
    turned[..., second] = rows[..., second] * cosines + rows[..., first] * sines
    return turned


def attend(query: Array, keys: Array, values: Array, scale: float) -> Array:
    """Attend causally; the last query stands where the last key does."""
    group = query.shape[1] // keys.shape[1]
    keys, values = np.repeat(keys, group, 1), np.repeat(values, group, 1)
    scores = scale * np.einsum("shd,thd->hst", query, keys)
    past = len(keys) - len(query)
    hidden = np.arange(len(keys)) > past + np.arange(len(query))[:, None]
    scores[:, hidden] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    context: Array = np.einsum("hst,thd->shd", shares, values)
    return context
