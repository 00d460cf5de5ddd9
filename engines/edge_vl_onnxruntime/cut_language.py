"""The language lane over a cut decoder: the pieces of its graph, and attention of our own over paged caches."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import KVCache, LanguageSpec, Prefillable, Tokenizer
from edge_vl.errors import EdgeVLError, EngineFault
from edge_vl_onnxruntime.cut_pass import BufferPlan, Buffers, CutPass, HeadPass, Observer
from edge_vl_onnxruntime.cut_sessions import CutSessions
from edge_vl_onnxruntime.embedding import Embedding
from edge_vl_onnxruntime.language import MAX_ROWS
from edge_vl_onnxruntime.page_pool import PagePool
from edge_vl_onnxruntime.paged_cache import PagedKVCache
from edge_vl_onnxruntime.prompt_rows import check_ids, check_room, embed_run, fault, finite_row, image_rows
from edge_vl_onnxruntime.session import ENGINE

if TYPE_CHECKING:
    from edge_vl.kv_error import KVErrors
    from edge_vl_kernels.kv import KVKernels
    from edge_vl_kernels.kv_format import CacheFormat

__all__ = ["CutLanguageModel", "SequenceRun"]

_PASSES_KEPT = 8
_HEADS_KEPT = 4


class SequenceRun(NamedTuple):
    """What one sequence gets in a batch.

    Attributes:
        cache: of the sequence.
        run: consecutive chunks.
        want_logits: whether the logits after the last token are wanted.
    """

    cache: KVCache
    run: Sequence[Prefillable]
    want_logits: bool = True


@dataclass(slots=True, eq=False)
class _Rows:
    """Rows that one sequence gets: embeddings (1, num_rows, hidden_size), which of them are image tokens."""

    cache: PagedKVCache
    embeds: NDArray[Any]
    is_image: NDArray[np.bool_] | bool
    want_logits: bool
    logits: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class _Part:
    """The rows `start` to `stop` of a sequence, which go into one pass."""

    rows: _Rows
    start: int
    stop: int

    @property
    def wants_logits(self) -> bool:
        return self.rows.want_logits and self.stop == self.rows.embeds.shape[1]


class CutLanguageModel:
    """Embeddings, pieces and kernels of one model.

    Attributes:
        observer: sees the queries, keys and values of every layer; None: nobody does.
        max_rows: of one pass; more go in by several.
    """

    def __init__(
        self,
        sessions: CutSessions,
        kernels: KVKernels,
        embedding: Embedding,
        spec: LanguageSpec,
        tokenizer: Tokenizer,
    ) -> None:
        """Take loaded parts.

        Args:
            sessions: the pieces.
            kernels: attention over the caches; closed with the model.
            embedding: token embeddings.
            spec: what to say about it.
            tokenizer: of the model.
        """
        self.observer: Observer | None = None
        self._sessions = sessions
        self._kernels = kernels
        self._embedding = embedding
        self._spec = spec
        self._tokenizer = tokenizer
        self.max_rows = MAX_ROWS
        self._is_open = True
        self._pool = PagePool()
        self._plan = BufferPlan(sessions)
        self._buffers = Buffers(self._plan, 0)
        self._passes: OrderedDict[int, CutPass] = OrderedDict()
        self._heads: OrderedDict[int, HeadPass] = OrderedDict()
        self._one_row: CutPass | None = CutPass(sessions, Buffers(self._plan, 1), kernels, 1)
        self._one_head: HeadPass | None = HeadPass(sessions, 1)
        self._ramp = np.arange(spec.context_length)

    @property
    def spec(self) -> LanguageSpec:
        """What it is."""
        return self._spec

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    @property
    def kernels(self) -> KVKernels:
        """What computes attention, and how caches are stored."""
        return self._kernels

    @property
    def pool(self) -> PagePool:
        """Where the pages of all caches come from."""
        return self._pool

    def new_cache(self) -> PagedKVCache:
        """Return an empty cache for one sequence."""
        if not self._is_open:
            raise EngineFault(ENGINE, "load", "the language model is closed")
        return PagedKVCache(
            self._pool, self._kernels, self._kernels.cache_format, self._kernels, self._spec.context_length
        )

    def prefill(
        self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True
    ) -> NDArray[np.float32] | None:
        """Append a run of consecutive chunks; see `edge_vl.engine.LanguageModel`."""
        return self.forward([SequenceRun(cache, run, want_logits)])[0]

    def decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        """Append one token; see `edge_vl.engine.LanguageModel`."""
        own = self._own(cache, "decode")
        check_room(self._spec, own, "decode", 1)
        check_ids(self._spec, "decode", (token_id,))
        rows = _Rows(own, self._embed_one(token_id), False, True)
        self._append([rows], "decode")
        if rows.logits is None:
            raise EngineFault(ENGINE, "decode", "no logits")
        return rows.logits

    def forward(self, batch: Sequence[tuple[KVCache, Sequence[Prefillable], bool]]) -> list[NDArray[np.float32] | None]:
        """Append a run to each of several sequences, their rows together in as few passes as possible.

        When it raises, every cache is as it was. The results are those of `prefill` one by one, up to the order in
        which numbers are added.

        Args:
            batch: cache, run and whether logits are wanted (see `SequenceRun`), of at least one sequence.

        Returns:
            For each sequence float32 (vocab_size,), the logits after its last token, owned by the caller; None if not
            wanted.

        Raises:
            CacheFull: the system has no memory for the entries.
            EngineFault: the backend failed, or what was asked for makes no sense.
        """
        caches = [self._own(cache, "prefill") for cache, _, _ in batch]
        if len(set(map(id, caches))) < len(caches) or not caches:
            raise EngineFault(ENGINE, "prefill", "a batch needs sequences, each of them once")
        for own, (_, run, _) in zip(caches, batch, strict=True):
            check_room(self._spec, own, "prefill", sum(chunk.num_tokens for chunk in run))
        dtype = self._sessions.graph.embeds.dtype
        try:
            rows = [
                _Rows(own, embed_run(run, self._embedding, self._spec, dtype), image_rows(run), want_logits)
                for own, (_, run, want_logits) in zip(caches, batch, strict=True)
            ]
        except Exception as error:
            raise fault("prefill", error) from error
        self._append(rows, "prefill")
        return [entry.logits for entry in rows]

    def with_format(self, cache_format: CacheFormat, kv: str) -> CutLanguageModel:
        """Return a model over the same pieces that keeps its caches in another format.

        Both can be used in turns, from one thread. `detach` the new one, and close this one behind it.

        Args:
            cache_format: of its caches, for the same geometry.
            kv: what its spec calls it.
        """
        old = self._kernels
        kernels = type(old)(cache_format, scale=old.scale, rope=old.rope, num_threads=old.num_threads, isa=old.isa)
        spec = dataclasses.replace(self._spec, kv=kv, notes=())
        return CutLanguageModel(self._sessions, kernels, self._embedding, spec, self._tokenizer)

    def layer_errors(self, run: Sequence[Prefillable]) -> KVErrors:
        """Compare what a cache keeps of a run with what it was given; see `edge_vl.kv_error.KVMeter`."""
        from edge_vl_onnxruntime.key_error import layer_errors

        return layer_errors(self, run)

    def detach(self) -> None:
        """Give back what is not sessions, which go on in another model. May be called twice."""
        self._kernels.close()  # first: it refuses while another thread is in them
        self._is_open = False
        self._passes.clear()
        self._heads.clear()
        self._one_row = self._one_head = None
        self._buffers = Buffers(self._plan, 0)
        self._pool.close()

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        if self._is_open:
            self.detach()
            self._sessions.close()
            self._embedding.close()

    def _own(self, cache: KVCache, stage: str) -> PagedKVCache:
        """Refuse a cache that is closed or belongs to another model."""
        if not self._is_open:
            raise EngineFault(ENGINE, stage, "the language model is closed")
        if not isinstance(cache, PagedKVCache) or cache.owner is not self._kernels:
            raise EngineFault(ENGINE, stage, "the cache belongs to another language model")
        if not cache.is_open:
            raise EngineFault(ENGINE, stage, "the cache is closed")
        return cache

    def _embed_one(self, token_id: int) -> NDArray[Any]:
        try:
            return self._embedding.one(token_id)
        except Exception as error:
            raise fault("decode", error) from error

    def _append(self, batch: list[_Rows], stage: str) -> None:
        """Append all rows, or none."""
        passes = self._split(batch)
        kept = [rows.cache.fork() for rows in batch] if len(passes) > 1 else []
        try:
            for parts in passes:
                self._run(parts)
        except BaseException as error:
            for rows, before in zip(batch, kept, strict=False):
                rows.cache.trim(0)
                rows.cache.graft(before, 0, before.num_tokens)
            if isinstance(error, EdgeVLError) or not isinstance(error, Exception):
                raise
            raise fault(stage, error) from error
        finally:
            for before in kept:
                before.close()

    def _split(self, batch: list[_Rows]) -> list[list[_Part]]:
        """Share rows out over passes. Sequences whose rows would change each other go apart."""
        passes: list[list[_Part]] = [[]]
        room = self.max_rows
        for rows in batch:
            start, num_rows = 0, rows.embeds.shape[1]
            while start < num_rows:
                if not room or (passes[-1] and self._sessions.cut.shares_scales):
                    passes.append([])
                    room = self.max_rows
                stop = min(num_rows, start + room)
                passes[-1].append(_Part(rows, start, stop))
                room -= stop - start
                start = stop
        return passes

    def _run(self, parts: list[_Part]) -> None:
        """Run one pass and keep what it gave if all went well."""
        num_rows = sum(part.stop - part.start for part in parts)
        cut_pass = self._pass(num_rows)
        sequences = []
        try:
            row = 0
            wanted: list[int] = []
            for part in parts:
                cache, end = part.rows.cache, row + part.stop - part.start
                is_image = part.rows.is_image
                if not isinstance(is_image, bool):
                    is_image = is_image[part.start : part.stop]
                sequences.append(cache.begin(end - row, is_image))
                cut_pass.embeds[0, row:end] = part.rows.embeds[0, part.start : part.stop]
                if cut_pass.positions is not None:
                    first = cache.next_position
                    cut_pass.positions[row:end] = self._ramp[first : first + end - row]
                if part.wants_logits:
                    wanted.append(end - 1)
                row = end
            cut_pass.run(self._kernels.step(sequences), len(wanted), self.observer)
            if wanted:
                logits = self._head(len(wanted)).run(cut_pass, wanted)
                takers = [part.rows for part in parts if part.wants_logits]
                found = [finite_row(values) for values in logits]
                for rows, values in zip(takers, found, strict=True):
                    rows.logits = values
        except BaseException:
            for part in parts[: len(sequences)]:
                part.rows.cache.abort()
            raise
        for part in parts:
            part.rows.cache.commit()

    def _pass(self, num_rows: int) -> CutPass:
        """Return a pass of so many rows, one of a few that are kept."""
        if num_rows == 1 and self._one_row is not None:
            return self._one_row
        if num_rows > self._buffers.max_rows:
            self._passes.clear()
            self._buffers = Buffers(self._plan, min(1 << (num_rows - 1).bit_length(), max(num_rows, self.max_rows)))
        found = self._passes.get(num_rows)
        if found is None:
            found = self._passes[num_rows] = CutPass(self._sessions, self._buffers, self._kernels, num_rows)
            if len(self._passes) > _PASSES_KEPT:
                self._passes.popitem(last=False)
        self._passes.move_to_end(num_rows)
        return found

    def _head(self, num_rows: int) -> HeadPass:
        """Likewise for the rows that logits are wanted for."""
        if num_rows == 1 and self._one_head is not None:
            return self._one_head
        found = self._heads.get(num_rows)
        if found is None:
            found = self._heads[num_rows] = HeadPass(self._sessions, num_rows)
            if len(self._heads) > _HEADS_KEPT:
                self._heads.popitem(last=False)
        self._heads.move_to_end(num_rows)
        return found
