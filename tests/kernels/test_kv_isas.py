"""Every instruction set against the reference: the same bytes in the pages, and the same attention up to rounding."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from edge_vl_kernels import (
    BLOCK_ENTRIES,
    CacheFormat,
    KVGeometry,
    KVKernels,
    KVSequence,
    Page,
    Precision,
    Rope,
    aligned_page,
    kv_reference,
)
from edge_vl_kernels.kv_format import PRECISIONS
from edge_vl_kernels.library import available_isas
from tests.kernels.kv_sequences import (
    FILL,
    GrowingSequence,
    Rows,
    append,
    make_format,
    make_rope,
    make_rows,
    split_rows,
)

COMPILED = [isa for isa in available_isas() if isa != "reference"]
HEAD_DIMS = (32, 64, 96, 128, 160, 192, 224, 256)
GROUP_SIZES = (1, 2, 3, 4, 5, 7, 8)
QUANTIZED: list[tuple[Precision, Precision]] = [
    ("int8", "int8"),
    ("int8", "int4"),
    ("int4", "int8"),
    ("int4", "int4"),
    ("f16", "int4"),
    ("int8", "f16"),
]

pytestmark = pytest.mark.skipif(not COMPILED, reason="installed without compiled kernels")
each_isa = pytest.mark.parametrize("isa", COMPILED)


def packed(rows: Rows) -> Rows:
    """Lay queries, keys and values side by side, as one matrix product leaves them."""
    num_rows = len(rows[0])
    matrix = np.concatenate([part.reshape(num_rows, -1) for part in rows], axis=1)
    ends = np.cumsum([part[0].size for part in rows])
    queries, keys, values = (
        matrix[:, end - part[0].size : end].reshape(part.shape) for end, part in zip(ends, rows, strict=True)
    )
    return queries, keys, values


def transposed(rows: Rows) -> Rows:
    queries, keys, values = (np.ascontiguousarray(part.transpose(1, 0, 2)).transpose(1, 0, 2) for part in rows)
    return queries, keys, values


def spread_out(rows: Rows) -> Rows:
    """Leave gaps between heads and rows, and let rows run backwards."""
    parts = []
    for part in rows:
        wide = np.full((2 * len(part), part.shape[1] + 1, part.shape[2] + 5), np.nan, np.float32)
        view = wide[::-2, 1:, 3:-2]
        view[:] = part
        parts.append(view)
    return parts[0], parts[1], parts[2]


LAYOUTS: dict[str, Callable[[Rows], Rows]] = {
    "plain": lambda rows: rows,
    "packed": packed,
    "transposed": transposed,
    "spread out": spread_out,
}


@dataclass(frozen=True)
class Case:
    """A cache format, sequences of it, and how they grow.

    Attributes:
        cache_format: of the sequences.
        rope: or None.
        sizes: for each step, the rows that each sequence gets; 0: it takes no part.
        layout: of the rows.
        num_threads: of the compiled kernels.
        seed: of the numbers.
    """

    cache_format: CacheFormat
    rope: Rope | None
    sizes: list[list[int]]
    layout: str
    num_threads: int
    seed: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    head_dim, group_size = draw(st.sampled_from(HEAD_DIMS)), draw(st.sampled_from(GROUP_SIZES))
    # The portable code is slow: as many heads as take it a moment.
    num_kv_heads = draw(st.integers(1, 3)) if head_dim * group_size <= 256 else 1
    geometry = KVGeometry(2, num_kv_heads * group_size, num_kv_heads, head_dim)
    open_precision: Precision = draw(st.sampled_from(("f16", "f32")))
    precisions = st.sampled_from(PRECISIONS if open_precision == "f32" else PRECISIONS[1:])
    layers = st.lists(st.tuples(precisions, precisions), min_size=2, max_size=2)
    pages = draw(st.lists(layers, min_size=1, max_size=2))
    num_sinks = draw(st.sampled_from((0, 4)))
    rotary_dim = draw(st.sampled_from((0, 2, 16, head_dim - 6, head_dim)))
    rope = make_rope(1000, rotary_dim, draw(st.booleans())) if rotary_dim else None
    num_sequences = draw(st.integers(1, 3))
    sizes = st.lists(
        st.one_of(st.integers(0, 3), st.integers(1, 150)), min_size=num_sequences, max_size=num_sequences
    ).filter(any)
    return Case(
        make_format(geometry, *pages, open_precision=open_precision, num_sinks=num_sinks),
        rope,
        draw(st.lists(sizes, min_size=1, max_size=3)),
        draw(st.sampled_from(list(LAYOUTS))),
        draw(st.integers(1, 3)),
        draw(st.integers(0, 2**32 - 1)),
    )


def tolerance(rows: Rows, scale: float, isa: str, cache_format: CacheFormat) -> float:
    """Return how far attention may be from the reference.

    That is what float32 sums lose that are added up in another order, and 0.0005 of the largest value where the AVX-512
    kernels multiply codes as integers.
    """
    queries, keys, values = rows
    largest_score = abs(scale) * np.linalg.norm(queries, axis=-1).max() * np.linalg.norm(keys, axis=-1).max()
    precisions = {p for page in cache_format.pages for layer in page.layers for p in (layer.keys, layer.values)}
    is_rounded = isa == "avx512" and bool(precisions & {"int8", "int4"})
    return (3e-7 * (10 + float(largest_score)) + 5e-4 * is_rounded) * float(np.abs(values).max())


def kernels_of(case: Case, isa: str) -> KVKernels:
    scale = 1 / math.sqrt(case.cache_format.geometry.head_dim)
    return KVKernels(case.cache_format, scale=scale, rope=case.rope, num_threads=case.num_threads, isa=isa)


def assert_same_bytes(own: GrowingSequence, other: GrowingSequence) -> None:
    """Check all that two sequences have stored: turned keys, codes, scales and zeros."""
    assert own.formats == other.formats
    for one, two in zip(entries_of(own), entries_of(other), strict=True):
        np.testing.assert_array_equal(one, two)
    for page, other_page, raw in zip(own.blocks, other.blocks, own.raw_pages, strict=False):
        if page is not raw:
            np.testing.assert_array_equal(page, other_page)


@each_isa
@settings(deadline=None, max_examples=40)
@given(case=cases())
def test_steps_are_those_of_the_reference(isa: str, case: Case) -> None:
    rng = np.random.default_rng(case.seed)
    geometry, num_formats = case.cache_format.geometry, len(case.cache_format.pages)
    own, other = (
        [
            GrowingSequence(case.cache_format, lambda block: block % num_formats, 31 * i)
            for i in range(len(case.sizes[0]))
        ]
        for _ in range(2)
    )
    kernels, reference = kernels_of(case, isa), kernels_of(case, "reference")
    largest = 0.0
    for sizes in case.sizes:
        taking = [i for i, size in enumerate(sizes) if size]
        parts = [own[i].begin(sizes[i]) for i in taking]
        other_parts = [other[i].begin(sizes[i]) for i in taking]
        step, other_step = kernels.step(parts), reference.step(other_parts)
        for layer in range(geometry.num_layers):
            rows = LAYOUTS[case.layout](make_rows(geometry, sum(sizes), rng))
            context = LAYOUTS[case.layout]((np.full_like(rows[0], np.nan), rows[1], rows[2]))[0]
            expected = np.full(rows[0].shape, np.nan, np.float32)
            step.run(layer, kernels.rows(*rows, context))
            other_step.run(layer, reference.rows(*rows, expected))
            largest = max(largest, tolerance(rows, kernels.scale, isa, case.cache_format))
            np.testing.assert_allclose(context, expected, rtol=0, atol=largest)
        for i, part, other_part in zip(taking, parts, other_parts, strict=True):
            own[i].commit(part)
            other[i].commit(other_part)
    for one, two in zip(own, other, strict=True):
        assert_same_bytes(one, two)


@each_isa
@settings(deadline=None, max_examples=25)
@given(case=cases())
def test_what_is_read_is_what_the_reference_reads(isa: str, case: Case) -> None:
    rng = np.random.default_rng(case.seed)
    cache_format = case.cache_format
    kernels, reference = kernels_of(case, isa), kernels_of(case, "reference")
    raw = random_open_page(cache_format, rng)
    pages: list[tuple[int, Page]] = [(-1, raw)]
    for page_format, layout in enumerate(cache_format.pages):
        page = aligned_page(layout.nbytes)
        for layer in range(cache_format.geometry.num_layers):
            reference.close_block(page_format, layer, raw, page)
        pages.append((page_format, page))
    first = int(rng.integers(BLOCK_ENTRIES))
    count = int(rng.integers(1, BLOCK_ENTRIES - first + 1))
    for page_format, page in pages:
        for layer in range(cache_format.geometry.num_layers):
            for own, expected in zip(
                kernels.read(page_format, layer, page, first, count),
                reference.read(page_format, layer, page, first, count),
                strict=True,
            ):
                np.testing.assert_array_equal(own, expected)


def random_open_page(cache_format: CacheFormat, rng: np.random.Generator) -> Page:
    """Return an open page of numbers of any size that may be kept: each bit pattern, with runs that are alike."""
    page = aligned_page(cache_format.open.nbytes)
    for layer in range(cache_format.geometry.num_layers):
        arrays = kv_reference.layer_arrays(cache_format.open, layer, page)
        for array in (arrays.keys, arrays.values):
            bits = rng.integers(0, 2**32, array.shape, dtype=np.uint32)
            numbers = bits.view(np.float32) if array.dtype == np.float32 else bits.astype(np.uint16).view(np.float16)
            numbers = np.where(np.abs(numbers) <= 65504, numbers, numbers.dtype.type(0))
            kinds = rng.integers(0, 8, (*array.shape[:-1], 1))
            ordinary = (rng.normal(size=array.shape) * 3 + rng.normal(size=kinds.shape) * 100).astype(array.dtype)
            tiny = (rng.normal(size=array.shape) * 1e-6).astype(array.dtype)
            constant = np.broadcast_to(ordinary[..., :1], array.shape)
            signed_zero = np.where(ordinary > 0, array.dtype.type(0), array.dtype.type(-0.0))
            codes = (rng.integers(-127, 128, array.shape) * 0.25).astype(array.dtype)
            array[:] = np.select(
                [kinds == 0, kinds == 1, kinds == 2, kinds == 3, kinds == 4, kinds == 5],
                [numbers, tiny, constant, signed_zero, codes, codes + array.dtype.type(0.125)],
                ordinary,
            )
    return page


@each_isa
@pytest.mark.parametrize("open_precision", ["f16", "f32"])
@pytest.mark.parametrize("pair", QUANTIZED)
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
def test_blocks_are_closed_to_the_same_bytes(
    isa: str, open_precision: Precision, pair: tuple[Precision, Precision], head_dim: int
) -> None:
    geometry = KVGeometry(2, 3, 3, head_dim)
    cache_format = make_format(geometry, pair, open_precision=open_precision)
    kernels = KVKernels(cache_format, scale=1.0, num_threads=2, isa=isa)
    rng = np.random.default_rng(head_dim)
    for _ in range(4):
        raw = random_open_page(cache_format, rng)
        own, expected = aligned_page(cache_format.pages[0].nbytes), aligned_page(cache_format.pages[0].nbytes)
        own[:] = expected[:] = FILL
        for layer in range(2):
            kernels.close_block(0, layer, raw, own)
            kv_reference.close_block(cache_format, 0, layer, raw, expected)
        np.testing.assert_array_equal(own, expected)


@each_isa
@settings(deadline=None, max_examples=20)
@given(case=cases(), data=st.data())
def test_how_rows_come_in_makes_no_difference(isa: str, case: Case, data: st.DataObject) -> None:
    sizes = [size for step in case.sizes for size in step if size]
    rng = np.random.default_rng(case.seed)
    layers = [make_rows(case.cache_format.geometry, sum(sizes), rng) for _ in range(2)]
    kernels = kernels_of(case, isa)
    whole, parts = GrowingSequence(case.cache_format), GrowingSequence(case.cache_format)

    at_once = append(kernels, whole, layers)
    in_parts = np.concatenate([append(kernels, parts, part) for part in split_rows(layers, sizes)], axis=1)

    for layer, rows in enumerate(layers):
        np.testing.assert_allclose(
            in_parts[layer], at_once[layer], rtol=0, atol=tolerance(rows, kernels.scale, isa, case.cache_format)
        )
    for one, two in zip(whole.blocks, parts.blocks, strict=True):
        if not any(one is raw for raw in whole.raw_pages):
            np.testing.assert_array_equal(one, two)
    for one, two in zip(whole.raw_pages[:-1], parts.raw_pages[:-1], strict=True):
        np.testing.assert_array_equal(one, two)


@each_isa
@pytest.mark.parametrize("pair", [("f32", "f32"), ("f16", "f16"), *QUANTIZED])
def test_one_row_at_a_time_is_all_rows_at_once(isa: str, pair: tuple[Precision, Precision]) -> None:
    geometry = KVGeometry(1, 9, 3, 64)
    is_raw = pair[0] == pair[1] and pair[0] in ("f32", "f16")
    cache_format = make_format(
        geometry, pair, open_precision="f32" if "f32" in pair else "f16", num_sinks=0 if is_raw else 4
    )
    kernels = KVKernels(cache_format, scale=0.125, rope=make_rope(400, 64), isa=isa)
    layers = [make_rows(geometry, 300, np.random.default_rng(1))]

    at_once = append(kernels, GrowingSequence(cache_format), layers)
    one_by_one = GrowingSequence(cache_format)
    in_parts = np.concatenate([append(kernels, one_by_one, part) for part in split_rows(layers, [1] * 300)], axis=1)

    np.testing.assert_allclose(in_parts, at_once, rtol=0, atol=tolerance(layers[0], 0.125, isa, cache_format))


@each_isa
@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("pair", [("f32", "f32"), ("f16", "f16"), *QUANTIZED])
def test_long_histories_are_attended_to_whole(isa: str, pair: tuple[Precision, Precision], group_size: int) -> None:
    geometry = KVGeometry(1, 2 * group_size, 2, 64)
    cache_format = make_format(geometry, pair, open_precision="f32" if "f32" in pair else "f16")
    rng = np.random.default_rng(2)
    num_entries = 4 + 64 * 100 + 21
    sequence = GrowingSequence(cache_format)
    reference = KVKernels(cache_format, scale=0.125, isa="reference")
    _, keys, values = make_rows(geometry, num_entries, rng)
    part = sequence.begin(num_entries)
    reference.step([part]).run(0, reference.rows(None, keys, values, None))
    sequence.commit(part)

    for num_rows in (1, 7):
        rows = make_rows(geometry, num_rows, rng)
        expected = np.empty_like(rows[0])
        reference.step([sequence.begin(num_rows)]).run(0, reference.rows(*rows, expected))
        for num_threads in (1, 2):
            kernels = KVKernels(cache_format, scale=0.125, num_threads=num_threads, isa=isa)
            context = np.empty_like(rows[0])
            kernels.step([sequence.begin(num_rows)]).run(0, kernels.rows(*rows, context))
            slack = tolerance((rows[0], keys, values), 0.125, isa, cache_format)
            np.testing.assert_allclose(context, expected, rtol=0, atol=slack)


@each_isa
def test_the_number_of_threads_changes_not_a_bit(isa: str) -> None:
    geometry = KVGeometry(1, 12, 3, 96)
    cache_format = make_format(geometry, ("int8", "int4"))
    rng = np.random.default_rng(3)
    _, keys, values = make_rows(geometry, 4000, rng)
    layers = [make_rows(geometry, 90, rng)]
    pieces = split_rows(layers, [1, 60, 5, 1, 23])
    contexts, pages = [], []
    for num_threads in (1, 2, 3, 5):
        kernels = KVKernels(cache_format, scale=0.1, num_threads=num_threads, rope=make_rope(5000, 96), isa=isa)
        sequence = GrowingSequence(cache_format)
        part = sequence.begin(4000)
        kernels.step([part]).run(0, kernels.rows(None, keys, values, None))
        sequence.commit(part)
        contexts.append(np.concatenate([append(kernels, sequence, piece) for piece in pieces], axis=1))
        pages.append(np.concatenate(sequence.blocks))

    for context, page in zip(contexts[1:], pages[1:], strict=True):
        np.testing.assert_array_equal(context, contexts[0])
        np.testing.assert_array_equal(page, pages[0])


@each_isa
@pytest.mark.parametrize("pair", [("f32", "f32"), ("f16", "f16"), *QUANTIZED])
@pytest.mark.parametrize("direction", [1, -1])
def test_scores_of_any_size_and_order_are_no_trouble(
    isa: str, pair: tuple[Precision, Precision], direction: int
) -> None:
    geometry = KVGeometry(1, 4, 2, 32)
    cache_format = make_format(geometry, pair, open_precision="f32" if "f32" in pair else "f16")
    queries, keys, values = make_rows(geometry, 260, np.random.default_rng(4))
    keys *= np.linspace(0.01, 60, 260, dtype=np.float32)[::direction, None, None]
    queries[130:] *= 30
    rows = (queries, keys, values)

    own, expected = (
        append(KVKernels(cache_format, scale=1.0, isa=name), GrowingSequence(cache_format), [rows])
        for name in (isa, "reference")
    )

    assert np.isfinite(own).all()
    np.testing.assert_allclose(own, expected, rtol=0, atol=tolerance(rows, 1.0, isa, cache_format))


@each_isa
@pytest.mark.parametrize("pair", QUANTIZED)
def test_channels_that_are_constant_or_far_off_zero_are_no_trouble(isa: str, pair: tuple[Precision, Precision]) -> None:
    geometry = KVGeometry(1, 6, 2, 64)
    cache_format = make_format(geometry, pair)
    queries, keys, values = make_rows(geometry, 200, np.random.default_rng(5))
    keys[..., 3], keys[..., 4], keys[..., 5], keys[..., 6] = 0.0, 7.0, -60_000.0, 1e-7
    keys[..., 7] += 900
    queries[..., 5] *= 1e-4
    values[50:60], values[60:70], values[70:80] = 0.0, 40_000.0, -3e-8
    rows = (queries, keys, values)

    own, expected = (
        append(KVKernels(cache_format, scale=0.125, isa=name), GrowingSequence(cache_format), [rows])
        for name in (isa, "reference")
    )

    assert np.isfinite(own).all()
    # The bias is the same for all entries but as large as all scores: what float32 loses there is lost in the weights.
    np.testing.assert_allclose(own, expected, rtol=0, atol=2e-3 * np.abs(values).max())
    np.testing.assert_allclose(own[:, 10:45], expected[:, 10:45], rtol=0, atol=1e-2)


@each_isa
@pytest.mark.parametrize("head_dim", [32, 96, 256])
@pytest.mark.parametrize(
    ("open_precision", "pair", "bad"),
    [
        ("f16", ("int8", "int4"), np.nan),
        ("f16", ("f16", "f16"), np.inf),
        ("f16", ("int4", "int8"), -65505.0),
        ("f16", ("f16", "f16"), 3e38),
        ("f32", ("f32", "f32"), -np.inf),
        ("f32", ("f32", "f32"), np.nan),
        ("f32", ("int8", "int8"), 65505.0),
        ("f32", ("f16", "int4"), 1e10),
    ],
)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_numbers_that_cannot_be_kept_are_refused_as_by_the_reference(
    isa: str,
    open_precision: Precision,
    pair: tuple[Precision, Precision],
    bad: float,
    head_dim: int,
    num_threads: int,
) -> None:
    geometry = KVGeometry(2, 4, 2, head_dim)
    cache_format = make_format(geometry, pair, open_precision=open_precision)
    kernels = KVKernels(cache_format, scale=0.1, num_threads=num_threads, isa=isa)
    reference = KVKernels(cache_format, scale=0.1, isa="reference")
    rng = np.random.default_rng(6)
    for num_before, num_rows in ((0, 1), (2, 5), (40, 60), (68, 1), (68, 300), (100, 2)):
        sequence = GrowingSequence(cache_format)
        if num_before:
            append(kernels, sequence, [make_rows(geometry, num_before, rng) for _ in range(2)])
        stored = entries_of(sequence)
        for is_key in (True, False):
            rows = make_rows(geometry, num_rows, rng)
            place = tuple(int(rng.integers(size)) for size in rows[1].shape)
            rows[1 if is_key else 2][place] = bad
            messages = []
            for face in (kernels, reference):
                step = face.step([sequence.begin(num_rows)])
                with pytest.raises(ValueError, match="layer 1") as caught:
                    step.run(1, face.rows(*rows, np.empty_like(rows[0])))
                messages.append(str(caught.value))
            assert messages[0] == messages[1]
            for own, before in zip(entries_of(sequence), stored, strict=True):
                np.testing.assert_array_equal(own, before)


def entries_of(sequence: GrowingSequence) -> list[NDArray[np.float32]]:
    """Copy all that a sequence has stored, of all layers."""
    cache_format = sequence.cache_format
    copies = []
    for layer in range(cache_format.geometry.num_layers):
        if sequence.sinks is not None:
            count = min(sequence.num_entries, cache_format.num_sinks)
            sinks = kv_reference.sink_arrays(cache_format, layer, sequence.sinks)[:, :, :count]
            copies.append(sinks.astype(np.float32))
        for page, page_format in zip(sequence.blocks, sequence.formats, strict=True):
            copies += kv_reference.read(cache_format.pages[page_format], layer, page, 0, BLOCK_ENTRIES)
        num_open = cache_format.num_open(sequence.num_entries)
        if num_open:
            page = sequence.raw_pages[len(sequence.blocks)]
            copies += kv_reference.read(cache_format.open, layer, page, 0, num_open)
    return copies


@each_isa
def test_the_largest_numbers_that_can_be_kept_are_kept(isa: str) -> None:
    for open_precision, pair, largest in (
        ("f16", ("int8", "int4"), 65504.0),
        ("f16", ("f16", "f16"), 65504.0),
        ("f32", ("int4", "int8"), 65504.0),
        ("f32", ("f32", "f32"), 1e18),
    ):
        geometry = KVGeometry(1, 2, 2, 32)
        cache_format = make_format(geometry, pair, open_precision=open_precision)  # type: ignore[arg-type]
        _, keys, values = make_rows(geometry, 70, np.random.default_rng(7))
        keys[3, 1, 31], values[69, 0, 0], keys[20, 0, 0], values[20, 0, 0] = largest, -largest, -largest, largest
        sequences = []
        for name in (isa, "reference"):
            kernels = KVKernels(cache_format, scale=0.1, isa=name)
            sequence = GrowingSequence(cache_format)
            part = sequence.begin(70)
            kernels.step([part]).run(0, kernels.rows(None, keys, values, None))
            sequence.commit(part)
            sequences.append(sequence)
        for own, expected in zip(entries_of(sequences[0]), entries_of(sequences[1]), strict=True):
            np.testing.assert_array_equal(own, expected)


@each_isa
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_queries_that_are_not_finite_spoil_their_own_rows_alone(isa: str, bad: float) -> None:
    geometry = KVGeometry(1, 6, 2, 64)
    cache_format = make_format(geometry, ("int8", "int8"))
    kernels = KVKernels(cache_format, scale=0.125, isa=isa)
    queries, keys, values = make_rows(geometry, 150, np.random.default_rng(8))
    expected = append(kernels, GrowingSequence(cache_format), [(queries, keys, values)])
    queries = queries.copy()
    queries[77, 4, 9] = bad

    context = append(kernels, GrowingSequence(cache_format), [(queries, keys, values)])

    assert np.isnan(context[0, 77, 4]).any() or bad == np.inf
    context[0, 77, 4] = expected[0, 77, 4]
    np.testing.assert_array_equal(context, expected)


@each_isa
@pytest.mark.parametrize("pair", QUANTIZED)
def test_a_block_that_is_closed_before_its_successor_begins_is_taken_as_it_is(
    isa: str, pair: tuple[Precision, Precision]
) -> None:
    geometry = KVGeometry(1, 4, 2, 64)
    cache_format = make_format(geometry, pair)
    kernels = KVKernels(cache_format, scale=0.125, isa=isa)
    queries, keys, values = make_rows(geometry, 4 + 128 + 30, np.random.default_rng(9))
    sequence = GrowingSequence(cache_format)
    (expected,) = append(kernels, sequence, [(queries, keys, values)])
    border = 4 + 128
    before = [page.copy() for page in sequence.blocks]

    for num_rows in (1, 30):
        fresh = aligned_page(cache_format.open.nbytes)
        part = KVSequence(
            border, num_rows, border, sequence.sinks, sequence.blocks, [0, 0], [sequence.blocks[1], fresh]
        )
        rows = [array[border : border + num_rows] for array in (queries, keys, values)]
        context = np.empty_like(rows[0])
        kernels.step([part]).run(0, kernels.rows(rows[0], rows[1], rows[2], context))
        np.testing.assert_allclose(
            context,
            expected[border : border + num_rows],
            rtol=0,
            atol=tolerance((queries, keys, values), 0.125, isa, cache_format),
        )

    for page, copy in zip(sequence.blocks, before, strict=True):
        np.testing.assert_array_equal(page, copy)


@each_isa
def test_one_open_page_may_serve_all_blocks_of_a_step(isa: str) -> None:
    geometry = KVGeometry(1, 4, 2, 64)
    cache_format = make_format(geometry, ("int8", "int4"))
    kernels = KVKernels(cache_format, scale=0.125, num_threads=2, isa=isa)
    rows = make_rows(geometry, 400, np.random.default_rng(10))
    sequence = GrowingSequence(cache_format)
    (expected,) = append(kernels, sequence, [rows])

    part = GrowingSequence(cache_format).begin(400)
    part.open_pages = [aligned_page(cache_format.open.nbytes)] * len(part.open_pages)
    context = np.empty_like(rows[0])
    kernels.step([part]).run(0, kernels.rows(*rows, context))

    np.testing.assert_array_equal(context, expected)
    for own, other in zip(part.blocks, sequence.blocks, strict=True):
        np.testing.assert_array_equal(own, other)


@each_isa
def test_nothing_is_written_beside_what_belongs_to_the_step(isa: str) -> None:
    geometry = KVGeometry(3, 4, 2, 96)
    cache_format = make_format(geometry, [("int8", "int4"), ("int4", "int8"), ("f16", "int4")])
    kernels = KVKernels(cache_format, scale=0.125, num_threads=2, isa=isa)
    queries, keys, values = make_rows(geometry, 150, np.random.default_rng(11))
    sequence = GrowingSequence(cache_format)
    part = sequence.begin(150)
    frame = np.full((154, 4, 100), 7.0, np.float32)
    context = frame[2:-2, :, 2:-2]

    kernels.step([part]).run(1, kernels.rows(queries, keys, values, context))

    assert sequence.sinks is not None
    assert_only_written(sequence.sinks, 2 * 2 * 4 * 96 * 2, 2 * 2 * 2 * 4 * 96 * 2)
    for page in part.blocks:
        first, second = (cache_format.pages[0].slices[layer].offset for layer in (1, 2))
        assert_only_written(page, first, second)
    for page in part.open_pages:
        first, second = (cache_format.open.slices[layer].offset for layer in (1, 2))
        assert_only_written(page, first, second)
    context[:] = 7.0
    assert (frame == 7.0).all()


def assert_only_written(page: Page, first: int, end: int) -> None:
    assert (page[:first] == FILL).all()
    assert (page[end:] == FILL).all()
    assert not (page[first:end] == FILL).all()


def test_every_precision_is_among_the_pairs_that_are_tried() -> None:
    tried: Sequence[tuple[str, str]] = [*QUANTIZED, ("f32", "f32")]
    assert {keys for keys, _ in tried} == {values for _, values in tried} == set(PRECISIONS)
