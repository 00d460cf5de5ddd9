"""The proof that a cut decoder computes what the whole one does: both are given the same rows.

From an empty cache on: more rows than a block has, and one more token. Behind a long made-up past: a few rows, and one
more token. The two tokens of the cut go in together, which tries a batch, too. What is seen at positions that are not
tried here is not left to this proof: masks are tried by the cutter, and turning by the kernels' own tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import EdgeVLError
from edge_vl.plan import TextChunk
from edge_vl_kernels.kv import KVKernels
from edge_vl_kernels.kv_format import BLOCK_ENTRIES
from edge_vl_onnxruntime.cut_language import CutLanguageModel, SequenceRun
from edge_vl_onnxruntime.decoder_feeds import DecoderFeeds
from edge_vl_onnxruntime.decoder_graph import DecoderGraph
from edge_vl_onnxruntime.embedding import Embedding
from edge_vl_onnxruntime.graph_cut import CannotCut
from edge_vl_onnxruntime.paged_cache import PagedKVCache
from edge_vl_onnxruntime.session import Session

__all__ = ["Exercise", "make_exercise", "prove", "solve_whole"]

_NUM_ROWS = BLOCK_ENTRIES + 11
_NUM_LATE_ROWS = 5
_MAX_PAST = 4096
_PAST_BYTES = 48 << 20  # of made-up entries; the whole graph holds them twice

Solution = tuple[NDArray[np.float32], ...]
"""Logits after the rows and after the token, from an empty cache and behind the past."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """What both are given.

    Attributes:
        token_ids: the rows from an empty cache, and one more token.
        past: made-up entries.
        late_token_ids: the rows behind them, and one more token; none where the context is too short for any.
    """

    token_ids: tuple[int, ...]
    past: int
    late_token_ids: tuple[int, ...]

    @property
    def num_entries(self) -> int:
        """Entries of the longer sequence."""
        return max(len(self.token_ids), self.past + len(self.late_token_ids))


def make_exercise(graph: DecoderGraph, vocab_size: int, context_length: int) -> Exercise:
    """Choose rows that fit into the context.

    Args:
        graph: of the decoder.
        vocab_size: ids of its tokenizer.
        context_length: entries that it takes.
    """
    random = np.random.default_rng(1)
    ids = [int(token) for token in random.integers(0, vocab_size, _NUM_ROWS + 1 + _NUM_LATE_ROWS + 1)]
    first = min(_NUM_ROWS + 1, context_length)
    entry_bytes = 2 * graph.num_layers * graph.num_kv_heads * graph.head_dim * 4
    past = min(_MAX_PAST, context_length - _NUM_LATE_ROWS - 1, _PAST_BYTES // entry_bytes)
    if past <= _NUM_ROWS:
        return Exercise(tuple(ids[:first]), 0, ())
    return Exercise(tuple(ids[:first]), past, tuple(ids[_NUM_ROWS + 1 :]))


def solve_whole(exercise: Exercise, decoder: Session, graph: DecoderGraph, embedding: Embedding) -> Solution:
    """Return what the whole graph computes.

    Raises:
        Exception: the backend's own errors share no base class.
    """
    feeds = DecoderFeeds(exercise.num_entries)

    def run(token_ids: tuple[int, ...], values: list[NDArray[Any]]) -> tuple[NDArray[np.float32], list[NDArray[Any]]]:
        past, num_rows = values[0].shape[2], len(token_ids)
        inputs: dict[str, Any] = {graph.embeds.name: embedding.many(token_ids)}
        inputs.update({entry.name: feeds.value(entry, past, num_rows) for entry in graph.others})
        inputs.update(zip(graph.past_names, values, strict=True))
        logits, *presents = decoder.native.run([graph.logits, *graph.present_names], inputs)
        return logits[0, -1].astype(np.float32), presents

    found: list[NDArray[np.float32]] = []
    for token_ids, past in ((exercise.token_ids, 0), (exercise.late_token_ids, exercise.past)):
        if token_ids:
            values = [
                rows.transpose(1, 0, 2)[None].astype(graph.cache_dtype)
                for layer in range(graph.num_layers)
                for rows in _made_up(graph, layer, past)
            ]
            for part in filter(None, (token_ids[:-1], token_ids[-1:])):
                logits, values = run(part, values)
                found.append(logits)
    return tuple(found)


def prove(
    model: CutLanguageModel, exercise: Exercise, expected: Solution, graph: DecoderGraph, tolerance: float
) -> float:
    """Compare what a cut decoder computes.

    Args:
        model: the cut decoder.
        exercise: what it is given.
        expected: what the whole graph computes.
        graph: of the decoder.
        tolerance: largest relative difference (L2) of the logits.

    Returns:
        The largest difference that was found.

    Raises:
        CannotCut: it is too large, or the cut decoder does not work.
    """
    caches: list[PagedKVCache] = []
    try:
        found = _solve(model, exercise, graph, caches)
    except EdgeVLError as error:
        raise CannotCut(f"cut at its attention it does not work: {error}") from error
    finally:
        for cache in caches:
            cache.close()
    differences = [
        float(np.linalg.norm(one - other)) / max(float(np.linalg.norm(other)), 1e-30)
        for one, other in zip(found, expected, strict=True)
    ]
    worst = max(differences)
    if not worst <= tolerance:
        raise CannotCut(f"cut at its attention it computes something else: logits differ by {worst:.1e} of their norm")
    return worst


def _solve(model: CutLanguageModel, exercise: Exercise, graph: DecoderGraph, caches: list[PagedKVCache]) -> Solution:
    rows: list[NDArray[np.float32] | None] = []
    tokens: list[SequenceRun] = []
    for token_ids, past in ((exercise.token_ids, 0), (exercise.late_token_ids, exercise.past)):
        if token_ids:
            cache = model.new_cache()
            caches.append(cache)
            if past:
                _append_made_up(model, cache, graph, past)
            rows.append(model.prefill(cache, [TextChunk(token_ids[:-1], past)]) if len(token_ids) > 1 else None)
            tokens.append(SequenceRun(cache, [TextChunk(token_ids[-1:], cache.next_position)]))
    both = zip(rows, model.forward(tokens), strict=True)
    return tuple(logits for pair in both for logits in pair if logits is not None)


def _append_made_up(model: CutLanguageModel, cache: PagedKVCache, graph: DecoderGraph, count: int) -> None:
    """Append made-up entries, which nothing turns."""
    kernels = KVKernels(model.kernels.cache_format, scale=model.kernels.scale, isa=model.kernels.isa)
    try:
        step = kernels.step([cache.begin(count)])
        try:
            for layer in range(graph.num_layers):
                keys, values = _made_up(graph, layer, count)
                step.run(layer, kernels.rows(None, keys, values, None))
        except BaseException:
            cache.abort()
            raise
        cache.commit()
    finally:
        kernels.close()


def _made_up(graph: DecoderGraph, layer: int, count: int) -> NDArray[np.float32]:
    """Return keys and values, float32 (2, count, num_kv_heads, head_dim), always the same."""
    random = np.random.default_rng(layer)
    shape = (2, count, graph.num_kv_heads, graph.head_dim)
    return random.standard_normal(shape, np.float32).astype(graph.cache_dtype).astype(np.float32)
