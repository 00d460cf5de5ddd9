"""Steps of the NumPy reference, written down for the test driver in `kernels/csrc/tests/replay.cpp`."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_vl_kernels.kv import KVKernels, KVSequence, Page, Rope, aligned_page
from edge_vl_kernels.kv_format import PRECISIONS, CacheFormat

__all__ = ["record"]


@dataclass
class _Cache:
    """A sequence's pages."""

    sinks: Page | None
    open_page: Page
    num_entries: int = 0
    blocks: list[Page] = field(default_factory=list)
    formats: list[int] = field(default_factory=list)


def record(
    file: Path, cache_format: CacheFormat, steps: Sequence[Sequence[int]], *, rope: Rope | None = None, seed: int = 0
) -> None:
    """Run steps of random rows with the reference, and write them with everything that came of them.

    Args:
        file: to write.
        cache_format: of the caches.
        steps: for each step, the rows that it appends to each sequence; 0: none.
        rope: turns keys and queries; its tables cover every position.
        seed: of the rows.
    """
    random = np.random.default_rng(seed)
    kernels = KVKernels(cache_format, scale=cache_format.geometry.head_dim**-0.5, rope=rope, isa="reference")
    caches = [
        _Cache(
            aligned_page(cache_format.sinks_nbytes) if cache_format.num_sinks else None,
            aligned_page(cache_format.open.nbytes),
        )
        for _ in steps[0]
    ]
    with file.open("wb") as out:
        out.write(_header(kernels))
        out.write(_integers([len(steps)]))
        for counts in steps:
            out.write(_step(kernels, caches, counts, random))
        out.write(_integers([len(caches)]))
        for cache in caches:
            out.write(_integers([cache.num_entries, len(cache.blocks)]))
            for page, number in zip(cache.blocks, cache.formats, strict=True):
                out.write(_integers([number]) + page.tobytes())
            out.write(cache.open_page.tobytes())
            if cache.sinks is not None:
                out.write(cache.sinks.tobytes())


def _header(kernels: KVKernels) -> bytes:
    cache_format, rope = kernels.cache_format, kernels.rope
    geometry, formats = cache_format.geometry, (*cache_format.pages, cache_format.open)
    sizes = [geometry.num_layers, geometry.num_query_heads, geometry.num_kv_heads, geometry.head_dim]
    angles = b"" if rope is None else rope.cosines.tobytes() + rope.sines.tobytes()
    rotary = [0, 0, 0] if rope is None else [rope.rotary_dim, rope.is_interleaved, rope.num_positions]
    pairs = [pair for page_format in formats for pair in page_format.layers]
    precisions = [PRECISIONS.index(precision) for pair in pairs for precision in (pair.keys, pair.values)]
    return (
        _integers([*sizes, cache_format.num_sinks, len(formats)])
        + struct.pack("<f", kernels.scale)
        + _integers(rotary)
        + angles
        + _integers([*precisions, *(page_format.nbytes for page_format in formats)])
    )


def _step(kernels: KVKernels, caches: Sequence[_Cache], counts: Sequence[int], random: np.random.Generator) -> bytes:
    cache_format, geometry = kernels.cache_format, kernels.cache_format.geometry
    sequences: list[KVSequence] = []
    header = [sum(count > 0 for count in counts)]
    for index, (cache, count) in enumerate(zip(caches, counts, strict=True)):
        if count == 0:
            continue
        num_closed = cache_format.num_closed(cache.num_entries + count)
        new_formats = random.integers(0, len(cache_format.pages), num_closed - len(cache.blocks)).tolist()
        header += [index, count, cache.num_entries, len(new_formats), *new_formats]
        open_pages = [cache.open_page]
        for number in new_formats:
            page_format = cache_format.pages[number]
            stays = page_format.layers == cache_format.open.layers
            cache.blocks.append(open_pages[-1] if stays else aligned_page(page_format.nbytes))
            cache.formats.append(number)
            open_pages.append(aligned_page(cache_format.open.nbytes))
        before = cache.num_entries
        cache.open_page = open_pages[-1]
        cache.num_entries += count
        used_pages = open_pages if cache.num_entries > cache_format.num_sinks else []  # sinks have a page of their own
        sequences.append(
            KVSequence(before, count, before, cache.sinks, cache.blocks, cache.formats, used_pages),
        )
    out = _integers(header)
    step, num_rows = kernels.step(sequences), sum(counts)
    for layer in range(geometry.num_layers):
        queries = _random_rows(random, num_rows, geometry.num_query_heads, geometry.head_dim)
        keys = _random_rows(random, num_rows, geometry.num_kv_heads, geometry.head_dim)
        keys[..., 3] *= 6  # one channel stands out, as in real models
        values = _random_rows(random, num_rows, geometry.num_kv_heads, geometry.head_dim)
        context = np.empty_like(queries)
        step.run(layer, kernels.rows(queries, keys, values, context))
        out += b"".join(array.tobytes() for array in (queries, keys, values, context))
    return out


def _random_rows(random: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return random.standard_normal(shape, np.float32)


def _integers(numbers: Iterable[int]) -> bytes:
    return np.array([*numbers], "<i8").tobytes()
