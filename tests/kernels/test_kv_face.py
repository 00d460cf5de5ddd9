"""The face of the key/value kernels: what it refuses and why, and what callers may do between steps."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edge_vl_kernels
from edge_vl_kernels import (
    KVGeometry,
    KVKernels,
    KVRows,
    KVSequence,
    Page,
    Rope,
    aligned_page,
    kv_abi,
    kv_reference,
    status,
)
from edge_vl_kernels.kv_pages import PageAddresses
from tests.kernels.kv_sequences import GrowingSequence, append, make_format, make_rope, make_rows

GEOMETRY = KVGeometry(2, 4, 2, 32)
FORMAT = make_format(GEOMETRY, ("int8", "int8"), ("int4", "int4"), ("f16", "f16"))
HEADER = Path(__file__).parents[2] / "kernels" / "csrc" / "edge_vl_kernels.h"

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(params=["reference", "auto"])
def kernels(request: pytest.FixtureRequest) -> KVKernels:
    return KVKernels(FORMAT, scale=0.2, rope=make_rope(1000, 32), isa=request.param)


def grown(kernels: KVKernels, num_entries: int, seed: int = 0, page_format: int = 0) -> GrowingSequence:
    rng = np.random.default_rng(seed)
    sequence = GrowingSequence(kernels.cache_format, lambda _: page_format)
    append(kernels, sequence, [make_rows(GEOMETRY, num_entries, rng) for _ in range(GEOMETRY.num_layers)])
    return sequence


def rows_of(kernels: KVKernels, num_rows: int, seed: int = 0) -> KVRows:
    queries, keys, values = make_rows(GEOMETRY, num_rows, np.random.default_rng(seed))
    return kernels.rows(queries, keys, values, np.empty_like(queries))


def test_the_package_exports_what_callers_need() -> None:
    exported = {"CacheFormat", "KVKernels", "KVRows", "KVSequence", "KVStep", "Page", "Rope", "aligned_page"}
    assert exported <= set(edge_vl_kernels.__all__)


def test_a_page_is_aligned_zero_and_has_no_slack() -> None:
    page = aligned_page(3 * 4096)

    assert page.shape == (3 * 4096,)
    assert page.ctypes.data % 4096 == 0
    assert page.flags.carray
    assert not page.any()


@pytest.mark.parametrize("nbytes", [0, -4096, 4095, 5000])
def test_a_page_of_another_size_is_refused(nbytes: int) -> None:
    with pytest.raises(ValueError, match=f"a multiple of 4096 bytes, not {nbytes}"):
        aligned_page(nbytes)


def test_an_address_is_forgotten_with_its_page() -> None:
    addresses = PageAddresses(4096)
    first, second = aligned_page(4096), aligned_page(4096)

    assert addresses.find([first, second, first], "pages") == [page.ctypes.data for page in (first, second, first)]
    assert addresses.num_forgotten == 0
    del first
    gc.collect()
    assert addresses.num_forgotten == 1
    assert addresses.find([second], "pages") == [second.ctypes.data]


def misaligned() -> Page:
    return aligned_page(2 * 4096)[64 : 64 + 4096]


def read_only() -> Page:
    page = aligned_page(4096)
    page.flags.writeable = False
    return page


@pytest.mark.parametrize(
    ("page", "message"),
    [
        (bytes(4096), "must be NumPy arrays, not bytes; make them with aligned_page"),
        (aligned_page(8192), r"must be uint8 \(4096,\), not uint8 \(8192,\)"),
        (aligned_page(4096).view(np.int8), r"must be uint8 \(4096,\), not int8 \(4096,\)"),
        (aligned_page(8192)[::2], "must be aligned to 4096 bytes and writable; use aligned_page"),
        (misaligned(), "must be aligned to 4096 bytes and writable; use aligned_page"),
        (read_only(), "must be aligned to 4096 bytes and writable; use aligned_page"),
    ],
)
def test_what_is_no_page_is_refused(page: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"sinks {message}"):
        PageAddresses(4096).find([page], "sinks")


def table(*shape: int) -> Any:
    return np.ones(shape, np.float32)


@pytest.mark.parametrize(
    ("cosines", "sines", "message"),
    [
        (table(4, 8).astype(np.float64), table(4, 8), r"cosines must be float32 .*, not float64 \(4, 8\)"),
        (table(4, 8), [[0.0]], "sines must be float32 .*, not list"),
        (table(4, 8), table(32), r"sines must be float32 .*, not float32 \(32,\)"),
        (table(0, 8), table(0, 8), "cosines must be float32"),
        (table(4, 8), table(5, 8), r"cosines are float32 \(4, 8\) but sines float32 \(5, 8\)"),
    ],
)
def test_tables_that_are_no_angles_are_refused(cosines: Any, sines: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rope(cosines, sines)


def test_tables_may_be_views() -> None:
    angles = np.random.default_rng(0).normal(size=(6, 40)).astype(np.float32)

    rope = Rope(angles[:, :16], angles[:, 16:32])

    assert rope.cosines.flags.c_contiguous
    assert (rope.num_positions, rope.rotary_dim) == (6, 32)
    np.testing.assert_array_equal(rope.sines, angles[:, 16:32])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": float("nan")}, "scale must be finite, not nan"),
        ({"num_threads": 0}, "num_threads must be at least 1, not 0"),
        ({"rope": make_rope(10, 64)}, "rope turns 64 channels of heads that have 32"),
        ({"isa": "avx3"}, "unknown instruction set 'avx3'; did you mean 'avx2'"),
    ],
)
def test_settings_out_of_range_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KVKernels(FORMAT, **{"scale": 1.0, **change})


def test_a_format_that_does_not_fit_itself_is_refused() -> None:
    other = make_format(KVGeometry(2, 4, 2, 64), ("int8", "int8"))
    mixed = make_format(GEOMETRY, [("f16", "f32"), ("f16", "f16")]).pages[0]

    for change, message in (
        ({"pages": ()}, "at least one format of pages"),
        ({"pages": other.pages}, "other geometries"),
        ({"open": FORMAT.pages[0]}, "all f32 or all f16, not int8"),
        ({"open": mixed}, "all f32 or all f16, not f16, f32"),
        ({"num_sinks": -1}, "num_sinks must be at least 0, not -1"),
    ):
        with pytest.raises(ValueError, match=message):
            KVKernels(dataclasses.replace(FORMAT, **change), scale=1.0)


def test_auto_runs_what_the_library_offers() -> None:
    assert KVKernels(FORMAT, scale=1.0).isa == status().isa
    assert KVKernels(FORMAT, scale=1.0, isa="reference").isa == "reference"


def test_closed_kernels_do_nothing_more(kernels: KVKernels) -> None:
    sequence, rows = grown(kernels, 10), rows_of(kernels, 1)
    step = kernels.step([sequence.begin(1)])

    kernels.close()
    kernels.close()

    for call in (
        lambda: step.run(0, rows),
        lambda: kernels.step([sequence.begin(1)]),
        lambda: kernels.read(-1, 0, sequence.raw_pages[0], 0, 1),
        lambda: kernels.close_block(0, 0, sequence.raw_pages[0], aligned_page(FORMAT.pages[0].nbytes)),
    ):
        with pytest.raises(RuntimeError, match="the kernels are closed"):
            call()


def test_kernels_that_nobody_closed_are_collected() -> None:
    for _ in range(3):
        kernels = KVKernels(FORMAT, scale=1.0, num_threads=2)
        grown(kernels, 70)
        del kernels
        gc.collect()


@pytest.mark.parametrize("name", ["queries", "keys", "values", "context"])
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda rows: rows.astype(np.float16), r"{} must be float32 \(3, \d, 32\), not float16 \(3, \d, 32\)"),
        (lambda rows: rows[:, :1], r"{} must be float32 \(3, \d, 32\), not float32 \(3, 1, 32\)"),
        (lambda rows: rows[..., :16], r"{} must be float32 \(3, \d, 32\), not float32 \(3, \d, 16\)"),
        (lambda rows: np.repeat(rows, 2, axis=2)[..., ::2], "{} must have their channels side by side, not 8 bytes"),
        (lambda rows: rows.tolist(), "must be float32"),
    ],
)
def test_rows_of_another_kind_are_refused(
    kernels: KVKernels, name: str, spoil: Callable[[Any], Any], message: str
) -> None:
    queries, keys, values = make_rows(GEOMETRY, 3, np.random.default_rng(0))
    arrays = {"queries": queries, "keys": keys, "values": values, "context": np.zeros_like(queries)}

    with pytest.raises(ValueError, match=message.format(name)):
        kernels.rows(**{**arrays, name: spoil(arrays[name])})


def test_rows_between_the_bytes_of_others_are_refused(kernels: KVKernels) -> None:
    queries, keys, values = make_rows(GEOMETRY, 2, np.random.default_rng(0))
    odd = np.zeros(keys.nbytes + 2, np.uint8)[2:].view(np.float32).reshape(keys.shape)

    with pytest.raises(ValueError, match="keys must be aligned to 4 bytes"):
        kernels.rows(queries, odd, values, None)


def test_no_rows_are_refused(kernels: KVKernels) -> None:
    empty = np.empty((0, 2, 32), np.float32)

    with pytest.raises(ValueError, match="at least one row"):
        kernels.rows(None, empty, empty, None)


def test_context_must_be_a_place_of_its_own(kernels: KVKernels) -> None:
    queries, keys, values = make_rows(GEOMETRY, 3, np.random.default_rng(0))
    fixed = np.empty_like(queries)
    fixed.flags.writeable = False
    folded = np.lib.stride_tricks.as_strided(np.empty(4 * 32, np.float32), queries.shape, (0, 128, 4))
    crossed = np.lib.stride_tricks.as_strided(np.empty(1000, np.float32), queries.shape, (64, 128, 4))

    with pytest.raises(ValueError, match="no queries: without them, context must be None too"):
        kernels.rows(None, keys, values, np.empty_like(queries))
    for context in (fixed, folded, crossed):
        with pytest.raises(ValueError, match="writable, and its rows and heads apart from each other"):
            kernels.rows(queries, keys, values, context)
    with pytest.raises(ValueError, match="must not share memory with queries"):
        kernels.rows(queries, keys, values, queries)


def test_rows_may_be_views_of_any_layout(kernels: KVKernels) -> None:
    sequence = grown(kernels, 70)
    queries, keys, values = make_rows(GEOMETRY, 5, np.random.default_rng(1))
    packed = np.concatenate([rows.reshape(1, 5, -1) for rows in (queries, keys, values)], axis=2)
    transposed = [np.ascontiguousarray(rows.transpose(1, 0, 2))[None] for rows in (queries, keys, values)]
    layouts = [
        (queries, keys, values, np.empty((5, 4, 32), np.float32)),
        (
            packed[0, :, :128].reshape(5, 4, 32),
            packed[0, :, 128:192].reshape(5, 2, 32),
            packed[0, :, 192:].reshape(5, 2, 32),
            np.empty((1, 5, 128), np.float32)[0].reshape(5, 4, 32),
        ),
        (*(rows[0].transpose(1, 0, 2) for rows in transposed), np.empty((4, 5, 32), np.float32).transpose(1, 0, 2)),
        (queries[::-1].copy()[::-1], keys, values, np.empty((9, 4, 40), np.float32)[8::-2, :, 3:35]),
    ]

    contexts = []
    for q, k, v, context in layouts:
        kernels.step([sequence.begin(5)]).run(1, kernels.rows(q, k, v, context))
        contexts.append(context)

    for context in contexts[1:]:
        np.testing.assert_array_equal(context, contexts[0])


def test_a_step_refuses_numbers_that_do_not_fit_each_other(kernels: KVKernels) -> None:
    part = grown(kernels, 4 + 64 + 10).begin(60)
    page = aligned_page(FORMAT.open.nbytes)
    block = aligned_page(FORMAT.pages[0].nbytes)
    for change, message in (
        ({"num_rows": 0}, "at least one row for at least 0 entries, not 0 for 78"),
        ({"num_entries": -1}, "at least one row for at least 0 entries, not 60 for -1"),
        ({"first_position": 941}, "positions 941 to 1000, but rope has 0 to 999"),
        ({"first_position": -1}, "positions -1 to 58, but rope has 0 to 999"),
        ({"num_rows": 54}, "need 1 closed blocks and 1 open pages, not 2 blocks in 2 formats and 2 open pages"),
        ({"blocks": part.blocks[:1]}, "need 2 closed blocks and 2 open pages, not 1 blocks in 2 formats"),
        ({"block_formats": [0]}, "not 2 blocks in 1 formats"),
        ({"open_pages": [*part.open_pages, page]}, "2 formats and 3 open pages"),
        ({"block_formats": [0, 3]}, "block_formats must be 0 to 2, not 0 to 3"),
        ({"block_formats": [-1, 0]}, "block_formats must be 0 to 2, not -1 to 0"),
        ({"block_formats": [0, 1]}, r"blocks of format 1 must be uint8 \(\d+,\), not uint8"),
        ({"blocks": [page, block]}, "blocks of format 0 must be uint8"),
        ({"open_pages": [page, block]}, "open_pages must be uint8"),
        ({"sinks": None}, "sinks must be NumPy arrays, not NoneType"),
        ({"sinks": page}, "sinks must be uint8"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.step([dataclasses.replace(part, **change)])


def test_sinks_of_a_format_without_them_are_refused() -> None:
    kernels = KVKernels(make_format(GEOMETRY, ("f16", "f16"), num_sinks=0), scale=1.0)
    page = aligned_page(kernels.cache_format.open.nbytes)

    with pytest.raises(ValueError, match="sinks must be None"):
        kernels.step([KVSequence(0, 1, 0, aligned_page(4096), [], [], [page])])


def test_a_step_refuses_to_write_over_what_it_needs(kernels: KVKernels) -> None:
    part = grown(kernels, 4 + 64 + 10).begin(60)
    closed, new = part.blocks
    was_open, fresh = part.open_pages
    raw = dataclasses.replace(part, block_formats=[0, 2])
    longer = grown(kernels, 4 + 64 + 10).begin(124)
    for change, message in (
        (dataclasses.replace(part, open_pages=[was_open, was_open]), "entries are still needed"),
        (dataclasses.replace(raw, blocks=[closed, was_open], open_pages=[was_open, was_open]), "still needed"),
        (dataclasses.replace(raw, blocks=[closed, fresh]), "an open page is the page of another block"),
        (dataclasses.replace(part, blocks=[closed, closed]), "two blocks have the same page"),
        (
            dataclasses.replace(
                longer,
                block_formats=[0, 0, 2],
                blocks=[*longer.blocks[:2], longer.open_pages[1]],
                open_pages=[*longer.open_pages[:2], longer.open_pages[1]],
            ),
            "entries are still needed",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.step([change])
    assert new is part.blocks[1]


def test_a_compressed_block_needs_a_page_of_its_own() -> None:
    # 8-bit pages of one size with the open ones, so that only their format tells them apart.
    cache_format = make_format(KVGeometry(1, 1, 1, 32), ("int8", "int8"))
    assert cache_format.pages[0].nbytes == cache_format.open.nbytes
    kernels = KVKernels(cache_format, scale=1.0)
    part = GrowingSequence(cache_format).begin(4 + 65)

    with pytest.raises(ValueError, match="a block of format 0 cannot be closed in its open page; give it another"):
        kernels.step([dataclasses.replace(part, blocks=part.open_pages[:1])])


def test_an_open_page_may_serve_several_blocks_of_one_step(kernels: KVKernels) -> None:
    rng = np.random.default_rng(3)
    layers = [make_rows(GEOMETRY, 240, rng) for _ in range(GEOMETRY.num_layers)]
    plain = GrowingSequence(FORMAT)
    expected = append(kernels, plain, layers)

    part = GrowingSequence(FORMAT).begin(240)
    part.open_pages = [aligned_page(FORMAT.open.nbytes)] * 4
    step = kernels.step([part])
    for layer, (queries, keys, values) in enumerate(layers):
        context = np.empty_like(queries)
        step.run(layer, kernels.rows(queries, keys, values, context))
        np.testing.assert_array_equal(context, expected[layer])
    for one, other in zip(part.blocks, plain.blocks, strict=True):
        np.testing.assert_array_equal(one, other)


def test_no_sequences_and_sequences_that_share_a_page_are_refused(kernels: KVKernels) -> None:
    sequence = grown(kernels, 30)

    with pytest.raises(ValueError, match="at least one sequence"):
        kernels.step([])
    with pytest.raises(ValueError, match="two sequences of a step write to the same page"):
        kernels.step([sequence.begin(1), sequence.begin(1)])


def test_a_sequence_beside_others_may_reuse_its_open_page(kernels: KVKernels) -> None:
    rng = np.random.default_rng(4)
    queries, keys, values = make_rows(GEOMETRY, 201, rng)
    one, other = GrowingSequence(FORMAT).begin(200), GrowingSequence(FORMAT).begin(1)
    one.open_pages = [one.open_pages[0]] * len(one.open_pages)
    context = np.empty_like(queries)

    kernels.step([one, other]).run(0, kernels.rows(queries, keys, values, context))

    (expected, *_) = append(kernels, GrowingSequence(FORMAT), [(queries[:200], keys[:200], values[:200])] * 2)
    np.testing.assert_allclose(context[:200], expected, atol=1e-5)


def test_forks_may_close_the_full_block_that_they_share(kernels: KVKernels) -> None:
    sequence = grown(kernels, 4 + 64)
    one, other = sequence.begin(1), sequence.begin(1)
    other.open_pages = [other.open_pages[0], aligned_page(FORMAT.open.nbytes)]
    queries, keys, values = make_rows(GEOMETRY, 2, np.random.default_rng(0))
    queries[1], keys[1], values[1] = queries[0], keys[0], values[0]
    context = np.empty_like(queries)

    one.first_position = other.first_position
    kernels.step([one, other]).run(0, kernels.rows(queries, keys, values, context))

    np.testing.assert_array_equal(context[0], context[1])
    assert one.blocks[0] is not other.blocks[0]
    layout = FORMAT.pages[0].slices[0]
    end = GEOMETRY.num_kv_heads * layout.head_bytes
    np.testing.assert_array_equal(one.blocks[0][:end], other.blocks[0][:end])


def test_run_refuses_what_the_step_was_not_made_for(kernels: KVKernels) -> None:
    other = KVKernels(FORMAT, scale=0.2, isa="reference")
    step = kernels.step([grown(kernels, 3).begin(2)])

    assert step.num_rows == 2
    with pytest.raises(ValueError, match="3 rows for sequences that take 2"):
        step.run(0, rows_of(kernels, 3))
    with pytest.raises(ValueError, match="made by other kernels"):
        step.run(0, rows_of(other, 2))
    for layer in (-1, 2):
        with pytest.raises(ValueError, match=f"layer {layer} of a model that has 2"):
            step.run(layer, rows_of(kernels, 2))


def test_a_step_keeps_to_what_it_was_made_of(kernels: KVKernels) -> None:
    expected = grown(kernels, 4 + 64 + 10)
    sequence = grown(kernels, 4 + 64 + 10)
    rows = rows_of(kernels, 1)
    kernels.step([expected.begin(1)]).run(0, rows)
    assert rows.context is not None
    context = rows.context.copy()

    part = sequence.begin(1)
    step = kernels.step([part])
    part.num_entries = 5
    part.blocks[0] = aligned_page(FORMAT.pages[0].nbytes)  # type: ignore[index]
    part.open_pages[0] = aligned_page(FORMAT.open.nbytes)  # type: ignore[index]
    step.run(0, rows)

    np.testing.assert_array_equal(rows.context, context)


def test_pages_that_come_and_go_are_never_mistaken(kernels: KVKernels) -> None:
    """The face remembers where pages are; a page that is gone, or swapped in the same list, must not be remembered."""
    rng = np.random.default_rng(0)
    variants = [grown(kernels, 4 + 64 * 3 + 10, seed) for seed in range(3)]
    rows = rows_of(kernels, 1)
    assert rows.context is not None
    contexts = []
    for variant in variants:
        kernels.step([variant.begin(1)]).run(0, rows)
        contexts.append(rows.context.copy())

    blocks = list(variants[0].blocks)
    for _ in range(50):
        choice = int(rng.integers(3))
        variant = variants[choice]
        if rng.random() < 0.5:
            # The same bytes at another address, under an `id` that may have been another page's.
            index = int(rng.integers(3))
            copy = aligned_page(FORMAT.pages[0].nbytes)
            copy[:] = variant.blocks[index]
            variant.blocks[index] = copy
            del copy
        blocks[:] = variant.blocks
        part = variant.begin(1)
        part.blocks = blocks
        kernels.step([part]).run(0, rows)
        np.testing.assert_array_equal(rows.context, contexts[choice])


def test_a_block_is_read_as_it_was_stored(kernels: KVKernels) -> None:
    rng = np.random.default_rng(5)
    _, keys, values = make_rows(GEOMETRY, 70, rng)
    plain = KVKernels(FORMAT, scale=0.2, isa=kernels.isa)
    sequence = GrowingSequence(FORMAT)
    plain.step([part := sequence.begin(70)]).run(1, plain.rows(None, keys, values, None))

    raw_keys, raw_values = plain.read(-1, 1, sequence.raw_pages[0], 10, 54)
    some_keys, some_values = plain.read(0, 1, part.blocks[0], 10, 54)
    assert part.sinks is not None
    sink_keys, sink_values = plain.read_sinks(1, part.sinks, 1, 3)

    as_float16 = keys.astype(np.float16).astype(np.float32), values.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(raw_keys, as_float16[0][14:68])
    np.testing.assert_array_equal(raw_values, as_float16[1][14:68])
    np.testing.assert_array_equal(sink_keys, as_float16[0][1:4])
    np.testing.assert_array_equal(sink_values, as_float16[1][1:4])
    np.testing.assert_allclose(some_keys, raw_keys, atol=0.15)
    np.testing.assert_allclose(some_values, raw_values, atol=0.03)
    assert not np.array_equal(some_keys, raw_keys)


def test_closing_a_block_by_hand_gives_the_bytes_of_a_step(kernels: KVKernels) -> None:
    sequence = grown(kernels, 4 + 65, page_format=1)
    page = aligned_page(FORMAT.pages[1].nbytes)
    page[:] = sequence.blocks[0]
    by_hand = aligned_page(FORMAT.pages[1].nbytes)
    by_hand[:] = 0xA5

    for layer in range(GEOMETRY.num_layers):
        kernels.close_block(1, layer, sequence.raw_pages[0], by_hand)

    np.testing.assert_array_equal(by_hand, page)


def test_blocks_out_of_range_are_refused(kernels: KVKernels) -> None:
    sequence = grown(kernels, 4 + 65)
    raw, page = sequence.raw_pages[0], sequence.blocks[0]
    assert sequence.sinks is not None
    sinks = sequence.sinks
    for call, message in (
        (lambda: kernels.read(3, 0, page, 0, 1), "page format 3, but the last one is 2"),
        (lambda: kernels.read(-2, 0, page, 0, 1), "page format -2"),
        (lambda: kernels.close_block(-1, 0, raw, page), "page format -1"),
        (lambda: kernels.read(0, 2, page, 0, 1), "layer 2 of a model that has 2"),
        (lambda: kernels.read(0, 0, page, -1, 1), "entries -1 to 0 are not within"),
        (lambda: kernels.read(0, 0, page, 60, 5), "entries 60 to 65 are not within a page's 64"),
        (lambda: kernels.read(0, 0, page, 0, 0), "entries 0 to 0 are not within"),
        (lambda: kernels.read(-1, 0, page, 0, 1), "page must be uint8"),
        (lambda: kernels.close_block(0, 0, page, page), "open_page must be uint8"),
        (lambda: kernels.close_block(2, 0, raw, raw), "page must be another one than open_page"),
        (lambda: kernels.read_sinks(0, sinks, 2, 3), "entries 2 to 5 are not within 4 sinks"),
        (lambda: kernels.read_sinks(0, raw, 0, 1), "sinks must be uint8"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@needs_compiler
def test_structures_are_those_of_the_header(tmp_path: Path) -> None:
    structures = {"slice": kv_abi.Slice, "model": kv_abi.Model, "sequence": kv_abi.Sequence, "rows": kv_abi.Rows}
    lines = ['#include "edge_vl_kernels.h"', "#include <stddef.h>", "#include <stdio.h>", "int main() {"]
    expected = []
    for name, structure in structures.items():
        c_name = f"edge_vl_kernels_kv_{name}"
        lines.append(f'printf("%zu\\n", sizeof({c_name}));')
        expected.append(ctypes.sizeof(structure))
        for field, *_ in structure._fields_:
            lines.append(f'printf("%zu %zu\\n", offsetof({c_name}, {field}), sizeof((({c_name} *)0)->{field}));')
            place = getattr(structure, field)
            expected += [place.offset, place.size]
    source, program = tmp_path / "layout.cpp", tmp_path / "layout"
    source.write_text("\n".join([*lines, "}"]))
    subprocess.run(["g++", "-I", str(HEADER.parent), "-o", str(program), str(source)], check=True)

    printed = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout

    assert [int(number) for number in printed.split()] == expected


def test_numbers_of_the_c_side_are_those_of_the_header() -> None:
    header = HEADER.read_text()

    for number, precision in enumerate(("F32", "F16", "INT8", "INT4")):
        assert f"EDGE_VL_KERNELS_{precision} = {number}," in header
    for number, name in enumerate(("OK", "NOT_FINITE", "TOO_LARGE", "NO_MEMORY")):
        assert f"EDGE_VL_KERNELS_{name} = {number}," in header
        module = kv_abi if name == "NO_MEMORY" else edge_vl_kernels.kv_reference
        assert getattr(module, name) == number


@contextmanager
def a_run_in_another_thread(kernels: KVKernels, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Be inside `KVStep.run` of another thread; what it raised is in the list afterwards."""
    step, rows = kernels.step([grown(kernels, 70).begin(1)]), rows_of(kernels, 1)
    has_begun, may_end = threading.Event(), threading.Event()
    real: Any = kv_reference.step if kernels._kv_step is None else kernels._kv_step

    def slow(*arguments: object) -> object:
        has_begun.set()
        assert may_end.wait(30)
        return real(*arguments)

    raised: list[object] = []

    def work() -> None:
        try:
            step.run(0, rows)
        except BaseException as error:
            raised.append(error)

    if kernels._kv_step is None:
        monkeypatch.setattr(kv_reference, "step", slow)
    else:
        monkeypatch.setattr(kernels, "_kv_step", slow)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert has_begun.wait(30)
        yield raised
    finally:
        may_end.set()
        thread.join()
        monkeypatch.undo()


def test_a_second_thread_is_turned_away_and_the_first_one_is_not_disturbed(
    kernels: KVKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequence = grown(kernels, 4 + 65)
    raw, page, sinks = sequence.raw_pages[0], sequence.blocks[0], sequence.sinks
    assert sinks is not None
    step, rows = kernels.step([sequence.begin(1)]), rows_of(kernels, 1)
    calls: tuple[Callable[[], object], ...] = (
        lambda: step.run(0, rows),
        lambda: kernels.step([sequence.begin(1)]),
        lambda: kernels.read(0, 0, page, 0, 1),
        lambda: kernels.read_sinks(0, sinks, 0, 1),
        lambda: kernels.close_block(0, 0, raw, page),
        kernels.close,
    )
    with a_run_in_another_thread(kernels, monkeypatch) as raised:
        for call in calls:
            with pytest.raises(RuntimeError, match="in use by another thread"):
                call()

    assert not raised
    for call in calls:
        call()
    with pytest.raises(RuntimeError, match="the kernels are closed"):
        step.run(0, rows)


def test_kernels_can_be_used_after_calls_that_failed(kernels: KVKernels) -> None:
    sequence = grown(kernels, 4 + 65)
    step, rows = kernels.step([sequence.begin(1)]), rows_of(kernels, 1)
    for fails in (
        lambda: step.run(9, rows),
        lambda: kernels.step([]),
        lambda: kernels.read(0, 9, sequence.blocks[0], 0, 1),
        lambda: kernels.read_sinks(9, sequence.blocks[0], 0, 1),
        lambda: kernels.close_block(9, 0, sequence.blocks[0], sequence.blocks[0]),
    ):
        with pytest.raises(ValueError, match=r"layer 9|at least one|page format 9"):
            fails()
    raised: list[object] = []

    def work() -> None:
        try:
            step.run(0, rows)
            kernels.close()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert not raised


def test_the_integers_of_numpy_do_not_wrap_around(kernels: KVKernels) -> None:
    part = grown(kernels, 4 + 64 + 10).begin(60)
    page, sinks = part.blocks[0], part.sinks
    assert sinks is not None
    byte = np.uint8(200)
    for call, message in (
        (lambda: kernels.read(0, 0, page, np.int8(100), np.int8(100)), "entries 100 to 200 are not within"),  # type: ignore[arg-type]
        (lambda: kernels.read(0, 0, page, np.uint8(255), np.uint8(2)), "entries 255 to 257 are not within"),  # type: ignore[arg-type]
        (lambda: kernels.read_sinks(0, sinks, np.uint8(255), np.uint8(2)), "entries 255 to 257 are not"),  # type: ignore[arg-type]
        (
            lambda: kernels.step([dataclasses.replace(part, first_position=np.int64(2**63 - 5))]),  # type: ignore[arg-type]
            "positions 9223372036854775803 to 9223372036854775862, but rope",
        ),
        (
            lambda: kernels.step([dataclasses.replace(part, num_entries=byte, num_rows=byte)]),  # type: ignore[arg-type]
            "400 entries after the step, 200 before, need 6 closed blocks",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()


def test_the_integers_of_numpy_are_integers(kernels: KVKernels) -> None:
    sequence = grown(kernels, 4 + 64 + 10)
    rows = rows_of(kernels, 1)
    assert rows.context is not None
    part = sequence.begin(1)
    kernels.step([part]).run(1, rows)
    expected = rows.context.copy()
    rows.context[:] = 0

    of_numpy = dataclasses.replace(
        part,
        num_entries=np.uint8(part.num_entries),  # type: ignore[arg-type]
        num_rows=np.int8(1),  # type: ignore[arg-type]
        first_position=np.int64(part.first_position),  # type: ignore[arg-type]
        block_formats=np.array(part.block_formats, np.int16),  # type: ignore[arg-type]
    )
    kernels.step([of_numpy]).run(np.int64(1), rows)  # type: ignore[arg-type]

    np.testing.assert_array_equal(rows.context, expected)
    keys, _ = kernels.read(np.int8(0), np.uint8(1), part.blocks[0], np.uint8(60), np.uint8(4))  # type: ignore[arg-type]
    np.testing.assert_array_equal(keys, kernels.read(0, 1, part.blocks[0], 60, 4)[0])


def test_a_geometry_of_numpy_does_not_wrap_around() -> None:
    layers, heads, channels = np.uint8(3), np.uint8(2), np.uint8(64)
    geometry = KVGeometry(layers, heads, heads, channels)  # type: ignore[arg-type]
    cache_format = make_format(geometry, ("int8", "int8"))

    assert geometry == KVGeometry(3, 2, 2, 64)
    assert cache_format.open.nbytes == make_format(KVGeometry(3, 2, 2, 64), ("int8", "int8")).open.nbytes
    assert dataclasses.replace(cache_format, num_sinks=np.int8(4)).num_closed(4 + 200) == 3  # type: ignore[arg-type]


def test_what_is_of_another_type_is_refused(kernels: KVKernels) -> None:
    any_kernels: Any = kernels
    part: Any = grown(kernels, 4 + 65).begin(1)
    rows = rows_of(kernels, 1)
    step: Any = kernels.step([part])
    page = part.blocks[0]
    make: Any = KVKernels
    calls: tuple[tuple[Callable[[], object], str], ...] = (
        (lambda: step.run(1.0, rows), "'float' object cannot be interpreted as an integer"),
        (lambda: step.run(None, rows), "'NoneType' object cannot be interpreted"),
        (lambda: step.run(0, "rows"), "rows must be made with the rows.. of the kernels, not a str"),
        (lambda: any_kernels.step([None]), "made of KVSequence, not of NoneType"),
        (lambda: any_kernels.step([dataclasses.replace(part, num_rows=1.0)]), "'float' object cannot be"),
        (lambda: any_kernels.step([dataclasses.replace(part, block_formats=["0"])]), "'str' object cannot be"),
        (lambda: any_kernels.read(0, 1.5, page, 0, 1), "'float' object cannot be"),
        (lambda: any_kernels.read(0, 0, page, float("nan"), 1), "'float' object cannot be"),
        (lambda: any_kernels.close_block(0.0, 0, page, page), "'float' object cannot be"),
        (lambda: any_kernels.read_sinks(0, part.sinks, 0, 1.5), "'float' object cannot be"),
        (lambda: make("int8", scale=1.0), "cache_format must be a CacheFormat, not a str"),
        (lambda: make(FORMAT, scale=1.0, rope="yarn"), "rope must be a Rope or None, not a str"),
        (lambda: make(FORMAT, scale=1.0, num_threads=1.5), "'float' object cannot be"),
        (lambda: aligned_page(4096.0), "'float' object cannot be"),  # type: ignore[arg-type]
    )
    for call, message in calls:
        with pytest.raises(TypeError, match=message):
            call()


def test_numbers_too_large_for_c_are_refused() -> None:
    for change, message in (
        ({"scale": 10**400}, "scale must be finite"),
        ({"scale": 3.5e38}, "scale must be finite"),
        ({"num_threads": 2**32 + 1}, "num_threads must be 1 to 2147483647, not 4294967297"),
        ({"isa": None}, "unknown instruction set None"),
    ):
        with pytest.raises(ValueError, match=message):
            KVKernels(FORMAT, **{"scale": 1.0, **change})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a page has at most"):
        aligned_page(2**63)
    with pytest.raises(ValueError, match="is_interleaved must be True or False, not 'yes'"):
        Rope(table(4, 8), table(4, 8), "yes")  # type: ignore[arg-type]


def test_a_position_matters_only_with_rope() -> None:
    kernels = KVKernels(FORMAT, scale=0.2)
    rows = rows_of(kernels, 1)
    assert rows.context is not None
    contexts = []
    for position in (0, 2**70):
        part = dataclasses.replace(grown(kernels, 70).begin(1), first_position=position)
        kernels.step([part]).run(0, rows)
        contexts.append(rows.context.copy())

    np.testing.assert_array_equal(contexts[0], contexts[1])


def test_what_the_c_side_points_to_cannot_be_replaced(kernels: KVKernels) -> None:
    rows, step = rows_of(kernels, 1), kernels.step([grown(kernels, 70).begin(1)])
    for thing, name in (
        *((kernels, name) for name in ("cache_format", "scale", "rope", "num_threads", "isa")),
        *((rows, name) for name in ("kernels", "num_rows", "queries", "keys", "values", "context", "address")),
        (step, "num_rows"),
    ):
        before = getattr(thing, name)
        with pytest.raises(AttributeError):
            setattr(thing, name, None)
        with pytest.raises(AttributeError):
            delattr(thing, name)
        assert getattr(thing, name) is before


def test_arrays_that_the_c_side_points_to_cannot_be_resized() -> None:
    rope = make_rope(1000, 32)
    kernels = KVKernels(FORMAT, scale=0.2, rope=rope)
    rows = rows_of(kernels, 1)
    assert rows.queries is not None
    assert rows.context is not None

    for array in (rope.cosines.base, rows.queries.base, rows.context.base):
        assert array is None  # they own their memory, or the test would show nothing
    kept = (kernels, rows)
    for array in (rows.keys, rows.context):
        with pytest.raises(ValueError, match="cannot resize"):
            array.resize((1,))
    assert kept


@pytest.mark.parametrize("what", ["open_pages", "sinks", "blocks of format 0"])
def test_a_page_that_may_not_be_written_any_more_is_refused(kernels: KVKernels, what: str) -> None:
    part = GrowingSequence(FORMAT).begin(4 + 65)
    kernels.step([part])
    page = {"open_pages": part.open_pages[1], "sinks": part.sinks}.get(what, part.blocks[0])
    assert page is not None

    page.flags.writeable = False
    with pytest.raises(ValueError, match=f"{what} must be aligned to 4096 bytes and writable"):
        kernels.step([part])
    page.flags.writeable = True
    kernels.step([part])


def test_a_page_that_is_no_target_any_more_is_refused(kernels: KVKernels) -> None:
    sequence = grown(kernels, 4 + 65)
    page = sequence.blocks[0]
    kernels.close_block(0, 0, sequence.raw_pages[0], page)

    page.flags.writeable = False
    with pytest.raises(ValueError, match="page must be aligned to 4096 bytes and writable"):
        kernels.close_block(0, 0, sequence.raw_pages[0], page)


def test_pages_that_overlap_are_not_both_written(kernels: KVKernels) -> None:
    nbytes = FORMAT.open.nbytes
    memory = aligned_page(nbytes + 4096)
    one, other = GrowingSequence(FORMAT).begin(10), GrowingSequence(FORMAT).begin(10)
    one.open_pages, other.open_pages = [memory[:nbytes]], [memory[4096:]]
    alone = dataclasses.replace(GrowingSequence(FORMAT).begin(4 + 65), open_pages=[memory[:nbytes], memory[4096:]])

    for parts in ([one, other], [alone]):
        with pytest.raises(ValueError, match="two pages that a step writes to overlap; make each with aligned_page"):
            kernels.step(parts)
    with pytest.raises(ValueError, match="page must be another one than open_page"):
        kernels.close_block(2, 0, memory[:nbytes], memory[4096:])
    apart = aligned_page(2 * nbytes)
    one.open_pages, other.open_pages = [apart[nbytes:]], [apart[:nbytes]]
    kernels.step([one, other])
