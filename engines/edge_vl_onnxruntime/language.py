"""The language lane: the whole decoder graph, run with bound buffers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import ImageEmbeds, KVCache, LanguageSpec, Prefillable, Tokenizer
from edge_vl.errors import EngineFault
from edge_vl.plan import TextChunk
from edge_vl_onnxruntime.decoder_graph import DecoderGraph, Input
from edge_vl_onnxruntime.embedding import Embedding
from edge_vl_onnxruntime.kv_cache import BoundKVCache, GrowingKVCache, SharedKVCache
from edge_vl_onnxruntime.session import ENGINE, Session, import_onnxruntime, reason

__all__ = ["MAX_ROWS", "RAMP_BYTES", "OnnxLanguageModel"]

MAX_ROWS = 512
"""Rows of one run. A longer prompt goes in by several runs, which bounds the memory of a run's activations and, where
a graph computes logits for every row, of those."""

RAMP_BYTES = 24
"""Of the buffers of positions and of ones, for each position of the context."""

_CACHES = (GrowingKVCache, SharedKVCache)


class OnnxLanguageModel:
    """Embeddings and decoder of one model."""

    def __init__(
        self,
        decoder: Session,
        graph: DecoderGraph,
        embedding: Embedding,
        spec: LanguageSpec,
        tokenizer: Tokenizer,
        *,
        is_shared: bool,
    ) -> None:
        """Take loaded sessions.

        Args:
            decoder: the decoder's session.
            graph: what it takes and gives.
            embedding: token embeddings.
            spec: what to say about it.
            tokenizer: of the model.
            is_shared: the graph may write the cache in place.
        """
        self._decoder: Session | None = decoder
        self._graph = graph
        self._embedding = embedding
        self._spec = spec
        self._tokenizer = tokenizer
        self._cache_type: type[GrowingKVCache | SharedKVCache] = SharedKVCache if is_shared else GrowingKVCache
        # Bound buffers: the backend reads and writes them during a run, so they live as long as the model.
        length = spec.context_length
        self._ramps: dict[Any, NDArray[Any]] = {
            kind: np.arange(length + 1, dtype=kind) for kind in (np.int64, np.int32)
        }
        self._ones: dict[Any, NDArray[Any]] = {kind: np.ones((1, length), kind) for kind in (np.int64, np.int32)}
        self._flags = np.array([False, True])
        logits = next(node for node in decoder.native.get_outputs() if node.name == graph.logits)
        self._logits_dtype: Any = np.float16 if logits.type == "tensor(float16)" else np.float32
        self._row: NDArray[Any] = np.zeros((1, 1, graph.vocab_size), self._logits_dtype)
        self._row_value = import_onnxruntime().OrtValue.ortvalue_from_numpy(self._row)

    @property
    def spec(self) -> LanguageSpec:
        """What it is."""
        return self._spec

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def is_cache_shared(self) -> bool:
        """Whether the cache is written in place; otherwise every run returns a longer copy."""
        return self._cache_type is SharedKVCache

    def new_cache(self) -> KVCache:
        """Return an empty cache for one sequence."""
        return self._cache_type(self._open(), self._graph, self._spec.context_length)

    def prefill(
        self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True
    ) -> NDArray[np.float32] | None:
        """Append a run of consecutive chunks; see `edge_vl.engine.LanguageModel`."""
        own = self._own(cache, "prefill")
        before = own.num_tokens
        self._check_room(own, "prefill", sum(part.num_tokens for part in run))
        logits = None
        try:
            embeds = self._embed(run)
            num_rows = embeds.shape[1]
            for start in range(0, num_rows, MAX_ROWS):
                piece = embeds[:, start : start + MAX_ROWS]
                logits = self._run(own, piece, want_logits and start + MAX_ROWS >= num_rows)
        except Exception as error:
            own.trim(before)
            raise _fault("prefill", error) from error
        return logits

    def decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        """Append one token; see `edge_vl.engine.LanguageModel`."""
        own = self._own(cache, "decode")
        before = own.num_tokens
        self._check_room(own, "decode", 1)
        self._check_ids("decode", (token_id,))
        try:
            logits = self._run(own, self._embedding.one(token_id), True)
        except Exception as error:
            own.trim(before)
            raise _fault("decode", error) from error
        if logits is None:
            raise EngineFault(ENGINE, "decode", "no logits")
        return logits

    def close(self) -> None:
        """Give the memory back."""
        self._decoder = None
        self._embedding.close()

    def _open(self) -> Session:
        if self._decoder is None:
            raise EngineFault(ENGINE, "load", "the language model is closed")
        return self._decoder

    def _own(self, cache: KVCache, stage: str) -> BoundKVCache:
        """Refuse a cache that is closed or belongs to another model."""
        if self._decoder is None:
            raise EngineFault(ENGINE, stage, "the language model is closed")
        if not isinstance(cache, _CACHES) or cache.owner is not self._decoder:
            raise EngineFault(ENGINE, stage, "the cache belongs to another language model")
        if not cache.is_open:
            raise EngineFault(ENGINE, stage, "the cache is closed")
        return cache

    def _check_room(self, cache: BoundKVCache, stage: str, num_tokens: int) -> None:
        room = self._spec.context_length - cache.num_tokens
        if not 0 < num_tokens <= room:
            raise EngineFault(ENGINE, stage, f"{num_tokens} tokens where there is room for {room}")

    def _check_ids(self, stage: str, token_ids: Sequence[int]) -> None:
        if min(token_ids) < 0 or max(token_ids) >= self._spec.vocab_size:
            raise EngineFault(ENGINE, stage, f"a token id is outside the vocabulary of {self._spec.vocab_size}")

    def _embed(self, run: Sequence[Prefillable]) -> NDArray[Any]:
        """Return the embeddings of a run, (1, num_tokens, hidden_size); all its text is looked up in one call."""
        token_ids = [token_id for part in run if isinstance(part, TextChunk) for token_id in part.token_ids]
        hidden = self._graph.hidden_size
        embeds = np.empty((1, sum(part.num_tokens for part in run), hidden), self._graph.embeds.dtype)
        if token_ids:
            self._check_ids("prefill", token_ids)
            text = self._embedding.many(token_ids)[0]
        row = text_row = 0
        for part in run:
            end = row + part.num_tokens
            if isinstance(part, ImageEmbeds):
                if part.values.shape[1:] != (hidden,):
                    raise ValueError(f"image embeds of shape {part.values.shape} do not fit a width of {hidden}")
                embeds[0, row:end] = part.values
            else:
                embeds[0, row:end] = text[text_row : text_row + part.num_tokens]
                text_row += part.num_tokens
            row = end
        return embeds

    def _run(self, cache: BoundKVCache, embeds: NDArray[Any], want_logits: bool) -> NDArray[np.float32] | None:
        """Run the decoder once over (1, num_rows, hidden_size) and keep its cache if all went well."""
        session = self._open()
        num_rows = embeds.shape[1]
        binding = cache.binding
        has_one_row = num_rows == 1 or self._graph.keeps_one
        if has_one_row:
            binding.bind_ortvalue_output(self._graph.logits, self._row_value)
        else:
            binding.bind_output(self._graph.logits)
        cache.bind(num_rows)
        feeds = [embeds]  # a binding does not keep arrays alive
        binding.bind_cpu_input(self._graph.embeds.name, embeds)
        for entry in self._graph.others:
            feeds.append(self._feed(entry, cache.num_tokens, num_rows))
            binding.bind_cpu_input(entry.name, feeds[-1])
        session.native.run_with_iobinding(binding)
        logits: NDArray[np.float32] | None = None
        if want_logits:
            row = self._row[0, 0] if has_one_row else binding.get_outputs()[0].numpy()[0, -1]
            logits = _finite_row(row)
        cache.commit(num_rows)
        return logits

    def _feed(self, entry: Input, past: int, num_rows: int) -> NDArray[Any]:
        """Return the array for one input; a view of a buffer that lives as long as the model."""
        kind, role = entry.dtype, entry.role
        if role == "mask":
            return self._ones[kind][:, : past + num_rows]
        if role == "branch":
            return self._flags[int(past > 0) :][:1]
        if role == "positions":
            values = self._ramps[kind][past : past + num_rows]
            return values if entry.rank == 1 else values[None]
        value = {"count": 1, "total": past + num_rows, "past": past, "seqlens": past + num_rows - 1}[role]
        return self._ramps[kind][value : value + 1].reshape((1,) * entry.rank)


def _finite_row(row: NDArray[Any]) -> NDArray[np.float32]:
    """Copy a row of logits, and refuse NaN and infinity; minus infinity forbids a token and is fine."""
    logits = row.astype(np.float32)
    if not math.isfinite(logits.max()):
        raise ValueError("the logits are not finite")
    return logits


def _fault(stage: str, error: Exception) -> EngineFault:
    return error if isinstance(error, EngineFault) else EngineFault(ENGINE, stage, reason(error))
