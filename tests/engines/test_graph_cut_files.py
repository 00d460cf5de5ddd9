"""Weights stay in the files that they are in."""

from __future__ import annotations

import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from edge_vl.models import find_model
from edge_vl_onnxruntime.graph_cut import CutGraph, cut_graph
from tests.decoder_graphs import TEXT_CONFIG, GroupedQuery, write_grouped_query
from tests.graph_runs import CutRun, WholeRun
from tests.plain_decoders import write_plain

BUNDLED = find_model("bundled").path / "onnx" / "decoder_model_merged.onnx"


def agrees(path: Path, graph: CutGraph) -> bool:
    whole, cut = WholeRun(path), CutRun(graph)
    width = next(entry.shape[2] for entry in whole.inputs if entry.name == "inputs_embeds")
    rows = np.random.default_rng(0).standard_normal((6, width)).astype(np.float32)
    return bool(np.allclose(whole.step(rows), cut.step([(cut.new_cache(), rows)]), atol=1e-4))


def test_pieces_hold_references_to_large_weights_and_every_weight_once() -> None:
    graph = cut_graph(BUNDLED, {})
    assert sum(len(piece.graph) for piece in graph.pieces) < 0.01 * BUNDLED.stat().st_size
    names: list[str] = []
    whole = {tensor.name: tensor.dims for tensor in onnx.load(BUNDLED).graph.initializer}
    for piece in graph.pieces:
        for tensor in onnx.ModelProto.FromString(piece.graph).graph.initializer:
            if np.prod(tensor.dims) * 4 >= 64 * 1024:
                assert tensor.data_location == TensorProto.EXTERNAL
                names.append(tensor.name)
    assert len(names) == len(set(names))
    assert set(names) == {name for name, dims in whole.items() if np.prod(dims) * 4 >= 64 * 1024}
    assert graph.folder == BUNDLED.resolve().parent


def test_cutting_takes_little_memory() -> None:
    cut_graph(BUNDLED, {})  # what is imported counts once
    tracemalloc.start()
    try:
        cut_graph(BUNDLED, {})
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 0.4 * BUNDLED.stat().st_size


@pytest.mark.parametrize("threshold", [100, 1024])
def test_external_data_is_referred_to_where_it_is(tmp_path: Path, threshold: int) -> None:
    source = write_grouped_query(tmp_path / "inline.onnx")
    path = tmp_path / "graph.onnx"
    onnx.save(onnx.load(source), path, save_as_external_data=True, location="graph.onnx_data", size_threshold=threshold)
    graph = cut_graph(path, TEXT_CONFIG)
    for piece in graph.pieces:
        for tensor in onnx.ModelProto.FromString(piece.graph).graph.initializer:
            if tensor.data_location == TensorProto.EXTERNAL:
                assert {"graph.onnx_data"} == {e.value for e in tensor.external_data if e.key == "location"}
    assert agrees(path, graph)


def test_a_graph_and_its_data_are_found_behind_links(tmp_path: Path) -> None:
    """A hub's cache is a folder of files with odd names, and one of links to them."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    source = write_plain(tmp_path / "inline.onnx")
    onnx.save(onnx.load(source), tmp_path / "graph.onnx", save_as_external_data=True, location="graph.onnx_data")
    for name, blob in (("graph.onnx", "0a1b"), ("graph.onnx_data", "2c3d")):
        shutil.move(tmp_path / name, blobs / blob)
        (snapshot / name).symlink_to(Path("../../blobs") / blob)
    graph = cut_graph(snapshot / "graph.onnx", TEXT_CONFIG)
    assert graph.folder == blobs
    assert agrees(source, graph)


def test_large_weights_that_several_pieces_use_become_one_constant(tmp_path: Path) -> None:
    path = write_grouped_query(tmp_path / "graph.onnx", GroupedQuery(rope="outside", rotary_dim=16))
    graph = cut_graph(path, TEXT_CONFIG)
    assert sorted(values.shape for values in graph.constants.values()) == [(16384, 8)] * 2
    for piece in graph.pieces[:-1]:
        assert set(graph.constants) <= set(piece.inputs)
        held = {tensor.name for tensor in onnx.ModelProto.FromString(piece.graph).graph.initializer}
        assert not held & set(graph.constants)
    assert not set(graph.constants) & set(graph.pieces[-1].inputs)


def test_weights_that_are_not_raw_are_kept(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "graph.onnx")
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            values = np.frombuffer(tensor.raw_data, np.float32)
            tensor.ClearField("raw_data")
            tensor.float_data.extend(values)
    onnx.save(model, path)
    assert agrees(path, cut_graph(path, TEXT_CONFIG))
