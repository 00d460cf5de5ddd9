"""The reference of key/value caches: held against exact arithmetic, and against attention by the book."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from edge_vl_kernels import BLOCK_ENTRIES, CacheFormat, KVGeometry, KVKernels, KVSequence, Precision, Rope, aligned_page
from edge_vl_kernels import kv_reference as reference
from edge_vl_kernels.kv_codes import dequantize, pack_halves, quantize_int4, quantize_int8, unpack_halves
from tests.kernels.kv_sequences import (
    FILL,
    GrowingSequence,
    Rows,
    append,
    append_all,
    make_format,
    make_rope,
    make_rows,
    split_rows,
)

GEOMETRY = KVGeometry(2, 6, 2, 32)
PAIRS: list[tuple[Precision, Precision]] = [("int8", "int8"), ("int8", "int4"), ("int4", "int4"), ("f16", "f16")]

stored_numbers = st.one_of(
    st.floats(-65504, 65504, width=16),
    st.floats(-65504, 65504, width=32),
    st.floats(-(2.0**-13), 2.0**-13, width=16),  # many of them subnormal
    st.sampled_from([0.0, -0.0, 65504.0, -65504.0, 6e-8, -6e-8]),
)
blocks_of_numbers = hnp.arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 20)), elements=stored_numbers)


def noise_layers(geometry: KVGeometry, num_rows: int, seed: int, spread: float = 1.0) -> list[Rows]:
    rng = np.random.default_rng(seed)
    return [make_rows(geometry, num_rows, rng, spread) for _ in range(geometry.num_layers)]


def kernels_of(cache_format: CacheFormat, rope: Rope | None = None, isa: str = "reference") -> KVKernels:
    return KVKernels(cache_format, scale=1 / math.sqrt(cache_format.geometry.head_dim), rope=rope, isa=isa)


def float16_above(value: np.float16) -> float:
    return float(np.nextafter(value, np.float16(np.inf)))


def float16_below(value: np.float16) -> float:
    return float(np.nextafter(value, np.float16(-np.inf)))


@settings(deadline=None)
@given(blocks_of_numbers)
def test_an_8_bit_scale_is_the_smallest_float16_that_covers_its_numbers(values: NDArray[np.float32]) -> None:
    codes, scales = quantize_int8(values)

    assert codes.dtype == np.int8
    assert scales.dtype == np.float16
    for row, (scale,) in zip(values, scales, strict=True):
        needed = float(np.abs(row).max() / np.float32(127))
        assert float(scale) >= needed
        assert scale == 0 or float16_below(scale) < needed


@settings(deadline=None)
@given(blocks_of_numbers)
def test_a_4_bit_zero_and_scale_are_the_closest_float16_that_cover_their_numbers(values: NDArray[np.float32]) -> None:
    codes, scales, zeros = quantize_int4(values)

    assert codes.max() <= 15
    for row, (scale,), (zero,) in zip(values, scales, zeros, strict=True):
        assert float(zero) <= row.min()
        assert float(zero) == row.min() or float16_above(zero) > row.min()
        needed = float((row.max() - np.float32(zero)) / np.float32(15))
        assert float(scale) >= needed
        assert scale == 0 or float16_below(scale) < needed


@settings(deadline=None)
@given(blocks_of_numbers)
def test_restored_numbers_are_at_most_half_a_scale_off(values: NDArray[np.float32]) -> None:
    codes8, scales8 = quantize_int8(values)
    codes4, scales4, zeros4 = quantize_int4(values)

    for restored, scales in (
        (dequantize(codes8, scales8, None), scales8),
        (dequantize(codes4, scales4, zeros4), scales4),
    ):
        # One part in 2^20 of the largest number: the division and the sum are rounded to float32.
        # And what is less than 7.5 of float32's smallest number is nothing when it is divided by 15.
        slack = np.abs(values).max() * 2.0**-20 + 7.5 * float(np.finfo(np.float32).smallest_subnormal)
        assert (np.abs(restored - values) <= 0.5 * scales.astype(np.float64) + slack).all()


@settings(deadline=None, max_examples=50)
@given(hnp.arrays(np.float32, 12, elements=st.floats(-100, 100, width=16)))
def test_codes_are_those_of_exact_arithmetic(values: NDArray[np.float32]) -> None:
    codes8, (scale8,) = quantize_int8(values)
    codes4, (scale4,), (zero4,) = quantize_int4(values)

    for value, code8, code4 in zip(values.tolist(), codes8.tolist(), codes4.tolist(), strict=True):
        for scale, zero, code, low, high in (
            (float(scale8), 0.0, code8, -127, 127),
            (float(scale4), float(zero4), code4, 0, 15),
        ):
            if scale == 0:
                assert code == 0
                continue
            exact = (Fraction(value) - Fraction(zero)) / Fraction(scale)
            # Only next to a half may rounding the quotient to float32 first make another code of it.
            tolerance = Fraction(1, 2**16)
            allowed = {max(low, min(high, round(exact + nudge))) for nudge in (-tolerance, 0, tolerance)}
            assert code in allowed


def test_halves_are_rounded_to_even() -> None:
    codes, _ = quantize_int8(np.array([127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127], np.float32))

    assert codes.tolist() == [127, 0, 2, 2, 0, -2, -2, -127]


@pytest.mark.parametrize("constant", [0.0, -0.0, 1.0, -3.5, 1000.0, 65504.0, -65504.0, 6e-8])
def test_a_constant_costs_no_precision_at_4_bits(constant: float) -> None:
    stored = np.full(64, np.float16(constant), np.float32)

    codes, scales, zeros = quantize_int4(stored)

    assert not codes.any()
    assert scales.tolist() == [0]
    assert dequantize(codes, scales, zeros).tolist() == stored.tolist()
    assert not np.signbit(zeros[0]) or constant < 0


def test_a_constant_that_is_no_float16_is_rounded_down_and_reached_by_its_scale() -> None:
    codes, scales, zeros = quantize_int4(np.full(64, 1000.1, np.float32))

    assert float(zeros[0]) == 1000.0
    np.testing.assert_allclose(dequantize(codes, scales, zeros), 1000.1, rtol=1e-6)


def test_nothing_but_zeros_stays_that() -> None:
    codes, scales = quantize_int8(np.array([0.0, -0.0], np.float32))

    assert codes.tolist() == [0, 0]
    assert scales.tobytes() == b"\x00\x00"


def test_scales_and_zeros_are_never_negative_zero() -> None:
    for values in ([-0.0, -0.0], [0.0, -0.0], [-0.0, 0.0], [-0.0, 1.0], [1e-9, 1.0]):
        _, scales, zeros = quantize_int4(np.array(values, np.float32))
        assert zeros.tobytes() == b"\x00\x00"
        assert not np.signbit(scales[0])
        assert not np.signbit(quantize_int8(np.array(values, np.float32))[1][0])


def test_the_first_half_is_in_the_low_bits() -> None:
    codes = np.array([[1, 2, 3, 4, 5, 6]], np.uint8)

    assert pack_halves(codes).tolist() == [[0x41, 0x52, 0x63]]
    np.testing.assert_array_equal(unpack_halves(pack_halves(codes)), codes)


def counted_page(cache_format: CacheFormat) -> NDArray[np.uint8]:
    """Return an open page of numbers that any language can make: (n * 40503 mod 65521 - 32760) / 1024."""
    page = aligned_page(cache_format.open.nbytes)
    geometry = cache_format.geometry
    n = np.arange(geometry.num_layers * geometry.num_kv_heads * 2 * BLOCK_ENTRIES * geometry.head_dim, dtype=np.int64)
    numbers = ((n * 40503 % 65521 - 32760) / 1024).reshape(geometry.num_layers, geometry.num_kv_heads, 2, -1)
    for layer in range(geometry.num_layers):
        arrays = reference.layer_arrays(cache_format.open, layer, page)
        arrays.keys[:] = numbers[layer, :, 0].reshape(arrays.keys.shape)
        arrays.values[:] = numbers[layer, :, 1].reshape(arrays.values.shape)
    return page


def test_each_byte_of_a_4_bit_head_is_where_the_description_says() -> None:
    geometry = KVGeometry(1, 2, 2, 160)
    cache_format = make_format(geometry, ("int4", "int4"))
    raw, page = counted_page(cache_format), aligned_page(cache_format.pages[0].nbytes)

    reference.close_block(cache_format, 0, 0, raw, page)

    head_bytes = cache_format.pages[0].slices[0].head_bytes
    raw_head_bytes = cache_format.open.slices[0].head_bytes
    for head in range(2):
        at = head * raw_head_bytes
        keys = np.frombuffer(raw[at : at + 160 * 64 * 2].tobytes(), "<f2").astype(np.float32).reshape(160, 64)
        at += 160 * 64 * 2
        values = np.frombuffer(raw[at : at + 160 * 64 * 2].tobytes(), "<f2").astype(np.float32).reshape(64, 160)
        data = page[head * head_bytes : (head + 1) * head_bytes].tobytes()
        for channel in (0, 1, 79, 80, 159):
            codes, scales, zeros = quantize_int4(keys[channel])
            expected = bytes(int(codes[i]) | int(codes[i + 32]) << 4 for i in range(32))
            assert data[channel * 32 : (channel + 1) * 32] == expected
            assert data[5120 + 2 * channel :][:2] == scales.tobytes()
            assert data[5440 + 2 * channel :][:2] == zeros.tobytes()
        for entry in (0, 1, 63):
            groups = [quantize_int4(values[entry, :80]), quantize_int4(values[entry, 80:])]
            expected = bytes(int(low) | int(high) << 4 for low, high in zip(groups[0][0], groups[1][0], strict=True))
            assert data[5760 + entry * 80 :][:80] == expected
            assert data[10_880 + entry * 4 :][:4] == groups[0][1].tobytes() + groups[1][1].tobytes()
            assert data[11_136 + entry * 4 :][:4] == groups[0][2].tobytes() + groups[1][2].tobytes()


@pytest.mark.parametrize(
    ("keys", "values", "digest"),
    [
        ("f16", "f16", "2d8342ccb060b99b"),
        ("int8", "int8", "6c4ed1cb139146cb"),
        ("int8", "int4", "6bdeb7814d980bc8"),
        ("int4", "int4", "aab829739b77313c"),
    ],
)
def test_version_1_makes_these_bytes(keys: Precision, values: Precision, digest: str) -> None:
    geometry = KVGeometry(2, 4, 2, 192)
    cache_format = make_format(geometry, (keys, values))
    raw, page = counted_page(cache_format), aligned_page(cache_format.pages[0].nbytes)

    for layer in range(2):
        reference.close_block(cache_format, 0, layer, raw, page)

    assert hashlib.sha256(page.tobytes()).hexdigest()[:16] == digest


def test_closing_a_layer_writes_to_that_layer_alone() -> None:
    cache_format = make_format(KVGeometry(3, 2, 2, 32), [("int8", "int4"), ("int4", "int4"), ("f16", "int8")])
    raw, page = counted_page(cache_format), aligned_page(cache_format.pages[0].nbytes)
    page[:] = FILL

    reference.close_block(cache_format, 0, 1, raw, page)

    layout = cache_format.pages[0].slices[1]
    end = layout.offset + 2 * layout.head_bytes
    assert (page[: layout.offset] == FILL).all()
    assert (page[end:] == FILL).all()
    assert not (page[layout.offset : end] == FILL).all()


@pytest.mark.parametrize("is_interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [32, 64])
def test_rope_is_a_turn_of_each_pair_by_its_angle(is_interleaved: bool, rotary_dim: int) -> None:
    rope = make_rope(50, rotary_dim, is_interleaved)
    rows = np.random.default_rng(0).normal(size=(5, 2, 64)).astype(np.float32)

    turned = reference.rotate(rows, rope, 40)

    half = rotary_dim // 2
    part = rows[..., :rotary_dim]
    pairs = part[..., ::2] + 1j * part[..., 1::2] if is_interleaved else part[..., :half] + 1j * part[..., half:]
    frequencies = 10_000.0 ** (-np.arange(half) / half)
    expected = pairs * np.exp(1j * np.arange(40, 45)[:, None, None] * frequencies)
    first, second = (
        (turned[..., :rotary_dim:2], turned[..., 1:rotary_dim:2])
        if is_interleaved
        else (
            turned[..., :half],
            turned[..., half:rotary_dim],
        )
    )
    np.testing.assert_allclose(first, expected.real, atol=1e-5)
    np.testing.assert_allclose(second, expected.imag, atol=1e-5)
    np.testing.assert_array_equal(turned[..., rotary_dim:], rows[..., rotary_dim:])


def attend_by_the_book(
    cache_format: CacheFormat, sequence: GrowingSequence, layer: int, queries: NDArray[Any], scale: float
) -> NDArray[np.float64]:
    """Attend with each row to all entries up to its own: its block's as they came, all earlier blocks' compressed."""
    geometry, num_sinks = cache_format.geometry, cache_format.num_sinks
    raw: list[tuple[NDArray[Any], NDArray[Any]]] = []
    closed: list[tuple[NDArray[Any], NDArray[Any]]] = []
    if sequence.sinks is not None:
        sinks = reference.sink_arrays(cache_format, layer, sequence.sinks).astype(np.float64)
        raw = [(sinks[:, 0, i], sinks[:, 1, i]) for i in range(num_sinks)]
        closed = list(raw)
    for block, page in enumerate(sequence.raw_pages):
        keys, values = reference.read(cache_format.open, layer, page, 0, BLOCK_ENTRIES)
        raw += zip(keys, values, strict=True)
        if block < len(sequence.blocks):
            page_format = cache_format.pages[sequence.formats[block]]
            keys, values = reference.read(page_format, layer, sequence.blocks[block], 0, BLOCK_ENTRIES)
            closed += zip(keys, values, strict=True)
    context = np.empty(queries.shape)
    for row, query in enumerate(queries.astype(np.float64)):
        own_block = max(num_sinks, num_sinks + (row - num_sinks) // BLOCK_ENTRIES * BLOCK_ENTRIES)
        entries = [closed[i] if i < own_block else raw[i] for i in range(row + 1)]
        for head in range(geometry.num_query_heads):
            kv_head = head // geometry.group_size
            scores = np.array([scale * (query[head] @ keys[kv_head]) for keys, _ in entries])
            weights = np.exp(scores - scores.max())
            values = np.array([values[kv_head] for _, values in entries])
            context[row, head] = weights @ values / weights.sum()
    return context


@pytest.mark.parametrize("num_sinks", [0, 4])
@pytest.mark.parametrize("pair", PAIRS)
def test_attention_is_that_of_the_book(pair: tuple[Precision, Precision], num_sinks: int) -> None:
    cache_format = make_format(GEOMETRY, pair, num_sinks=num_sinks)
    kernels = kernels_of(cache_format)
    layers = noise_layers(GEOMETRY, 150, seed=3)
    sequence = GrowingSequence(cache_format)

    context = append(kernels, sequence, layers)

    assert len(sequence.blocks) == 2
    for layer, (queries, _, _) in enumerate(layers):
        expected = attend_by_the_book(cache_format, sequence, layer, queries, kernels.scale)
        np.testing.assert_allclose(context[layer], expected, atol=2e-5)


def test_rope_is_applied_before_keys_are_stored_and_with_the_positions_of_the_step() -> None:
    rope = make_rope(300, 16)
    cache_format = make_format(GEOMETRY, ("int8", "int8"))
    layers = noise_layers(GEOMETRY, 100, seed=4)
    turned = [(reference.rotate(q, rope, 150), reference.rotate(k, rope, 150), v) for q, k, v in layers]

    sequence = GrowingSequence(cache_format, first_position=150)
    context = append(kernels_of(cache_format, rope), sequence, layers)
    expected = append(kernels_of(cache_format), GrowingSequence(cache_format), turned)

    np.testing.assert_array_equal(context, expected)


@settings(deadline=None, max_examples=25)
@given(
    pair=st.sampled_from(PAIRS),
    num_sinks=st.sampled_from([0, 1, 4]),
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_how_rows_come_in_makes_no_difference(
    pair: tuple[Precision, Precision], num_sinks: int, sizes: list[int], seed: int
) -> None:
    cache_format = make_format(GEOMETRY, pair, num_sinks=num_sinks)
    kernels = kernels_of(cache_format, make_rope(600, 32))
    layers = noise_layers(GEOMETRY, sum(sizes), seed)

    whole = GrowingSequence(cache_format)
    at_once = append(kernels, whole, layers)
    parts = GrowingSequence(cache_format)
    in_parts = np.concatenate([append(kernels, parts, part) for part in split_rows(layers, sizes)], axis=1)

    np.testing.assert_allclose(in_parts, at_once, atol=1e-5)
    for one, other in zip(whole.blocks, parts.blocks, strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(whole.raw_pages, parts.raw_pages, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sequences_of_one_step_do_not_see_each_other() -> None:
    cache_format = make_format(GEOMETRY, ("int8", "int4"), ("int4", "int4"))
    kernels = kernels_of(cache_format, make_rope(400, 32))
    lengths = (130, 3, 70)
    layers = [noise_layers(GEOMETRY, length + 20, seed) for seed, length in enumerate(lengths)]
    together = [GrowingSequence(cache_format, lambda block: block % 2, 7 * i) for i in range(3)]
    alone = [GrowingSequence(cache_format, lambda block: block % 2, 7 * i) for i in range(3)]
    for rows, length, one, other in zip(layers, lengths, together, alone, strict=True):
        first = [(q[:length], k[:length], v[:length]) for q, k, v in rows]
        append(kernels, one, first)
        append(kernels, other, first)
    last = [[(q[n:], k[n:], v[n:]) for q, k, v in rows] for rows, n in zip(layers, lengths, strict=True)]

    contexts = append_all(kernels, together, last)

    for context, sequence, rows in zip(contexts, alone, last, strict=True):
        np.testing.assert_allclose(context, append(kernels, sequence, rows), atol=1e-6)


def test_uncompressed_caches_keep_every_bit() -> None:
    cache_format = make_format(GEOMETRY, ("f32", "f32"), open_precision="f32", num_sinks=0)
    layers = noise_layers(GEOMETRY, 200, seed=5, spread=1e6)
    sequence = GrowingSequence(cache_format)

    append(kernels_of(cache_format), sequence, layers)

    assert all(page is raw for page, raw in zip(sequence.blocks, sequence.raw_pages, strict=False))
    for layer, (_, keys, values) in enumerate(layers):
        stored = [reference.read(cache_format.open, layer, page, 0, 64) for page in sequence.raw_pages]
        np.testing.assert_array_equal(np.concatenate([k for k, _ in stored])[:200], keys)
        np.testing.assert_array_equal(np.concatenate([v for _, v in stored])[:200], values)


def test_a_block_that_is_closed_before_its_successor_begins_is_taken_as_it_is() -> None:
    cache_format = make_format(GEOMETRY, ("int4", "int4"))
    kernels = kernels_of(cache_format)
    layers = noise_layers(GEOMETRY, 4 + 64 + 30, seed=6)
    sequence = GrowingSequence(cache_format)
    expected = append(kernels, sequence, layers)
    border = 68
    again = [(q[border:], k[border:], v[border:]) for q, k, v in layers]

    # Trimmed back to where its raw page is gone: only the compressed one is left of the full block.
    page, fresh = sequence.blocks[0], aligned_page(cache_format.open.nbytes)
    part = KVSequence(border, 30, border, sequence.sinks, [page], [0], [page, fresh])
    before = page.copy()
    step = kernels.step([part])
    for layer, (queries, keys, values) in enumerate(again):
        context = np.empty_like(queries)
        step.run(layer, kernels.rows(queries, keys, values, context))
        np.testing.assert_allclose(context, expected[layer, border:], atol=1e-6)
    np.testing.assert_array_equal(page, before)


def test_appending_without_context_stores_the_same_bytes() -> None:
    cache_format = make_format(GEOMETRY, ("int8", "int4"))
    kernels = kernels_of(cache_format, make_rope(300, 32))
    layers = noise_layers(GEOMETRY, 200, seed=7)
    attended, appended = GrowingSequence(cache_format), GrowingSequence(cache_format)
    append(kernels, attended, layers)

    part = appended.begin(200)
    step = kernels.step([part])
    for layer, (_, keys, values) in enumerate(layers):
        step.run(layer, kernels.rows(None, keys, values, None))
    appended.commit(part)

    for one, other in zip(
        [attended.sinks, *attended.blocks, *attended.raw_pages],
        [appended.sinks, *appended.blocks, *appended.raw_pages],
        strict=True,
    ):
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("open_precision", "pair", "bad", "message"),
    [
        ("f16", ("int8", "int8"), np.nan, "NaN or infinite"),
        ("f16", ("int8", "int8"), np.inf, "NaN or infinite"),
        ("f32", ("f32", "f32"), -np.inf, "NaN or infinite"),
        ("f16", ("int8", "int8"), 65505.0, "beyond ±65504"),
        ("f16", ("f16", "f16"), -1e30, "beyond ±65504"),
        ("f32", ("int8", "int8"), 1e5, "beyond ±65504"),
    ],
)
@pytest.mark.parametrize("is_key", [True, False])
def test_numbers_that_cannot_be_kept_are_refused_and_nothing_is_written(
    open_precision: Precision, pair: tuple[Precision, Precision], bad: float, message: str, is_key: bool
) -> None:
    cache_format = make_format(GEOMETRY, pair, open_precision=open_precision)
    kernels = kernels_of(cache_format)
    sequence = GrowingSequence(cache_format)
    append(kernels, sequence, noise_layers(GEOMETRY, 40, seed=8))
    queries, keys, values = make_rows(GEOMETRY, 60, np.random.default_rng(9))
    (keys if is_key else values)[41, 1, 5] = bad
    context = np.zeros_like(queries)
    step = kernels.step([sequence.begin(60)])
    assert sequence.sinks is not None
    pages = [sequence.sinks, *sequence.raw_pages]
    before = [page.copy() for page in pages]

    with pytest.raises(ValueError, match=f"layer 1: the {'key' if is_key else 'value'} of row 41 .*{message}"):
        step.run(1, kernels.rows(queries, keys, values, context))

    for page, copy in zip(pages, before, strict=True):
        np.testing.assert_array_equal(page, copy)
    assert not context.any()


def test_what_is_not_finite_is_said_before_what_is_too_large() -> None:
    cache_format = make_format(GEOMETRY, ("int8", "int8"))
    queries, keys, values = make_rows(GEOMETRY, 3, np.random.default_rng(0))
    keys[0, 0, 0], values[2, 1, 31] = 1e6, np.nan
    sequence = GrowingSequence(cache_format).begin(3)

    status = reference.step(cache_format, 1.0, None, [sequence], 0, queries, keys, values, np.empty_like(queries))

    assert status == reference.NOT_FINITE


def test_a_key_that_only_turning_makes_too_large_is_refused() -> None:
    cache_format = make_format(GEOMETRY, ("int8", "int8"))
    kernels = kernels_of(cache_format, make_rope(10, 32))
    queries, keys, values = make_rows(GEOMETRY, 8, np.random.default_rng(0))
    keys[7] = 60_000.0

    with pytest.raises(ValueError, match="layer 0: a turned key is beyond ±65504"):
        kernels.step([GrowingSequence(cache_format).begin(8)]).run(0, kernels.rows(queries, keys, values, None))


def test_float32_layers_keep_what_float16_layers_beside_them_refuse() -> None:
    cache_format = make_format(GEOMETRY, [("f32", "int8"), ("int8", "f32")], open_precision="f32")

    assert reference.magnitude_limits(cache_format, 0) == (math.inf, 65504)
    assert reference.magnitude_limits(cache_format, 1) == (65504, math.inf)


def test_queries_that_are_not_finite_spoil_their_own_rows_alone() -> None:
    cache_format = make_format(GEOMETRY, ("int8", "int8"))
    kernels = kernels_of(cache_format)
    layers = noise_layers(GEOMETRY, 80, seed=10)
    expected = append(kernels, GrowingSequence(cache_format), layers)
    for queries, _, _ in layers:
        queries[17, 2] = np.nan

    context = append(kernels, GrowingSequence(cache_format), layers)

    assert np.isnan(context[:, 17, 2]).all()
    context[:, 17, 2] = expected[:, 17, 2]
    np.testing.assert_array_equal(context, expected)


def test_scales_per_channel_outlive_a_bias_that_scales_per_entry_do_not() -> None:
    rng = np.random.default_rng(11)
    keys = rng.normal(size=(64, 64)).astype(np.float32)
    keys[:, 7] += 600
    queries = rng.normal(size=(16, 64)).astype(np.float32)
    queries[:, 7] = 0.01

    def score_error(restored: NDArray[np.float32]) -> float:
        scores, exact = queries @ restored.T, queries @ keys.T
        return float(np.abs((scores - scores.mean(1, keepdims=True)) - (exact - exact.mean(1, keepdims=True))).max())

    per_channel = score_error(dequantize(*quantize_int4(np.ascontiguousarray(keys.T))).T)
    per_entry = score_error(dequantize(*quantize_int4(keys)))

    assert per_channel < 4
    assert per_entry > 10 * per_channel
