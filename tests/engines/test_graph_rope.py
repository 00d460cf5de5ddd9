"""Rotary embeddings written out in operators become tables for the attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edge_vl_onnxruntime.graph_cut import CutGraph, CutRope, cut_graph
from edge_vl_onnxruntime.rotation import rotated
from tests.decoder_graphs import TEXT_CONFIG, GroupedQuery, rope_tables, write_grouped_query
from tests.operator_decoders import Operator, write_operator
from tests.plain_decoders import Plain, write_plain

WRITERS: dict[str, Callable[[Path], Path]] = {
    "plain": write_plain,
    "positions-from-lengths": lambda path: write_plain(path, Plain(positions="lengths")),
    "gqa-outside": lambda path: write_grouped_query(path, GroupedQuery(rope="outside")),
    "gqa-outside-interleaved": lambda path: write_grouped_query(
        path, GroupedQuery(rope="outside", is_interleaved=True)
    ),
    "operator": write_operator,
    "operator-flat": lambda path: write_operator(path, Operator(has_inner_cache=True, is_flat=True)),
}


def operators(graph: CutGraph) -> set[str]:
    return {node.op_type for piece in graph.pieces for node in onnx.ModelProto.FromString(piece.graph).graph.node}


@pytest.mark.parametrize("name", WRITERS)
def test_the_tables_are_the_cosines_and_sines_of_all_positions(tmp_path: Path, name: str) -> None:
    graph = cut_graph(WRITERS[name](tmp_path / "graph.onnx"), TEXT_CONFIG)
    ropes = [attention.rope for attention in graph.attentions]
    assert len({id(rope) for rope in ropes}) == 1
    rope = ropes[0]
    assert rope is not None
    for found, expected in zip((rope.cosines, rope.sines), rope_tables(), strict=True):
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=2e-3)  # angles of 16383 have few digits behind the point
        np.testing.assert_allclose(found[:100], expected[:100], atol=1e-5)
    assert rope.is_interleaved == (name == "gqa-outside-interleaved")
    assert graph.positions == ""
    assert not operators(graph) & {"Cos", "Sin", "RotaryEmbedding", "Concat", "Slice", "Neg"}
    assert {attention.key.layout for attention in graph.attentions} == {"rows"}


def test_a_table_has_a_row_for_every_position_of_the_context(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "graph.onnx")
    for context in (8, 1500, 4096):
        rope = cut_graph(path, {**TEXT_CONFIG, "max_position_embeddings": context}).attentions[0].rope
        assert rope is not None
        assert rope.cosines.shape == rope.sines.shape == (context, 16)


def edited(source: Path, edit: Callable[[Any], None]) -> Path:
    model = onnx.load(source)
    edit(model.graph)
    onnx.save(model, source.with_name("edited.onnx"))
    return source.with_name("edited.onnx")


def layer_of_other_angles(graph: Any) -> None:
    """Give the last layer's keys cosines of their own."""
    cosines = [node for node in graph.node if node.op_type == "Mul" and "Cos" in node.input[1]]
    graph.node.insert(0, onnx.helper.make_node("Constant", [], ["half"], value_float=0.5))
    place = list(graph.node).index(cosines[-1])
    graph.node.insert(place, onnx.helper.make_node("Mul", [cosines[-1].input[1], "half"], ["others"]))
    cosines[-1].input[1] = "others"


@pytest.mark.parametrize(
    ("make", "config"),
    [
        (lambda path: edited(write_plain(path), layer_of_other_angles), TEXT_CONFIG),
        (lambda path: write_grouped_query(path, GroupedQuery(rope="outside", rotary_dim=16)), TEXT_CONFIG),
        (write_plain, {**TEXT_CONFIG, "max_position_embeddings": 65537}),
        (write_plain, {**TEXT_CONFIG, "max_position_embeddings": 7}),
    ],
    ids=["layers-differ", "partial", "long", "short"],
)
def test_what_is_not_one_rotation_of_all_channels_stays_in_the_pieces(
    tmp_path: Path, make: Callable[[Path], Path], config: Any
) -> None:
    graph = cut_graph(make(tmp_path / "graph.onnx"), config)
    assert all(attention.rope is None for attention in graph.attentions)
    assert graph.positions == "position_ids"
    assert operators(graph) & {"Cos", "RotaryEmbedding"}


def test_a_graph_in_half_precision_turns_by_itself(tmp_path: Path) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = convert_float_to_float16(onnx.load(write_plain(tmp_path / "graph.onnx")))
    onnx.save(model, tmp_path / "half.onnx")
    graph = cut_graph(tmp_path / "half.onnx", TEXT_CONFIG)
    assert all(attention.rope is None for attention in graph.attentions)


def test_a_factor_of_queries_goes_into_the_scale(tmp_path: Path) -> None:
    """Exporters share the scale out to queries and keys, in front of the product or behind it."""

    def move(graph: Any) -> None:
        """Scale the queries of all layers by 3 once they are turned."""
        graph.node.insert(0, onnx.helper.make_node("Constant", [], ["three"], value_float=3.0))
        for scores in [node for node in graph.node if node.op_type == "MatMul" and "Transpose" in node.input[1]]:
            name = f"{scores.input[0]}_scaled"
            place = list(graph.node).index(scores)
            graph.node.insert(place, onnx.helper.make_node("Mul", [scores.input[0], "three"], [name]))
            scores.input[0] = name

    graph = cut_graph(edited(write_plain(tmp_path / "graph.onnx"), move), TEXT_CONFIG)
    assert [attention.scale for attention in graph.attentions] == pytest.approx([3 * 32**-0.5] * 3, rel=1e-5)
    assert all(attention.rope is not None for attention in graph.attentions)


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_turning_by_a_position_is_a_rotation(is_interleaved: bool) -> None:
    rope = CutRope(*rope_tables(64), is_interleaved)
    random = np.random.default_rng(0)
    rows = random.standard_normal((5, 2, 40)).astype(np.float32)
    turned = rotated(rows, rope, 7)
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(rows, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(turned[..., 32:], rows[..., 32:])
    np.testing.assert_allclose(rotated(rows, rope, 0)[0], rows[0], atol=1e-6)
    # A product depends on the distance only.
    row = rows[:1]
    near = (rotated(row, rope, 3) * rotated(row, rope, 10)).sum()
    far = (rotated(row, rope, 43) * rotated(row, rope, 50)).sum()
    assert near == pytest.approx(far, rel=1e-3)
