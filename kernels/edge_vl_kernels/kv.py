"""Key/value caches: append rows to compressed caches and attend to them.

The format is laid out by `kv_format.py` and described in `kernels/README.md`. Who owns pages, and which of them belong
to which sequence, is the caller's business; here rows go into pages, and what they attend to comes out.
"""

from __future__ import annotations

import array
import ctypes
import itertools
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl_kernels import kv_abi, kv_reference
from edge_vl_kernels.kv_format import BLOCK_ENTRIES, CacheFormat, PageFormat
from edge_vl_kernels.kv_pages import Page, PageAddresses, aligned_page
from edge_vl_kernels.kv_rope import Rope
from edge_vl_kernels.kv_rows import KVRows
from edge_vl_kernels.library import load

__all__ = ["KVKernels", "KVRows", "KVSequence", "KVStep", "Page", "Rope", "aligned_page"]

_MAX_BLOCK_TABLES = 64

_BUSY = "the kernels are in use by another thread; give each thread kernels of its own, or take turns"

_MAX_SCALE = float(np.finfo(np.float32).max)

_MAX_THREADS = 2**31 - 1
"""As many as their number in C can count; memory ends long before."""

_OPEN = -1
"""The format of open blocks, where a format is asked for."""


@dataclass(slots=True, eq=False)
class KVSequence:
    """One sequence's part of a step.

    Attributes:
        num_entries: before the step.
        num_rows: appended by it, at least 1.
        first_position: of the first row; the others follow.
        sinks: `cache_format.sinks_nbytes` bytes; None if the format has no sinks.
        blocks: pages of the blocks that are closed after the step, those that it closes included.
        block_formats: which of `cache_format.pages` each of them has.
        open_pages: `cache_format.open.nbytes` bytes each: uncompressed pages of the blocks that are not closed before
            the step, from the first of them to the last that gets a row. One may serve several blocks in turn, except
            one that holds entries from before the step: those must outlive a step that fails. A block whose page in
            `blocks` is its page here stays uncompressed.
    """

    num_entries: int
    num_rows: int
    first_position: int
    sinks: Page | None
    blocks: Sequence[Page]
    block_formats: Sequence[int]
    open_pages: Sequence[Page]


class KVStep:
    """Rows that are appended to sequences, layer by layer: made by `KVKernels.step` for one pass over the layers."""

    __slots__ = ("_address", "_kept", "_kernels", "_num_rows", "_num_sequences", "_sequences")

    def __init__(
        self, kernels: KVKernels, sequences: list[KVSequence], structs: ctypes.Array[kv_abi.Sequence], kept: list[Any]
    ) -> None:
        self._kernels = kernels
        self._sequences = sequences
        self._num_sequences = len(sequences)
        self._kept = (structs, kept)
        self._address = ctypes.addressof(structs)
        self._num_rows = sum([sequence.num_rows for sequence in sequences])

    @property
    def num_rows(self) -> int:
        """Of all sequences together."""
        return self._num_rows

    def run(self, layer: int, rows: KVRows) -> None:
        """Append rows to one layer and attend to all entries up to each row's own.

        Args:
            layer: of the model; each one once, in any order.
            rows: as many as the sequences of the step append, one sequence after the other; its `context` is written.

        Raises:
            ValueError: a key or value is NaN, infinite, or too large for how it is kept, and what the layer held before
                the step is as it was; or `layer` or `rows` do not belong to the step.
            TypeError: `layer` is no integer, or `rows` are no `KVRows`.
            MemoryError: there is no scratch memory; likewise.
            RuntimeError: the kernels are closed, or another thread is using them.
        """
        kernels = self._kernels
        lock = kernels._lock
        # No `with self._turn`: it would take as long again, once per layer and token.
        if not lock.acquire(False):
            raise RuntimeError(_BUSY)
        try:
            layer = index(layer)
            if (
                rows.__class__ is not KVRows
                or rows.num_rows != self._num_rows
                or rows.kernels is not kernels
                or not kernels._is_open
                or not 0 <= layer < kernels._num_layers
            ):
                self._refuse(layer, rows)
            kv_step = kernels._kv_step
            if kv_step is None:
                status = kv_reference.step(
                    kernels._cache_format,
                    kernels._scale,
                    kernels._rope,
                    self._sequences,
                    layer,
                    rows.queries,
                    rows.keys,
                    rows.values,
                    rows.context,
                )
            else:
                status = kv_step(
                    kernels._pool, kernels._model_address, self._address, self._num_sequences, layer, rows.address
                )
            if status:
                self._fail(status, layer, rows)
        finally:
            lock.release()

    def _refuse(self, layer: int, rows: KVRows) -> None:
        self._kernels._check_open()
        if not isinstance(rows, KVRows):
            raise TypeError(f"rows must be made with the rows() of the kernels, not a {type(rows).__name__}")
        if rows.kernels is not self._kernels:
            raise ValueError("the rows were made by other kernels; make them with the rows() of those of the step")
        if rows.num_rows != self.num_rows:
            raise ValueError(f"{rows.num_rows} rows for sequences that take {self.num_rows}")
        raise ValueError(f"layer {layer} of a model that has {self._kernels._num_layers}")

    def _fail(self, status: int, layer: int, rows: KVRows) -> None:
        """Say which row is to blame."""
        if status == kv_abi.NO_MEMORY:
            raise MemoryError(f"layer {layer}: no scratch memory for {rows.num_rows} rows")
        is_finite = status == kv_reference.TOO_LARGE
        limits = kv_reference.magnitude_limits(self._kernels.cache_format, layer) if is_finite else (np.inf, np.inf)
        for name, array_, limit in (("key", rows.keys, limits[0]), ("value", rows.values, limits[1])):
            bad = ~np.isfinite(array_) if not is_finite else np.abs(array_) > limit
            where = f"the {name} of row {np.argmax(bad.any((1, 2)))}" if bad.any() else "a turned key"
            if bad.any():
                break
        what = "is beyond ±65504, the range of float16; keep this layer as f32" if is_finite else "is NaN or infinite"
        raise ValueError(f"layer {layer}: {where} {what}")


@dataclass(frozen=True, slots=True, eq=False)
class _BlockTable:
    """A sequence's closed blocks in C, good for as long as they have the same pages and none of those is gone."""

    page_ids: list[int]
    formats: tuple[int, ...]
    num_forgotten: int
    addresses: array.array[int]
    format_numbers: array.array[int]


class _OneThread:
    """Lets one thread in at a time and turns others away.

    The lock is reentrant so that one that an interrupt left behind keeps out other threads only.
    """

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = threading.RLock()

    def __enter__(self) -> None:
        if not self.lock.acquire(False):
            raise RuntimeError(_BUSY)

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class KVKernels:
    """The kernels for the caches of one model, with a few threads of their own; used by one thread at a time.

    A call while another thread is in one raises `RuntimeError` and changes nothing. In the child of a fork that another
    thread made no call during, they work as before; otherwise the child makes kernels of its own.
    """

    def __init__(
        self,
        cache_format: CacheFormat,
        *,
        scale: float,
        rope: Rope | None = None,
        num_threads: int = 1,
        isa: str = "auto",
    ) -> None:
        """Prepare for caches of a format.

        Args:
            cache_format: how the caches are stored.
            scale: of the scores, 1 / sqrt(head_dim) as a rule; finite.
            rope: how queries and keys are turned before they are used and stored; None: they come turned.
            num_threads: that work on a step, the caller's included, at least 1. The reference ignores it.
            isa: one of `edge_vl_kernels.ISAS`.

        Raises:
            ValueError: an argument is out of its range, or `isa` is unknown.
            TypeError: one is of another type.
            RuntimeError: `isa` names one that is not there, or there is no memory for the threads.
        """
        _check_format(cache_format)
        geometry = cache_format.geometry
        if not abs(scale) <= _MAX_SCALE:
            raise ValueError(f"scale must be finite, not {scale}")
        num_threads = index(num_threads)
        if num_threads < 1:
            raise ValueError(f"num_threads must be at least 1, not {num_threads}")
        if num_threads > _MAX_THREADS:
            raise ValueError(f"num_threads must be 1 to {_MAX_THREADS}, not {num_threads}")
        if rope is not None and not isinstance(rope, Rope):
            raise TypeError(f"rope must be a Rope or None, not a {type(rope).__name__}")
        if rope is not None and rope.rotary_dim > geometry.head_dim:
            raise ValueError(f"rope turns {rope.rotary_dim} channels of heads that have {geometry.head_dim}")
        # Private: the structures in C point to what belongs to these. NumPy does not resize
        # an array that is weakly referenced.
        self._cache_format, self._scale, self._rope, self._num_threads = cache_format, float(scale), rope, num_threads
        library = load(isa)
        self._isa = library.status.isa
        self._turn = _OneThread()
        self._lock = self._turn.lock
        self._is_open = True
        self._num_layers = geometry.num_layers
        self._num_positions = 0 if rope is None else rope.num_positions
        addresses = {page_format.nbytes: PageAddresses(page_format.nbytes) for page_format in _formats(cache_format)}
        self._block_tables: dict[int | None, _BlockTable] = {}  # by the id of the sequence's open page
        self._closed_addresses = [addresses[page_format.nbytes] for page_format in cache_format.pages]
        self._open_addresses = addresses[cache_format.open.nbytes]
        self._sink_addresses = PageAddresses(cache_format.sinks_nbytes)
        self._is_raw = [page_format.layers == cache_format.open.layers for page_format in cache_format.pages]
        self._slices = kv_abi.model_slices(cache_format)
        self._model = kv_abi.Model(
            geometry.num_layers,
            geometry.num_query_heads,
            geometry.num_kv_heads,
            geometry.head_dim,
            geometry.num_value_groups,
            cache_format.num_sinks,
            len(cache_format.pages) + 1,
            self._slices,
            scale,
            0 if rope is None else rope.rotary_dim,
            0 if rope is None else rope.is_interleaved,
            None if rope is None else rope.cosines.ctypes.data,
            None if rope is None else rope.sines.ctypes.data,
        )
        self._tables = () if rope is None else (weakref.ref(rope.cosines), weakref.ref(rope.sines))
        self._model_address = ctypes.addressof(self._model)
        self._functions = library.functions
        self._kv_step: Any = None
        self._pool: int | None = None
        if self._functions is not None:
            self._kv_step = self._functions.edge_vl_kernels_kv_step
            self._pool = self._functions.edge_vl_kernels_pool_new(library.number, num_threads)
            if self._pool is None:
                raise RuntimeError(f"no {self.isa} kernels with {num_threads} threads: no memory or no such CPU")
            self._free = weakref.finalize(self, self._functions.edge_vl_kernels_pool_free, self._pool)
            # A lane's thread may be inside a kernel when the interpreter exits.
            self._free.atexit = False

    @property
    def cache_format(self) -> CacheFormat:
        """How the caches are stored."""
        return self._cache_format

    @property
    def scale(self) -> float:
        """Of the scores."""
        return self._scale

    @property
    def rope(self) -> Rope | None:
        """How queries and keys are turned; None: they come turned."""
        return self._rope

    @property
    def num_threads(self) -> int:
        """That work on a step."""
        return self._num_threads

    @property
    def isa(self) -> str:
        """What runs: an instruction set, or `reference`."""
        return self._isa

    def rows(
        self,
        queries: NDArray[np.float32] | None,
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        context: NDArray[np.float32] | None,
    ) -> KVRows:
        """Prepare buffers that the rows of steps are in, once for any number of steps.

        Args:
            queries: float32 (rows, num_query_heads, head_dim), channels side by side, other strides at will; None only
                without `context`.
            keys: float32 (rows, num_kv_heads, head_dim), likewise.
            values: float32 (rows, num_kv_heads, head_dim), likewise.
            context: float32 (rows, num_query_heads, head_dim), likewise; apart from the others and from itself. None:
                rows are appended and attend to nothing.

        Raises:
            ValueError: an array has another type, shape or strides.
        """
        return KVRows(self, self._cache_format.geometry, queries, keys, values, context)

    def step(self, sequences: Sequence[KVSequence]) -> KVStep:
        """Prepare to append rows to sequences.

        Args:
            sequences: what each of them is to hold, at least one. No two write to the same page, and none writes to
                what another one reads.

        Raises:
            ValueError: pages or numbers do not fit each other.
            TypeError: a number is no integer, or a sequence no `KVSequence`.
            RuntimeError: the kernels are closed, or another thread is using them.
        """
        with self._turn:
            self._check_open()
            if not sequences:
                raise ValueError("a step needs at least one sequence")
            structs = (kv_abi.Sequence * len(sequences))()
            kept: list[Any] = []
            written: list[tuple[int, int]] = []
            taken = []
            for struct, sequence in zip(structs, sequences, strict=True):
                if not isinstance(sequence, KVSequence):
                    raise TypeError(f"a step is made of KVSequence, not of {type(sequence).__name__}")
                # A copy: the caller may change its lists before the step is over.
                own = KVSequence(
                    index(sequence.num_entries),
                    index(sequence.num_rows),
                    index(sequence.first_position),
                    sequence.sinks,
                    tuple(sequence.blocks),
                    tuple(sequence.block_formats),
                    tuple(sequence.open_pages),
                )
                taken.append(own)
                written += self._prepare(own, struct, kept).items()
            _check_apart(written)
            return KVStep(self, taken, structs, kept)

    def close_block(self, page_format: int, layer: int, open_page: Page, page: Page) -> None:
        """Compress one layer of an open, full block into a page of another format.

        Args:
            page_format: place of that format in `cache_format.pages`.
            layer: of the model.
            open_page: uint8 (cache_format.open.nbytes,) with 64 entries.
            page: uint8 (nbytes of the format,), written to: this layer's part.

        Raises:
            ValueError: an argument is out of its range.
            TypeError: a number is no integer.
            RuntimeError: the kernels are closed, or another thread is using them.
        """
        with self._turn:
            page_format, layer = index(page_format), index(layer)
            self._check_layer(page_format, layer, _OPEN + 1)
            (source,) = self._open_addresses.find((open_page,), "open_page")
            pages = self._closed_addresses[page_format]
            (target,) = pages.find((page,), "page")
            pages.check((page,), "page")
            if source < target + pages.nbytes and target < source + self._open_addresses.nbytes:
                raise ValueError("page must be another one than open_page")
            if self._functions is None:
                kv_reference.close_block(self._cache_format, page_format, layer, open_page, page)
            else:
                self._functions.edge_vl_kernels_kv_close(
                    self._pool, self._model_address, page_format, layer, source, target
                )

    def read(
        self, page_format: int, layer: int, page: Page, first: int, count: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Restore entries of one layer of a page.

        Args:
            page_format: place of the page's format in `cache_format.pages`; -1: that of open blocks.
            layer: of the model.
            page: uint8 (nbytes of the format,).
            first: of the entries, 0 to 63.
            count: of entries, 1 to 64 - first.

        Returns:
            Keys (turned, where they are) and values, each float32 (count, num_kv_heads, head_dim), newly allocated.

        Raises:
            ValueError: an argument is out of its range.
            TypeError: a number is no integer.
            RuntimeError: the kernels are closed, or another thread is using them.
        """
        with self._turn:
            page_format, layer, first, count = index(page_format), index(layer), index(first), index(count)
            self._check_layer(page_format, layer, _OPEN)
            if first < 0 or count < 1 or first + count > BLOCK_ENTRIES:
                raise ValueError(f"entries {first} to {first + count} are not within a page's {BLOCK_ENTRIES}")
            addresses = self._open_addresses if page_format == _OPEN else self._closed_addresses[page_format]
            (address,) = addresses.find((page,), "page")
            if self._functions is None:
                layout = self._cache_format.open if page_format == _OPEN else self._cache_format.pages[page_format]
                return kv_reference.read(layout, layer, page, first, count)
            geometry = self._cache_format.geometry
            keys = np.empty((count, geometry.num_kv_heads, geometry.head_dim), np.float32)
            values = np.empty_like(keys)
            number = len(self._cache_format.pages) if page_format == _OPEN else page_format
            self._functions.edge_vl_kernels_kv_read(
                self._pool,
                self._model_address,
                number,
                layer,
                address,
                first,
                count,
                keys.ctypes.data,
                values.ctypes.data,
            )
            return keys, values

    def read_sinks(
        self, layer: int, sinks: Page, first: int, count: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Restore sinks of one layer.

        Args:
            layer: of the model.
            sinks: uint8 (cache_format.sinks_nbytes,).
            first: of the sinks.
            count: of sinks, 1 to num_sinks - first.

        Returns:
            Keys and values, like those of `read`.

        Raises:
            ValueError: an argument is out of its range.
            TypeError: a number is no integer.
            RuntimeError: the kernels are closed, or another thread is using them.
        """
        with self._turn:
            layer, first, count = index(layer), index(first), index(count)
            self._check_layer(_OPEN, layer, _OPEN)
            num_sinks = self._cache_format.num_sinks
            if first < 0 or count < 1 or first + count > num_sinks:
                raise ValueError(f"entries {first} to {first + count} are not within {num_sinks} sinks")
            self._sink_addresses.find((sinks,), "sinks")
            entries = kv_reference.sink_arrays(self._cache_format, layer, sinks)[:, :, first : first + count]
            keys, values = entries.transpose(1, 2, 0, 3).astype(np.float32, order="C")
            return keys, values

    def close(self) -> None:
        """End the threads. Nothing else may be called afterwards; closing twice does no harm.

        Raises:
            RuntimeError: another thread is using the kernels; they stay open.
        """
        with self._turn:
            self._is_open = False
            if self._pool is not None:
                self._free()
                self._pool = None

    def _check_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("the kernels are closed")

    def _check_layer(self, page_format: int, layer: int, lowest: int) -> None:
        self._check_open()
        last = len(self._cache_format.pages) - 1
        if not lowest <= page_format <= last:
            raise ValueError(f"page format {page_format}, but the last one is {last}")
        if not 0 <= layer < self._num_layers:
            raise ValueError(f"layer {layer} of a model that has {self._num_layers}")

    def _prepare(self, sequence: KVSequence, struct: kv_abi.Sequence, kept: list[Any]) -> dict[int, int]:
        """Check a sequence's part of a step and fill in its structure; return where it writes to, and the bytes there.

        The sequence's `blocks`, `block_formats` and `open_pages` are tuples; its formats become plain integers.
        """
        cache_format, num_sinks = self._cache_format, self._cache_format.num_sinks
        before, num_rows, blocks, formats = (
            sequence.num_entries,
            sequence.num_rows,
            sequence.blocks,
            sequence.block_formats,
        )
        if before < 0 or num_rows < 1:
            raise ValueError(f"a step needs at least one row for at least 0 entries, not {num_rows} for {before}")
        after = before + num_rows
        position, rope = sequence.first_position, self._rope
        if rope is None:
            position = 0  # nothing looks at it, however large it is
        elif position < 0 or position + num_rows > self._num_positions:
            raise ValueError(
                f"positions {position} to {position + num_rows - 1}, but rope has 0 to {self._num_positions - 1}"
            )
        was_closed, is_closed = cache_format.num_closed(before), cache_format.num_closed(after)
        num_open_pages = is_closed - was_closed + 1 if after > num_sinks else 0
        open_pages = sequence.open_pages
        if len(blocks) != is_closed or len(formats) != is_closed or len(open_pages) != num_open_pages:
            raise ValueError(
                f"{after} entries after the step, {before} before, need {is_closed} closed blocks and {num_open_pages} "
                f"open pages, not {len(blocks)} blocks in {len(formats)} formats and {len(open_pages)} open pages"
            )
        table = self._find_table(tuple(blocks), tuple(formats), id(open_pages[-1]) if open_pages else None)
        sequence.block_formats = table.formats
        is_full = cache_format.num_open(before) == BLOCK_ENTRIES
        if is_full and open_pages[0] is blocks[was_closed]:
            open_addresses = [table.addresses[was_closed], *self._open_addresses.find(open_pages[1:], "open_pages")]
        else:
            open_addresses = self._open_addresses.find(open_pages, "open_pages")
        self._open_addresses.check(open_pages[is_full:], "open_pages")
        written = dict.fromkeys(open_addresses[is_full:], self._open_addresses.nbytes)
        if is_closed > was_closed:
            written |= self._check_closing(sequence, was_closed, table.addresses.tolist(), open_addresses)
        sinks = None
        if num_sinks:
            (sinks,) = self._sink_addresses.find((sequence.sinks,), "sinks")  # type: ignore[arg-type]
            if before < num_sinks:
                self._sink_addresses.check((sequence.sinks,), "sinks")  # type: ignore[arg-type]
                written[sinks] = self._sink_addresses.nbytes
        elif sequence.sinks is not None:
            raise ValueError("sinks must be None: the format has none")
        open_array = array.array("Q", open_addresses)
        kept += (table, open_array)
        struct.num_entries, struct.num_rows, struct.first_position = before, num_rows, position
        struct.sinks, struct.num_closed = sinks, is_closed
        struct.blocks = table.addresses.buffer_info()[0]
        struct.formats = table.format_numbers.buffer_info()[0]
        struct.open_pages = open_array.buffer_info()[0]
        return written

    def _find_table(self, blocks: tuple[Page, ...], formats: tuple[int, ...], key: int | None) -> _BlockTable:
        """Check blocks and formats and return them for C, in a table of before if they have not changed."""
        num_forgotten = sum([addresses.num_forgotten for addresses in self._closed_addresses])
        page_ids = list(map(id, blocks))
        known = self._block_tables.get(key)
        if (
            known is not None
            and known.num_forgotten == num_forgotten
            and known.page_ids == page_ids
            and known.formats == formats
        ):
            return known
        formats = tuple(map(index, formats))
        if formats and not 0 <= min(formats) <= max(formats) < len(self._closed_addresses):
            last = len(self._closed_addresses) - 1
            raise ValueError(f"block_formats must be 0 to {last}, not {min(formats)} to {max(formats)}")
        addresses = array.array("Q", bytes(8 * len(blocks)))
        for page_format, pages in enumerate(self._closed_addresses):
            places = [place for place, own in enumerate(formats) if own == page_format]
            found = pages.find([blocks[place] for place in places], f"blocks of format {page_format}")
            for place, address in zip(places, found, strict=True):
                addresses[place] = address
        table = _BlockTable(page_ids, formats, num_forgotten, addresses, array.array("i", formats))
        if len(self._block_tables) >= _MAX_BLOCK_TABLES:
            self._block_tables.clear()
        self._block_tables[key] = table
        return table

    def _check_closing(
        self, sequence: KVSequence, was_closed: int, block_addresses: list[int], open_addresses: list[int]
    ) -> dict[int, int]:
        """Check that nothing is written over what a step still needs; return the pages that it compresses to."""
        num_open = self._cache_format.num_open(sequence.num_entries)
        targets = {}
        lasting = open_addresses[:1] if num_open else []
        for block in range(was_closed, len(block_addresses)):
            target, source = block_addresses[block], open_addresses[block - was_closed]
            page_format = sequence.block_formats[block]
            if target != source:
                pages = self._closed_addresses[page_format]
                pages.check((sequence.blocks[block],), f"blocks of format {page_format}")
                targets[target] = pages.nbytes
                continue
            if not self._is_raw[page_format] and (block > was_closed or num_open < BLOCK_ENTRIES):
                raise ValueError(f"a block of format {page_format} cannot be closed in its open page; give it another")
            if block > was_closed or not num_open:
                lasting.append(source)
        if any(open_addresses.count(address) > 1 for address in lasting):
            raise ValueError("an open page whose entries are still needed is given to another block, too")
        if len(set(block_addresses)) < len(block_addresses):
            raise ValueError("two blocks have the same page")
        if not set(open_addresses).isdisjoint({*block_addresses[:was_closed], *targets}):
            raise ValueError("an open page is the page of another block, too")
        return targets


def _formats(cache_format: CacheFormat) -> tuple[PageFormat, ...]:
    return (*cache_format.pages, cache_format.open)


def _check_apart(written: list[tuple[int, int]]) -> None:
    """Check that nothing is written to twice: the addresses of pages, each with its bytes."""
    written.sort()
    for (one, nbytes), (other, _) in itertools.pairwise(written):
        if one == other:
            raise ValueError("two sequences of a step write to the same page; copy what they share before")
        if other < one + nbytes:
            raise ValueError("two pages that a step writes to overlap; make each with aligned_page")


def _check_format(cache_format: CacheFormat) -> None:
    if not isinstance(cache_format, CacheFormat):
        raise TypeError(f"cache_format must be a CacheFormat, not a {type(cache_format).__name__}")
    if not cache_format.pages:
        raise ValueError("a cache format needs at least one format of pages")
    if any(page_format.geometry != cache_format.geometry for page_format in cache_format.pages):
        raise ValueError("the formats of pages have other geometries than that of open blocks")
    precisions = {precision for layer in cache_format.open.layers for precision in (layer.keys, layer.values)}
    if precisions not in ({"f32"}, {"f16"}):
        raise ValueError(f"open blocks must be all f32 or all f16, not {', '.join(sorted(precisions))}")
    if cache_format.num_sinks < 0:
        raise ValueError(f"num_sinks must be at least 0, not {cache_format.num_sinks}")
