"""The language lane: the whole decoder graph, run with bound buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import KVCache, LanguageSpec, Prefillable, Tokenizer
from edge_vl.errors import EngineFault
from edge_vl_onnxruntime.decoder_feeds import DecoderFeeds
from edge_vl_onnxruntime.decoder_graph import DecoderGraph
from edge_vl_onnxruntime.embedding import Embedding
from edge_vl_onnxruntime.kv_cache import BoundKVCache, GrowingKVCache, SharedKVCache
from edge_vl_onnxruntime.prompt_rows import check_ids, check_room, embed_run, fault, finite_row
from edge_vl_onnxruntime.session import ENGINE, Session, import_onnxruntime

__all__ = ["MAX_ROWS", "OnnxLanguageModel"]

MAX_ROWS = 512
"""Rows of one run. A longer prompt goes in by several runs, which bounds the memory of a run's activations and, where
a graph computes logits for every row, of those."""

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
        self._feeds = DecoderFeeds(spec.context_length)
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
        check_room(self._spec, own, "prefill", sum(part.num_tokens for part in run))
        logits = None
        try:
            embeds = embed_run(run, self._embedding, self._spec, self._graph.embeds.dtype)
            num_rows = embeds.shape[1]
            for start in range(0, num_rows, MAX_ROWS):
                piece = embeds[:, start : start + MAX_ROWS]
                logits = self._run(own, piece, want_logits and start + MAX_ROWS >= num_rows)
        except Exception as error:
            own.trim(before)
            raise fault("prefill", error) from error
        return logits

    def decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        """Append one token; see `edge_vl.engine.LanguageModel`."""
        own = self._own(cache, "decode")
        before = own.num_tokens
        check_room(self._spec, own, "decode", 1)
        check_ids(self._spec, "decode", (token_id,))
        try:
            logits = self._run(own, self._embedding.one(token_id), True)
        except Exception as error:
            own.trim(before)
            raise fault("decode", error) from error
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
            feeds.append(self._feeds.value(entry, cache.num_tokens, num_rows))
            binding.bind_cpu_input(entry.name, feeds[-1])
        session.native.run_with_iobinding(binding)
        logits: NDArray[np.float32] | None = None
        if want_logits:
            row = self._row[0, 0] if has_one_row else binding.get_outputs()[0].numpy()[0, -1]
            logits = finite_row(row)
        cache.commit(num_rows)
        return logits
