"""The format of keys and values: where everything lies, what it costs, and what it does not cover."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl_kernels.kv_format import (
    BLOCK_ENTRIES,
    FORMAT_VERSION,
    PRECISIONS,
    CacheFormat,
    KVGeometry,
    LayerPrecision,
    PageFormat,
    Precision,
)
from tests.kernels.kv_sequences import make_format

SMALL = KVGeometry(30, 9, 3, 64)
LARGE = KVGeometry(28, 16, 4, 128)
NUM_ENTRIES = 4096

HEAD_DIMS = (32, 64, 96, 128, 160, 192, 224, 256)

geometries = st.builds(
    lambda num_layers, num_kv_heads, group_size, head_dim: KVGeometry(
        num_layers, num_kv_heads * group_size, num_kv_heads, head_dim
    ),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(1, 8),
    st.sampled_from(HEAD_DIMS),
)
precisions = st.sampled_from(PRECISIONS)


def guarded(geometry: KVGeometry) -> list[tuple[Precision, Precision]]:
    """Return 4 bit with an 8-bit first and last layer."""
    inner: tuple[Precision, Precision] = ("int4", "int4")
    return [("int8", "int8"), *[inner] * (geometry.num_layers - 2), ("int8", "int8")]


def saved_against_float16(cache_format: CacheFormat, num_entries: int) -> float:
    """Return the share saved, everything included, of what the numbers alone would be as float16."""
    (page,) = cache_format.pages
    num_pages = cache_format.num_closed(num_entries)
    used = num_pages * page.nbytes + cache_format.open.nbytes + cache_format.sinks_nbytes
    geometry = cache_format.geometry
    return 1 - used / (num_entries * 2 * geometry.num_layers * geometry.num_kv_heads * geometry.head_dim * 2)


def test_the_version_is_the_one_that_the_readme_describes() -> None:
    assert FORMAT_VERSION == 1


@pytest.mark.parametrize(
    ("geometry", "keys", "values", "nbytes"),
    [
        (SMALL, "f32", "f32", 2_949_120),
        (SMALL, "f16", "f16", 1_474_560),
        (SMALL, "int8", "int8", 761_856),
        (SMALL, "int8", "int4", 589_824),
        (SMALL, "int4", "int4", 417_792),
        (LARGE, "f32", "f32", 7_340_032),
        (LARGE, "f16", "f16", 3_670_016),
        (LARGE, "int8", "int8", 1_880_064),
        (LARGE, "int8", "int4", 1_433_600),
        (LARGE, "int4", "int4", 1_003_520),
    ],
)
def test_a_page_has_exactly_so_many_bytes(
    geometry: KVGeometry, keys: Precision, values: Precision, nbytes: int
) -> None:
    (page,) = make_format(geometry, (keys, values)).pages

    assert page.nbytes == nbytes


@pytest.mark.parametrize(("geometry", "nbytes"), [(SMALL, 438_272), (LARGE, 1_069_056)])
def test_a_guarded_page_has_exactly_so_many_bytes(geometry: KVGeometry, nbytes: int) -> None:
    assert make_format(geometry, guarded(geometry)).pages[0].nbytes == nbytes


@pytest.mark.parametrize("geometry", [SMALL, LARGE])
def test_memory_saved_against_float16_reaches_the_bars(geometry: KVGeometry) -> None:
    k8v8 = saved_against_float16(make_format(geometry, ("int8", "int8")), NUM_ENTRIES)
    k8v4 = saved_against_float16(make_format(geometry, ("int8", "int4")), NUM_ENTRIES)
    k4v4 = saved_against_float16(make_format(geometry, guarded(geometry)), NUM_ENTRIES)

    assert 0.465 <= k8v8 < 0.5
    assert k8v4 >= 0.57
    assert k4v4 >= 0.66


def test_float16_costs_only_what_the_numbers_need() -> None:
    plain = make_format(SMALL, ("f16", "f16"), num_sinks=0)

    assert saved_against_float16(plain, NUM_ENTRIES) == 0


def test_the_arrays_of_a_head_follow_each_other_as_described() -> None:
    (page,) = make_format(KVGeometry(2, 4, 2, 160), [("int4", "int8"), ("f16", "int4")]).pages

    first, second = page.slices
    # keys 160 x 32, key scales 160 x 2, key zeros 160 x 2, values 64 x 160, value scales 64 x 2 x 2
    assert (first.key_scales, first.key_zeros, first.values) == (5120, 5440, 5760)
    assert (first.value_scales, first.value_zeros, first.head_bytes) == (16_000, 16_256, 16_256)
    # keys 160 x 64 x 2, no key scales or zeros, values 64 x 80, value scales and zeros 64 x 2 x 2
    assert second.offset == 2 * 16_256
    assert (second.key_scales, second.key_zeros, second.values) == (20_480, 20_480, 20_480)
    assert (second.value_scales, second.value_zeros, second.head_bytes) == (25_600, 25_856, 26_112)
    assert page.nbytes == 86_016  # 2 x 16,256 + 2 x 26,112 = 84,736, rounded up


@given(geometry=geometries, data=st.data())
def test_arrays_are_aligned_and_no_two_overlap(geometry: KVGeometry, data: st.DataObject) -> None:
    layers = tuple(LayerPrecision(data.draw(precisions), data.draw(precisions)) for _ in range(geometry.num_layers))
    page = PageFormat(geometry, layers)

    at = 0
    for layout, precision in zip(page.slices, layers, strict=True):
        assert layout.precision == precision
        assert layout.offset == at
        offsets = [0, layout.key_scales, layout.key_zeros, layout.values, layout.value_scales, layout.value_zeros]
        assert all(offset % 64 == 0 for offset in (layout.offset, layout.head_bytes, *offsets))
        elements, groups = 64 * geometry.head_dim, 64 * geometry.num_value_groups
        bits = {"f32": 32, "f16": 16, "int8": 8, "int4": 4}
        sizes = [
            elements * bits[precision.keys] // 8,
            2 * geometry.head_dim if precision.keys in ("int8", "int4") else 0,
            2 * geometry.head_dim if precision.keys == "int4" else 0,
            elements * bits[precision.values] // 8,
            2 * groups if precision.values in ("int8", "int4") else 0,
            2 * groups if precision.values == "int4" else 0,
        ]
        ends = [*offsets[1:], layout.head_bytes]
        assert [end - offset for offset, end in zip(offsets, ends, strict=True)] == sizes
        at += layout.head_bytes * geometry.num_kv_heads
    assert page.nbytes % 4096 == 0
    assert 0 <= page.nbytes - at < 4096


@given(geometry=geometries)
def test_a_value_group_has_at_most_128_channels_and_all_have_as_many(geometry: KVGeometry) -> None:
    channels, rest = divmod(geometry.head_dim, geometry.num_value_groups)

    assert rest == 0
    assert 32 <= channels <= 128
    assert geometry.num_value_groups == (1 if geometry.head_dim <= 128 else 2)


@pytest.mark.parametrize("num_sinks", [0, 4])
def test_a_block_is_closed_by_the_entry_behind_its_last_one(num_sinks: int) -> None:
    cache_format = make_format(SMALL, ("int8", "int8"), num_sinks=num_sinks)

    counts = [(cache_format.num_closed(n), cache_format.num_open(n)) for n in range(num_sinks + 130)]

    assert counts[: num_sinks + 1] == [(0, 0)] * (num_sinks + 1)
    assert counts[num_sinks + 1] == (0, 1)
    assert counts[num_sinks + 64] == (0, 64)
    assert counts[num_sinks + 65] == (1, 1)
    assert counts[num_sinks + 128] == (1, 64)
    assert counts[num_sinks + 129] == (2, 1)
    for n, (num_closed, num_open) in itertools.islice(enumerate(counts), num_sinks, None):
        assert num_sinks + BLOCK_ENTRIES * num_closed + num_open == n


@pytest.mark.parametrize(
    ("geometry", "open_precision", "num_sinks", "nbytes"),
    [
        (SMALL, "f16", 4, 94_208),  # 30 x 3 x 2 x 4 x 64 x 2 = 92,160, rounded up
        (LARGE, "f16", 4, 229_376),
        (LARGE, "f32", 4, 458_752),
        (LARGE, "f16", 0, 0),
    ],
)
def test_sinks_have_exactly_so_many_bytes(
    geometry: KVGeometry, open_precision: Precision, num_sinks: int, nbytes: int
) -> None:
    cache_format = make_format(geometry, ("int8", "int8"), open_precision=open_precision, num_sinks=num_sinks)

    assert cache_format.sinks_nbytes == nbytes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "at least 1"),
        ({"num_kv_heads": 0}, "at least 1"),
        ({"num_query_heads": 7}, "7 query heads are no multiple of 3 KV heads"),
        ({"head_dim": 80}, "multiple of 32 from 32 to 256, not 80"),
        ({"head_dim": 0}, "multiple of 32 from 32 to 256, not 0"),
        ({"head_dim": 288}, "multiple of 32 from 32 to 256, not 288"),
    ],
)
def test_a_geometry_that_is_not_covered_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **change)


def test_a_page_needs_a_known_precision_for_every_layer() -> None:
    raw = LayerPrecision("f16", "f16")

    with pytest.raises(ValueError, match="2 precisions for 30 layers"):
        PageFormat(SMALL, (raw, raw))
    with pytest.raises(ValueError, match="unknown precision 'fp8'; known: f32, f16, int8, int4"):
        PageFormat(SMALL, (LayerPrecision("f16", "fp8"),) * 30)  # type: ignore[arg-type]
