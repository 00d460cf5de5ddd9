"""A graph whose attention is not ours, or whose rows depend on each other elsewhere, is not cut."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from edge_vl.models import find_model
from edge_vl_onnxruntime.graph_cut import CannotCut, cut_graph
from tests.decoder_graphs import HEADS, KV_HEADS, TEXT_CONFIG, GroupedQuery, merge_branches, write_grouped_query
from tests.operator_decoders import Operator, write_operator
from tests.plain_decoders import Plain, write_plain


def refusal(path: Path, text_config: Any = TEXT_CONFIG) -> str:
    """Return why a graph cannot be cut: one sentence in one line."""
    with pytest.raises(CannotCut) as caught:
        cut_graph(path, text_config)
    reason = str(caught.value)
    assert reason
    assert "\n" not in reason
    assert len(reason) < 400
    return reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (Plain(mask="window"), "is not causal for 3 rows behind 4097 entries"),
        (Plain(mask="ahead"), "is not causal for 5 rows behind 0 entries"),
        (Plain(mask="none"), "something else than causal attention"),
        (Plain(mask="where"), "scores go through Where"),
        (Plain(cap=True), "scores go through Tanh"),
        (Plain(bias=True), "scores go through Add after the mask"),
        (Plain(value_factor=2.0), "of its cache, goes into Mul"),
        (Plain(repeat="all"), "something else than causal attention"),
        (Plain(repeat="tile"), "goes into Tile"),
        (Plain(is_shared=True), "is used 2 times"),
        (Plain(is_parallel=True), "layer 1 does not follow layer 0"),
        (Plain(has_weights_output=True), "further outputs: shares"),
        (Plain(positions="row"), "the number of rows"),
        (Plain(stretch_from=4096), "outside"),
        (Plain(mixing="mean"), "ReduceMean .* mixes rows"),
        (Plain(mixing="sum"), "CumSum is not known to keep rows apart"),
        (Plain(mixing="reverse"), "Slice .* mixes rows"),
        (Plain(mixing="neighbour"), "Pad.* depends on more than the number of rows"),
        (Plain(mixing="softmax"), "Softmax .* mixes rows"),
        (Plain(mixing="product"), "MatMul .* mixes rows"),
        (Plain(mixing="first"), "Gather .* mixes rows"),
        (Plain(mixing="shuffle"), "Reshape .* mixes rows"),
        (Plain(mixing="largest"), "ReduceMax .* mixes rows"),
        (Plain(keeps="last"), "Slice .* mixes rows"),
        (Plain(head_dim=48), "48 channels, not a multiple of 32"),
        (Plain(head_dim=288), "288 channels, not a multiple of 32 up to 256"),
    ],
)
def test_plain_attention_that_is_not_ours_is_refused(tmp_path: Path, options: Plain, reason: str) -> None:
    assert re.search(reason, refusal(write_plain(tmp_path / "graph.onnx", options)))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (GroupedQuery(attributes={"softcap": 30.0}), "has softcap = 30.0"),
        (GroupedQuery(attributes={"local_window_size": 512}), "has local_window_size = 512"),
        (GroupedQuery(attributes={"smooth_softmax": 1}), "has smooth_softmax = 1"),
        (GroupedQuery(attributes={"kv_cache_bit_width": 8}), "has kv_cache_bit_width = 8"),
        (GroupedQuery(attributes={"invented": 1}), "has an attribute invented that is not known"),
        (GroupedQuery(extra=("", np.zeros((1, 1, 1, 1)))), "inputs that are not known"),
        (GroupedQuery(extra=("", "", np.zeros(HEADS))), "inputs that are not known"),
        (GroupedQuery(extra=("", "", "", np.ones(1), np.ones(1))), "inputs that are not known"),
        (GroupedQuery(rope="outside", extra=("position_ids",)), "positions and nothing to turn"),
    ],
)
def test_an_operator_with_more_than_is_known_is_refused(tmp_path: Path, options: GroupedQuery, reason: str) -> None:
    assert reason in refusal(write_grouped_query(tmp_path / "graph.onnx", options))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (Operator(attributes={"softcap": 20.0}), "has softcap = 20.0"),
        (Operator(has_inner_cache=True, attributes={"softcap": 20.0}), "has softcap = 20.0"),
        (Operator(attributes={"invented": 1}), "has an attribute invented"),
    ],
)
def test_a_standard_operator_with_more_than_is_known_is_refused(tmp_path: Path, options: Operator, reason: str) -> None:
    assert reason in refusal(write_operator(tmp_path / "graph.onnx", options))


def test_a_window_beyond_what_is_looked_at_is_found_at_the_end_of_the_context(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "graph.onnx", Plain(mask="window", window=10000))
    assert "is not causal for 1 rows behind 16383 entries" in refusal(path)


def test_what_begins_behind_the_context_is_left_out(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "graph.onnx", Plain(stretch_from=4096))
    graph = cut_graph(path, {**TEXT_CONFIG, "max_position_embeddings": 4096})
    assert graph.attentions[0].rope is not None


def test_a_window_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    path = write_plain(tmp_path / "graph.onnx", Plain(mask="window", window=512))
    cut_graph(path, {**TEXT_CONFIG, "max_position_embeddings": 512})


def edited(source: Path, target: Path, edit: Callable[[Any], None]) -> Path:
    model = onnx.load(source)
    edit(model.graph)
    onnx.save(model, target)
    return target


def first(graph: Any, op: str, place: int = 0) -> Any:
    return [node for node in graph.node if node.op_type == op][place]


def test_another_scale_is_taken_over_and_not_refused(tmp_path: Path) -> None:
    def halve(graph: Any) -> None:
        scores = first(graph, "MatMul", 3)  # behind the projections
        product = next(node for node in graph.node if node.op_type == "Mul" and scores.output[0] in node.input)
        weight = next(entry for entry in graph.initializer if entry.name == product.input[1])
        weight.raw_data = (np.frombuffer(weight.raw_data, np.float32) / 2).tobytes()

    path = edited(write_plain(tmp_path / "graph.onnx"), tmp_path / "edited.onnx", halve)
    scales = [attention.scale for attention in cut_graph(path, TEXT_CONFIG).attentions]
    assert scales == pytest.approx([32**-0.5 / 2, 32**-0.5, 32**-0.5])


def test_a_cache_that_is_appended_in_front_is_refused(tmp_path: Path) -> None:
    def swap(graph: Any) -> None:
        node = next(entry for entry in graph.node if entry.output[0] == "present.1.key")
        node.input[0], node.input[1] = node.input[1], node.input[0]

    path = edited(write_plain(tmp_path / "graph.onnx"), tmp_path / "edited.onnx", swap)
    assert "does not begin with past_key_values.1.key" in refusal(path)


def test_a_cache_that_is_read_outside_the_attention_is_refused(tmp_path: Path) -> None:
    def read(graph: Any) -> None:
        node = first(graph, "Identity")
        total = helper.make_node("ReduceSum", ["past_key_values.0.value"], ["total"], keepdims=0)
        graph.node.insert(len(graph.node) - 1, total)
        graph.node.insert(len(graph.node) - 1, helper.make_node("Add", [node.input[0], "total"], ["shifted"]))
        node.input[0] = "shifted"

    path = edited(write_plain(tmp_path / "graph.onnx"), tmp_path / "edited.onnx", read)
    assert "outside the attention" in refusal(path)


def test_queries_and_keys_of_different_layers_are_refused(tmp_path: Path) -> None:
    def cross(graph: Any) -> None:
        node, other = (first(graph, "GroupQueryAttention", place) for place in (0, 2))
        other.input[1] = node.input[1]

    path = edited(write_grouped_query(tmp_path / "graph.onnx"), tmp_path / "edited.onnx", cross)
    assert "layer 2 does not follow layer 1" in refusal(path)


def test_a_result_that_is_used_behind_the_next_attention_is_refused(tmp_path: Path) -> None:
    def keep(graph: Any) -> None:
        node = first(graph, "SkipSimplifiedLayerNormalization", 5)
        graph.node.insert(len(graph.node) - 2, helper.make_node("Add", [node.output[0], "attention_0"], ["sum"]))
        graph.node[-2].input[0] = "sum"

    path = edited(write_grouped_query(tmp_path / "graph.onnx"), tmp_path / "edited.onnx", keep)
    reason = refusal(path)
    assert "attention_0" in reason
    assert "behind the next one" in reason


def test_an_input_that_is_not_known_is_refused(tmp_path: Path) -> None:
    def add(graph: Any) -> None:
        graph.input.append(helper.make_tensor_value_info("adapter", 1, [1]))

    path = edited(write_plain(tmp_path / "graph.onnx"), tmp_path / "edited.onnx", add)
    assert "its input adapter of rank 1 is not known" in refusal(path)


def test_an_operator_that_is_not_known_is_refused(tmp_path: Path) -> None:
    def replace(graph: Any) -> None:
        node = first(graph, "Sigmoid")
        node.op_type, node.domain = "Mystery", "com.example"

    path = edited(write_plain(tmp_path / "graph.onnx"), tmp_path / "edited.onnx", replace)
    assert "cannot be told" in refusal(path)


def test_old_versions_of_the_operators_are_refused(tmp_path: Path) -> None:
    model = onnx.load(write_plain(tmp_path / "graph.onnx"))
    model.opset_import[0].version = 12
    onnx.save(model, tmp_path / "edited.onnx")
    assert "opset 12" in refusal(tmp_path / "edited.onnx")


def test_branching_on_something_else_is_refused(tmp_path: Path) -> None:
    path = merge_branches(write_plain(tmp_path / "part.onnx"), tmp_path / "graph.onnx", condition="is_first")
    assert "operator If has a graph inside it" in refusal(path)


def test_heads_that_do_not_share_evenly_are_refused(tmp_path: Path) -> None:
    path = write_grouped_query(tmp_path / "graph.onnx", GroupedQuery(attributes={"num_heads": 3}))
    assert refusal(path)


def test_sizes_that_nothing_says_are_refused(tmp_path: Path) -> None:
    def forget(graph: Any) -> None:
        for entry in graph.input:
            if entry.name.startswith("past_key_values"):
                entry.type.tensor_type.shape.dim[1].dim_param = "heads"

    path = edited(write_plain(tmp_path / "graph.onnx"), tmp_path / "edited.onnx", forget)
    assert "number of key/value heads" in refusal(path, {"max_position_embeddings": 512})
    cut_graph(path, {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS})


@pytest.mark.parametrize("name", ["embed_tokens", "vision_encoder"])
def test_a_graph_without_a_cache_is_refused(name: str) -> None:
    assert refusal(find_model("bundled").path / "onnx" / f"{name}.onnx", {})


def test_files_that_are_no_graphs_are_refused(tmp_path: Path) -> None:
    source = find_model("bundled").path / "onnx" / "decoder_model_merged.onnx"
    broken = {"empty": b"", "words": b"not a graph", "half": source.read_bytes()[: source.stat().st_size // 2]}
    for name, content in broken.items():
        (tmp_path / name).write_bytes(content)
        assert refusal(tmp_path / name, {})
    assert refusal(tmp_path / "missing", {})


def test_damaged_graphs_are_cut_or_refused_and_nothing_else(tmp_path: Path) -> None:
    """Nodes are where the bytes change, so that names, attributes and operators do."""
    source = write_plain(tmp_path / "graph.onnx")
    content = source.read_bytes()
    end = sum(node.ByteSize() for node in onnx.load(source).graph.node)
    random = np.random.default_rng(0)
    outcomes = set()
    for number in range(60):
        damaged = bytearray(content)
        for place in random.integers(0, end, 3):
            damaged[place] = random.integers(0, 256)
        path = tmp_path / f"{number % 2}.onnx"
        path.write_bytes(damaged)
        try:
            cut_graph(path, TEXT_CONFIG)
            outcomes.add("cut")
        except CannotCut:
            outcomes.add("refused")
    assert "refused" in outcomes


def test_without_the_package_onnx_the_reason_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "edge_vl_onnxruntime.graph_cutter", None)
    assert "pip install onnx" in refusal(tmp_path / "graph.onnx")


def test_a_copy_of_a_graph_in_another_folder_is_refused_when_its_weights_are_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = write_plain(tmp_path / "graph.onnx")
    model = onnx.load(path)
    onnx.save(model, folder / "graph.onnx", save_as_external_data=True, location="graph.onnx_data", size_threshold=0)
    shutil.move(folder / "graph.onnx_data", tmp_path / "graph.onnx_data")
    (folder / "graph.onnx_data").symlink_to(tmp_path / "graph.onnx_data")
    assert "its weights lie in" in refusal(folder / "graph.onnx")
