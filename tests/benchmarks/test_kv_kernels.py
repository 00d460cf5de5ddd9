"""What the kernels are compared with does the same work, and what does not is refused."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import kv_kernels
from benchmarks.gqa_node import CachePrecision, GqaNode
from benchmarks.kv_kernels import NARROW, TOLERANCES, WIDE, Case, run
from benchmarks.kv_rows import KVRowsSource
from benchmarks.paged_layer import PagedLayer, uniform_format
from edge_vl_kernels.kv_format import KVGeometry, Precision

NUM_ENTRIES = 200


def row(geometry: KVGeometry) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    random = np.random.default_rng(3)
    heads = (geometry.num_query_heads, geometry.num_kv_heads, geometry.num_kv_heads)
    query, key, value = (random.standard_normal((count, geometry.head_dim), np.float32) for count in heads)
    return query, key, value


def entries(geometry: KVGeometry) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    source = KVRowsSource(1, geometry.num_kv_heads, geometry.head_dim, max_entries=NUM_ENTRIES)
    return source.entries(0, False, NUM_ENTRIES), source.entries(0, True, NUM_ENTRIES)


def expected(geometry: KVGeometry) -> NDArray[np.float64]:
    """Attend in double precision, head by head."""
    query, key, value = (part.astype(np.float64) for part in row(geometry))
    keys, values = entries(geometry)
    rows = []
    for head in range(geometry.num_query_heads):
        own = head // geometry.group_size
        scores = np.append(keys[own], key[own][None], 0) @ query[head] / np.sqrt(geometry.head_dim)
        shares = np.exp(scores - scores.max())
        rows.append(shares @ np.append(values[own], value[own][None], 0) / shares.sum())
    return np.array(rows)


@pytest.mark.parametrize("geometry", [WIDE, NARROW])
@pytest.mark.parametrize("precision", ["f32", "int8", "int4"])
def test_the_node_of_onnxruntime_attends_to_all_entries(geometry: KVGeometry, precision: CachePrecision) -> None:
    node = GqaNode(geometry, *entries(geometry), precision)
    node.set_row(*row(geometry))

    for _ in range(2):  # the second run finds the row of the first one in its place
        node.run()
        error = np.linalg.norm(node.context.ravel() - expected(geometry).ravel()) / np.linalg.norm(expected(geometry))
        assert error < TOLERANCES[precision]


@pytest.mark.parametrize("geometry", [WIDE, NARROW])
@pytest.mark.parametrize("precision", ["f32", "f16", "int8", "int4"])
def test_our_layer_attends_to_all_entries(geometry: KVGeometry, precision: Precision) -> None:
    source = KVRowsSource(1, geometry.num_kv_heads, geometry.head_dim, max_entries=NUM_ENTRIES)
    layer = PagedLayer(geometry, source, NUM_ENTRIES, precision, row(geometry))

    for _ in range(2):
        layer.run()
        error = np.linalg.norm(layer.context[0] - expected(geometry)) / np.linalg.norm(expected(geometry))
        assert error < TOLERANCES[precision]
    layer.close()


def test_a_system_that_does_other_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = GqaNode.set_row
    monkeypatch.setattr(GqaNode, "set_row", lambda node, query, key, value: original(node, -query, key, value))

    with pytest.raises(RuntimeError, match="onnxruntime f32 is off by"):
        kv_kernels._measure(Case(NARROW, NUM_ENTRIES, ("f16",), ("f32",)), 1)


def test_bytes_are_those_of_codes_and_scales_and_of_raw_entries() -> None:
    case = Case(NARROW, 4 + 2 * 64 + 10, (), ())
    source = KVRowsSource(1, 3, 64, max_entries=case.num_entries)
    layer = PagedLayer(NARROW, source, case.num_entries, "int8", row(NARROW))
    raw = PagedLayer(NARROW, source, case.num_entries, "f32", row(NARROW))

    assert layer.nbytes == 3 * (2 * (2 * 64 * 64 + 64 * 2 + 64 * 2) + 14 * 2 * 64 * 2)
    assert raw.nbytes == 3 * case.num_entries * 2 * 64 * 4
    assert case.num_flops == 4 * case.num_entries * 9 * 64
    layer.close()
    raw.close()


@pytest.mark.parametrize(("precision", "open_precision"), [("f32", "f32"), ("f16", "f16"), ("int4", "f16")])
def test_what_is_compressed_is_float16_before(precision: Precision, open_precision: str) -> None:
    layout = uniform_format(WIDE, precision)

    assert layout.open_precision == open_precision
    assert layout.num_sinks == (4 if precision == "int4" else 0)


def test_the_quick_run_measures_every_system() -> None:
    result = run(True)

    systems = {row["system"] for row in result.table}
    assert {f"ours {kind}" for kind in ("f32", "f16", "int8", "int4")} <= systems
    assert {"onnxruntime f32", "onnxruntime int8", "onnxruntime int4"} <= systems
    assert not result.bars
    for found in result.table:
        assert isinstance(found["median_us"], float)
        assert found["median_us"] >= found["lowest_us"] > 0  # type: ignore[operator]
