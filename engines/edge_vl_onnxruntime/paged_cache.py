"""The KV cache of a decoder that is cut at its attention: pages of our own, compressed when their block is full."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import KVCache
from edge_vl.errors import CacheFull, EngineFault
from edge_vl_kernels.kv_format import BLOCK_ENTRIES
from edge_vl_onnxruntime.cache_formats import is_quantised
from edge_vl_onnxruntime.page_entries import graft_pages, read_entries
from edge_vl_onnxruntime.page_pool import PagePool
from edge_vl_onnxruntime.page_table import PageTable
from edge_vl_onnxruntime.session import ENGINE

if TYPE_CHECKING:
    from edge_vl_kernels.kv import KVKernels, KVSequence
    from edge_vl_kernels.kv_format import CacheFormat

__all__ = ["PagedKVCache"]


class PagedKVCache:
    """Keys and values of one sequence. Belongs to the language lane.

    Rows come in by steps: `begin` gives them a place, the kernels write them there layer by layer, and `commit` makes
    entries of them or `abort` forgets them. Until then nothing else can be done but `close`.

    Forks share pages until one of them writes. A cache that nobody closed gives its pages back when it is collected.
    """

    def __init__(
        self, pool: PagePool, kernels: KVKernels, cache_format: CacheFormat, owner: object, context_length: int
    ) -> None:
        """Begin empty.

        Args:
            pool: where its pages come from.
            kernels: of the model, with the same format.
            cache_format: how its pages are laid out.
            owner: the language model that it belongs to.
            context_length: entries that it may have.
        """
        self._kernels = kernels
        self._owner = owner
        self._context_length = context_length
        self._table = PageTable(pool, cache_format)
        self._num_tokens = 0
        self._num_new = 0  # rows of the step that is under way
        self._finalizer = weakref.finalize(self, pool.defer, self._table.clear)
        self._finalizer.atexit = False

    @property
    def owner(self) -> object:
        """The language model that it belongs to."""
        return self._owner

    @property
    def is_open(self) -> bool:
        """Not closed yet."""
        return self._finalizer.alive

    @property
    def num_tokens(self) -> int:
        """Entries stored."""
        return self._num_tokens

    @property
    def next_position(self) -> int:
        """Position of the next token."""
        return self._num_tokens

    @property
    def nbytes(self) -> int:
        """Memory of its pages; what forks share is counted in each."""
        return self._table.nbytes

    @property
    def block_formats(self) -> tuple[int, ...]:
        """Format of each closed block, a place in `CacheFormat.pages`."""
        return tuple(self._table.formats)

    @property
    def num_compressed(self) -> int:
        """Entries of which keys or values of any layer have 8 or 4 bits."""
        pages = self._table.cache_format.pages
        return BLOCK_ENTRIES * sum(is_quantised(pages[number]) for number in self._table.formats)

    def begin(self, num_rows: int, is_image: NDArray[np.bool_] | bool = False) -> KVSequence:
        """Make room for a step. Does not change what is stored.

        `commit` or `abort` follows, and ends the life of what is returned.

        Args:
            num_rows: entries that the step appends, at least 1.
            is_image: which of them are image tokens, bool (num_rows,), or whether all are.

        Returns:
            This sequence's part of the step, for `KVKernels.step`.

        Raises:
            ValueError: `is_image` is of another shape or type.
            CacheFull: the system has no memory for its pages.
            EngineFault: the cache or the model is closed, a step is under way, or the context has no room.
        """
        self._check("prefill")
        num_rows = int(num_rows)  # kinds are integers of more bits than NumPy's
        room = self._context_length - self._num_tokens
        if not 0 < num_rows <= room:
            raise EngineFault(ENGINE, "prefill", f"{num_rows} tokens where there is room for {room}")
        kinds = _kinds(is_image, num_rows)
        try:
            sequence = self._table.extend(self._num_tokens, num_rows, kinds)
        except MemoryError as error:
            raise CacheFull(ENGINE, num_rows, is_system=True) from error
        self._num_new = num_rows
        return sequence

    def commit(self) -> None:
        """End a step that went well: its rows are entries now.

        Raises:
            EngineFault: no step is under way.
        """
        self._check_step("commit")
        self._table.keep()
        self._num_tokens += self._num_new
        self._num_new = 0

    def abort(self) -> None:
        """End a step that did not go well: the cache is as it was before `begin`.

        Raises:
            EngineFault: no step is under way.
        """
        self._check_step("abort")
        self._table.undo(self._num_tokens)
        self._num_new = 0

    def fork(self) -> Self:
        """Return an independent cache with the same entries; no page is copied until one of both writes to it.

        Raises:
            EngineFault: the cache or the model is closed, or a step is under way.
        """
        self._check("fork")
        table = self._table
        copy = type(self)(table.pool, self._kernels, table.cache_format, self._owner, self._context_length)
        copy._table.become(table.fork())
        copy._num_tokens = self._num_tokens
        return copy

    def keepable(self, num_tokens: int) -> int:
        """Return how many entries `trim(num_tokens)` would keep; see `edge_vl.engine.BlockwiseCache`.

        Raises:
            ValueError: there are fewer.
        """
        if not 0 <= num_tokens <= self._num_tokens:
            raise ValueError(f"cannot keep {num_tokens} of {self._num_tokens} entries")
        return num_tokens if num_tokens == self._num_tokens else self._table.keepable(int(num_tokens))

    def trim(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` entries, and some more where these would end in a compressed block.

        Such a block is forgotten whole: `num_tokens` says afterwards what is left, at least all up to that block.

        Raises:
            ValueError: there are fewer.
            EngineFault: the cache or the model is closed, or a step is under way.
        """
        self._check("trim")
        kept = self.keepable(num_tokens)
        if kept < self._num_tokens:
            self._table.cut(kept)
            self._num_tokens = kept

    def graft(self, donor: KVCache, start: int, stop: int) -> None:
        """Append a donor's entries; see `edge_vl.engine.Graftable`.

        Blocks that are all the donor's are shared. Entries of a part of a compressed block are restored, and are
        compressed again with their new neighbours once their block is full.

        Raises:
            ValueError: see there.
            CacheFull: the system has no memory for the pages.
            EngineFault: this cache, the donor or the model is closed, or a step is under way in one of the caches.
        """
        if not isinstance(donor, PagedKVCache) or donor.owner is not self._owner:
            raise ValueError("cannot graft: the donor belongs to another language model")
        self._check("graft")
        donor._check("graft", "donor")
        if start != self._num_tokens or not start <= stop <= donor.num_tokens:
            raise ValueError(
                f"cannot graft entries {start} to {stop} of {donor.num_tokens} behind {self._num_tokens} entries"
            )
        if start == stop:
            return
        start, stop = int(start), int(stop)
        table = self._table.fork()
        try:
            graft_pages(self._kernels, table, donor._table, start, stop)
        except BaseException as error:
            table.clear()
            if isinstance(error, MemoryError):
                raise CacheFull(ENGINE, stop - start, is_system=True) from error
            raise
        self._table.become(table)
        self._num_tokens = stop

    def read(self, layer: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Restore what is stored of one layer.

        Returns:
            Keys and values, each float32 (num_tokens, num_kv_heads, head_dim), owned by the caller; as they came in,
            up to the rounding of how they are kept.

        Raises:
            EngineFault: the cache or the model is closed, or a step is under way.
        """
        self._check("read")
        return read_entries(self._kernels, self._table, layer, self._num_tokens)

    def close(self) -> None:
        """Give the memory back. May be called twice, also while a step is under way."""
        if self._finalizer.detach() is not None:
            self._table.clear()
            self._num_tokens = self._num_new = 0

    def _check(self, stage: str, who: str = "cache") -> None:
        """Refuse to be used.

        Raises:
            EngineFault: the cache or the model is closed, or a step is under way.
        """
        if not self._finalizer.alive:
            raise EngineFault(ENGINE, stage, f"the {who} is closed")
        if not self._table.pool.is_open:
            raise EngineFault(ENGINE, stage, "the language model is closed")
        if self._num_new:
            raise EngineFault(ENGINE, stage, f"a step of the {who} is under way; commit or abort it first")

    def _check_step(self, stage: str) -> None:
        if not self._num_new:
            raise EngineFault(ENGINE, stage, "no step of the cache is under way; begin one first")


def _kinds(is_image: NDArray[np.bool_] | bool, num_rows: int) -> int:
    """Return the kinds of rows as `PageTable` has them.

    Raises:
        ValueError: `is_image` is of another shape or type.
    """
    if not isinstance(is_image, np.ndarray):
        return (1 << num_rows) - 1 if is_image else 0
    if is_image.shape != (num_rows,) or is_image.dtype != np.bool_:
        raise ValueError(f"is_image must be bool ({num_rows},), not {is_image.dtype} {is_image.shape}")
    return int.from_bytes(np.packbits(is_image, bitorder="little").tobytes(), "little")
