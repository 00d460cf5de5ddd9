"""The language lane: a llama.cpp context that several caches share."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import ImageEmbeds, KVCache, LanguageSpec, Prefillable, Tokenizer
from edge_vl.errors import CacheFull, EngineFault
from edge_vl.plan import TextChunk
from edge_vl_llama_cpp.batch import BatchBuffers
from edge_vl_llama_cpp.context import ContextPlan
from edge_vl_llama_cpp.kv_cache import LlamaKVCache, Sequences
from edge_vl_llama_cpp.library import ENGINE
from edge_vl_llama_cpp.native_model import NativeModel

__all__ = ["LlamaLanguageModel"]

_NO_SLOT = 1  # what llama_decode returns when the cache has no room


@dataclass(frozen=True, slots=True, eq=False)
class _Text:
    """Text tokens of one pass."""

    token_ids: tuple[int, ...]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Image tokens of one pass.

    Attributes:
        values: float32 (num_tokens, hidden_size), contiguous.
        positions: int32 (num_tokens, 3) from the block's first position; None: one after the other.
        num_positions: that they span once all of the block is in; 0 for a piece before the last.
        is_causal: whether a token attends to those before it only.
        is_block: the tokens can only be forgotten together.
    """

    values: NDArray[np.float32]
    positions: NDArray[np.int32] | None
    num_positions: int
    is_causal: bool
    is_block: bool

    @property
    def num_tokens(self) -> int:
        return len(self.values)


class LlamaLanguageModel:
    """A text model with its context."""

    def __init__(
        self, model: NativeModel, context: Any, plan: ContextPlan, spec: LanguageSpec, tokenizer: Tokenizer
    ) -> None:
        """Take a context.

        Args:
            model: share of the text model; closed with this.
            context: the `llama_context`; freed with this.
            plan: its sizes.
            spec: what to say about it.
            tokenizer: of the model.
        """
        llama = model.library.llama
        self._llama = llama
        self._model = model
        self._context: Any = context
        self._plan = plan
        self._spec = spec
        self._tokenizer = tokenizer
        self._vocab_size = model.vocab_size
        self._sequences = Sequences(
            llama,
            llama.llama_get_memory(context),
            int(llama.llama_n_seq_max(context)),
            plan.entry_bytes,
            keeps_states=model.is_recurrent,
            has_window=not model.is_recurrent and int(llama.llama_model_n_swa(model.pointer)) > 0,
        )
        self._max_rows = int(llama.llama_n_batch(context))
        self._max_block = int(llama.llama_n_ubatch(context))
        self._buffers = BatchBuffers(llama, self._max_rows, model.num_position_sections)

    @property
    def spec(self) -> LanguageSpec:
        """What it is."""
        return self._spec

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._tokenizer

    def new_cache(self) -> KVCache:
        """Return an empty cache for one sequence.

        Raises:
            CacheFull: there are too many caches.
            EngineFault: the model is closed.
        """
        self._check_open("load")
        return LlamaKVCache(self._sequences)

    def prefill(
        self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True
    ) -> NDArray[np.float32] | None:
        """Append a run of consecutive chunks; see `edge_vl.engine.LanguageModel`."""
        own = self._own(cache, "prefill")
        self._check_run(own, run)
        passes = list(self._passes(run))
        # What a recurrent state has taken in cannot be taken out again, so another sequence keeps it from before.
        saved = self._sequences.save(own.sequence) if self._sequences.keeps_states and own.num_tokens else None
        position, taken = own.next_position, []
        try:
            for number, one in enumerate(passes):
                is_last = number == len(passes) - 1
                self._run(own, one, position, want_logits and is_last)
                spanned = one.num_positions if isinstance(one, _Rows) else one.num_tokens
                self._sequences.hold(own.sequence, position, position + spanned)
                position += spanned
                taken.append((one.num_tokens, spanned, isinstance(one, _Rows) and one.is_block))
            logits = self._logits() if want_logits else None
        except BaseException as error:
            own.undo(str(error), saved)
            raise
        finally:
            if saved is not None:
                self._sequences.give_back(saved)
        for num_tokens, spanned, is_block in _joined(taken):
            own.append(num_tokens, spanned, is_block=is_block)
        return logits

    def decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        """Append one token; see `edge_vl.engine.LanguageModel`."""
        own = self._own(cache, "decode")
        self._check_room(own, "decode", 1)
        self._check_ids("decode", (token_id,))
        batch = self._buffers.of_tokens((token_id,), own.sequence, own.next_position, want_logits=True)
        code = self._llama.llama_decode(self._context, batch)
        if code:
            if code != _NO_SLOT:
                own.undo(f"llama_decode returned {code}")
            raise self._fault("decode", code, 1)
        self._sequences.hold(own.sequence, own.next_position, own.next_position + 1)
        own.append(1, 1, is_block=False)
        return self._logits()

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        if self._context is not None:
            self._sequences.close()
            self._llama.llama_free(self._context)
            self._context = None
        self._model.close()

    def _check_open(self, stage: str) -> None:
        if self._context is None:
            raise EngineFault(ENGINE, stage, "the language model is closed")

    def _own(self, cache: KVCache, stage: str) -> LlamaKVCache:
        """Refuse a cache that is closed or belongs to another model."""
        self._check_open(stage)
        if not isinstance(cache, LlamaKVCache) or cache.owner is not self._sequences:
            raise EngineFault(ENGINE, stage, "the cache belongs to another language model")
        cache.check(stage)
        self._sequences.reclaim()
        return cache

    def _check_room(self, cache: LlamaKVCache, stage: str, num_tokens: int) -> None:
        room = self._spec.context_length - cache.num_tokens
        if not 0 < num_tokens <= room:
            raise EngineFault(ENGINE, stage, f"{num_tokens} tokens where there is room for {room}")

    def _check_ids(self, stage: str, token_ids: Sequence[int]) -> None:
        if min(token_ids) < 0 or max(token_ids) >= self._vocab_size:
            raise EngineFault(ENGINE, stage, f"a token id is outside the vocabulary of {self._vocab_size}")

    def _check_run(self, cache: LlamaKVCache, run: Sequence[Prefillable]) -> None:
        """Refuse what llama.cpp would answer with an abort."""
        self._check_room(cache, "prefill", sum(part.num_tokens for part in run))
        width = self._model.input_width
        for part in run:
            if isinstance(part, TextChunk):
                self._check_ids("prefill", part.token_ids)
                continue
            if part.values.dtype != np.float32 or part.values.shape[1:] != (width,) or not part.num_tokens:
                found = f"{part.values.dtype} {part.values.shape}"
                raise EngineFault(ENGINE, "prefill", f"image embeds of {found} do not fit a width of {width}")
            if part.positions is not None and part.positions.shape != (part.num_tokens, 3):
                raise EngineFault(ENGINE, "prefill", f"{part.num_tokens} tokens with positions {part.positions.shape}")
            if not part.is_causal and part.num_tokens > self._max_block:
                raise EngineFault(
                    ENGINE,
                    "prefill",
                    f"a picture of {part.num_tokens} tokens must go in at once, and a pass has {self._max_block} rows; "
                    "use a larger context_length",
                )

    def _passes(self, run: Sequence[Prefillable]) -> Iterator[_Text | _Rows]:
        """Split a run into passes of one kind each, none longer than the buffers."""
        token_ids: list[int] = []
        for part in (*run, None):
            if isinstance(part, TextChunk):
                token_ids += part.token_ids
                continue
            for start in range(0, len(token_ids), self._max_rows):
                yield _Text(tuple(token_ids[start : start + self._max_rows]))
            token_ids = []
            if part is not None:
                yield from self._image_passes(part)

    def _image_passes(self, part: ImageEmbeds) -> Iterator[_Rows]:
        values = np.ascontiguousarray(part.values)
        count, is_block = part.num_tokens, part.positions is not None or not part.is_causal
        spanned = part.num_positions or count
        for start in range(0, count, self._max_rows):
            end = min(count, start + self._max_rows)
            if part.positions is None:
                yield _Rows(values[start:end], None, end - start, part.is_causal, is_block)
            else:
                num_positions = spanned if end == count else 0
                yield _Rows(values[start:end], part.positions[start:end], num_positions, part.is_causal, is_block)

    def _run(self, cache: LlamaKVCache, one: _Text | _Rows, position: int, want_logits: bool) -> None:
        """Run one pass."""
        if isinstance(one, _Text):
            batch = self._buffers.of_tokens(one.token_ids, cache.sequence, position, want_logits=want_logits)
            code = self._llama.llama_decode(self._context, batch)
        else:
            positions = self._positions(one, position)
            batch = self._buffers.of_embeds(one.values, cache.sequence, positions, want_logits=want_logits)
            code = self._decode_rows(batch, one.is_causal)
        if code:
            raise self._fault("prefill", code, one.num_tokens)

    def _decode_rows(self, batch: Any, is_causal: bool) -> int:
        if is_causal:
            return int(self._llama.llama_decode(self._context, batch))
        self._llama.llama_set_causal_attn(self._context, False)
        try:
            return int(self._llama.llama_decode(self._context, batch))
        finally:
            self._llama.llama_set_causal_attn(self._context, True)

    def _positions(self, one: _Rows, position: int) -> NDArray[np.int32]:
        """Return positions as llama.cpp wants them, int32 (num_position_sections, num_tokens).

        Source:
            mtmd_helper_decode_image_chunk of llama.cpp, tools/mtmd/mtmd-helper.cpp: time, row, column, 0 for pictures;
            the same position in every section for a plain sequence.
        """
        sections = self._model.num_position_sections
        if sections == 1 or one.positions is None:
            ramp = np.arange(position, position + one.num_tokens, dtype=np.int32)
            return np.ascontiguousarray(np.broadcast_to(ramp, (sections, one.num_tokens)))
        positions = np.zeros((sections, one.num_tokens), np.int32)
        positions[:3] = one.positions.T + position
        return positions

    def _logits(self) -> NDArray[np.float32]:
        """Copy the logits of the last pass."""
        pointer = self._llama.llama_get_logits_ith(self._context, -1)
        if not pointer:
            raise EngineFault(ENGINE, "decode", "no logits came back")
        logits = np.empty(self._vocab_size, np.float32)
        ctypes.memmove(logits.ctypes.data, pointer, logits.nbytes)
        return logits

    def _fault(self, stage: str, code: int, num_tokens: int) -> EngineFault | CacheFull:
        if code == _NO_SLOT:
            return CacheFull(ENGINE, num_tokens)
        return EngineFault(ENGINE, stage, f"llama_decode returned {code}")


def _joined(taken: Sequence[tuple[int, int, bool]]) -> Iterator[tuple[int, int, bool]]:
    """Join the passes of a block that was too long for one: its positions come with the last."""
    waiting = 0
    for num_tokens, spanned, is_block in taken:
        if is_block and not spanned:
            waiting += num_tokens
            continue
        yield waiting + num_tokens, spanned, is_block
        waiting = 0
