"""The pages of one sequence: which it holds, and how they change when entries come and go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from edge_vl_kernels.kv import KVSequence, Page
from edge_vl_kernels.kv_format import BLOCK_ENTRIES, CacheFormat
from edge_vl_onnxruntime.page_pool import PagePool

__all__ = ["PageTable"]

_IMAGE_ENTRIES = 48
"""Image tokens that make a block one of images, of its 64 entries."""

_BLOCK_KINDS = (1 << BLOCK_ENTRIES) - 1


class PageTable:
    """The sinks, the closed blocks and the open block of a sequence.

    A page may be one of other sequences, too; it is copied before it is written to. The open block has a page while it
    has entries: it has none behind a closed last block, which only `cut` and grafts leave.

    Kinds of tokens are bits of an integer, the first entry's the lowest, 1 for an image token.

    Attributes:
        sinks: page of the first entries; None while there are none, or where the format has no sinks.
        blocks: pages of the closed blocks.
        formats: format of each, a place in `CacheFormat.pages`.
        kinds: kinds of each's entries.
        open_page: page of the open block.
        open_kinds: kinds of its entries; bits behind them mean nothing.
    """

    __slots__ = (
        "_first_new",
        "_is_raw",
        "_new_kinds",
        "_new_page",
        "blocks",
        "cache_format",
        "formats",
        "kinds",
        "open_kinds",
        "open_page",
        "pool",
        "sinks",
    )

    def __init__(self, pool: PagePool, cache_format: CacheFormat) -> None:
        """Begin without pages."""
        self.pool = pool
        self.cache_format = cache_format
        self.sinks: Page | None = None
        self.blocks: list[Page] = []
        self.formats: list[int] = []
        self.kinds: list[int] = []
        self.open_page: Page | None = None
        self.open_kinds = 0
        self._is_raw = tuple(page_format == cache_format.open for page_format in cache_format.pages)
        # Of an extension that is under way: the first block that it closes, and what the open block is to be.
        self._first_new = 0
        self._new_page: Page | None = None
        self._new_kinds = 0

    @property
    def nbytes(self) -> int:
        """Memory of its pages."""
        return sum(page.nbytes for page in self.pages())

    def pages(self) -> Iterator[Page]:
        """Yield every page that it holds."""
        yield from self.blocks
        for page in (self.sinks, self.open_page, self._new_page):
            if page is not None:
                yield page

    def num_open(self, num_entries: int) -> int:
        """Return how many of a sequence's entries are in the open block."""
        return max(0, num_entries - self.cache_format.num_sinks - BLOCK_ENTRIES * len(self.blocks))

    def is_raw_format(self, page_format: int) -> bool:
        """Say whether blocks of a format are stored like open ones, so that they can be open again."""
        return self._is_raw[page_format]

    def extend(self, num_entries: int, num_rows: int, kinds: int) -> KVSequence:
        """Make room for rows: give each block that gets some a page to write to, and each that is closed its own.

        `keep` or `undo` follows.

        Args:
            num_entries: what the sequence has.
            num_rows: what it gets, at least 1.
            kinds: of these.

        Raises:
            MemoryError: the system has no more; the table is as it was.
        """
        self._first_new = len(self.blocks)
        try:
            if num_entries < self.cache_format.num_sinks:
                self.own_sinks()
            open_pages = self._extend(num_entries, num_rows, kinds)
        except BaseException:
            self.undo(num_entries)
            raise
        return KVSequence(
            num_entries=num_entries,
            num_rows=num_rows,
            first_position=num_entries,
            sinks=self.sinks,
            blocks=self.blocks,
            block_formats=self.formats,
            open_pages=open_pages,
        )

    def keep(self) -> None:
        """Take over what `extend` prepared."""
        if self._new_page is not None:
            if self.open_page is not None:
                self.pool.release((self.open_page,))
            self.open_page, self._new_page = self._new_page, None
        self.open_kinds = self._new_kinds

    def undo(self, num_entries: int) -> None:
        """Give back what `extend` prepared."""
        self._drop_blocks(self._first_new)
        if self._new_page is not None:
            self.pool.release((self._new_page,))
            self._new_page = None
        if not num_entries:
            self._drop_sinks()

    def keepable(self, num_entries: int) -> int:
        """Return how many entries `cut` would keep: fewer where they end inside a compressed block."""
        block, count = divmod(max(0, num_entries - self.cache_format.num_sinks), BLOCK_ENTRIES)
        is_compressed = block < len(self.blocks) and not self._is_raw[self.formats[block]]
        return num_entries - count if is_compressed else num_entries

    def cut(self, num_entries: int) -> None:
        """Forget all but the first entries, of which there are as many as `keepable` says."""
        if num_entries <= self.cache_format.num_sinks:
            self._drop_blocks(0)
            self.drop_open()
            if not num_entries:
                self._drop_sinks()
            return
        block, count = divmod(num_entries - self.cache_format.num_sinks, BLOCK_ENTRIES)
        if (block, count) > (len(self.blocks), 0):  # they end in the open block
            return
        self.drop_open()
        if count:  # of a block that is stored as open ones are
            self.open_page, self.open_kinds = self.blocks[block], self.kinds[block]
            self.pool.share((self.open_page,))
        self._drop_blocks(block)

    def fork(self) -> Self:
        """Return a table of the same pages."""
        copy = type(self)(self.pool, self.cache_format)
        copy._take(self)
        self.pool.share(copy.pages())
        return copy

    def become(self, other: PageTable) -> None:
        """Hold what another table holds, which holds nothing afterwards."""
        self.clear()
        self._take(other)
        other._forget()

    def clear(self) -> None:
        """Give all pages back."""
        self.pool.release(self.pages())
        self._forget()

    def own_sinks(self) -> Page:
        """Return a page for the sinks that may be written to.

        Raises:
            MemoryError: the system has no more; the table is as it was.
        """
        sinks = self.sinks
        self.sinks = self.pool.take(self.cache_format.sinks_nbytes) if sinks is None else self.pool.own(sinks)
        return self.sinks

    def own_open_page(self) -> Page:
        """Return a page for the open block that may be written to.

        Raises:
            MemoryError: the system has no more; the table is as it was.
        """
        page = self.open_page
        self.open_page = self.pool.take(self.cache_format.open.nbytes) if page is None else self.pool.own(page)
        return self.open_page

    def format_of(self, kinds: int) -> int:
        """Return the format of a block with entries of these kinds."""
        return int(len(self._is_raw) > 1 and (kinds & _BLOCK_KINDS).bit_count() >= _IMAGE_ENTRIES)

    def close_block(self, page: Page, kinds: int) -> None:
        """Add a closed block, whose page and its holder are the table's from now on."""
        self.blocks.append(page)
        self.formats.append(self.format_of(kinds))
        self.kinds.append(kinds & _BLOCK_KINDS)

    def _extend(self, num_entries: int, num_rows: int, kinds: int) -> list[Page]:
        """Return what `KVSequence.open_pages` is to be, and note what `keep` and `undo` need.

        A block's rows are written to its open page. The one that has entries already is kept, so that a step that fails
        costs none of them. All others are written over as soon as their block is compressed, so that one page does for
        them; only a block that stays as it is needs its own, which is its closed page, too.
        """
        pool, cache_format = self.pool, self.cache_format
        total = num_entries + num_rows
        num_open = self.num_open(num_entries)
        num_new = cache_format.num_closed(total) - len(self.blocks)
        kinds = kinds >> max(0, cache_format.num_sinks - num_entries) << num_open
        kinds |= self.open_kinds & ((1 << num_open) - 1)
        pages: list[Page] = []
        if cache_format.num_closed(num_entries) < len(self.blocks):
            pages.append(self.blocks[-1])  # full and closed already, which is said by the page being the same
        first = self.open_page
        if first is not None:
            if num_open < BLOCK_ENTRIES:
                first = self.own_open_page()
            pages.append(first)
        if num_new or (first is None and total > cache_format.num_sinks):
            self._new_page = pool.take(cache_format.open.nbytes)
        for place in range(num_new):
            self._close_new(kinds, first if place == 0 else None, pages)
            kinds >>= BLOCK_ENTRIES
        if self._new_page is not None:
            pages.append(self._new_page)
        self._new_kinds = kinds
        return pages

    def _close_new(self, kinds: int, first: Page | None, open_pages: list[Page]) -> None:
        """Add a block that a step closes; `first` is the page of its earlier entries, if it has any."""
        page_format = self.format_of(kinds)
        if not self._is_raw[page_format]:
            page = self.pool.take(self.cache_format.pages[page_format].nbytes)
            if first is None and self._new_page is not None:
                open_pages.append(self._new_page)
        elif first is None:
            page = self.pool.take(self.cache_format.open.nbytes)
            open_pages.append(page)
        else:
            page = first
            self.pool.share((page,))
        self.close_block(page, kinds)

    def _drop_blocks(self, count: int) -> None:
        """Forget the closed blocks behind the first ones."""
        self.pool.release(self.blocks[count:])
        del self.blocks[count:], self.formats[count:], self.kinds[count:]

    def drop_open(self) -> None:
        """Forget the open block."""
        if self.open_page is not None:
            self.pool.release((self.open_page,))
            self.open_page = None

    def _drop_sinks(self) -> None:
        if self.sinks is not None:
            self.pool.release((self.sinks,))
            self.sinks = None

    def _take(self, other: PageTable) -> None:
        """Note what another table holds."""
        self.sinks, self.open_page, self.open_kinds = other.sinks, other.open_page, other.open_kinds
        self.blocks, self.formats, self.kinds = list(other.blocks), list(other.formats), list(other.kinds)

    def _forget(self) -> None:
        self.sinks = self.open_page = self._new_page = None
        self.blocks, self.formats, self.kinds = [], [], []
