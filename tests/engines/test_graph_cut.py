"""Pieces with attention of our own between them give what the whole graph gives."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from edge_vl.made_models.idefics3_onnx import decoder
from edge_vl.made_models.parameters import idefics3_parameters
from edge_vl.made_models.weights import RandomWeights
from edge_vl.models import find_model
from edge_vl_onnxruntime.graph_cut import CutGraph, cut_graph
from tests.decoder_graphs import TEXT_CONFIG, GroupedQuery, merge_branches, write_grouped_query
from tests.graph_runs import Array, CutRun, WholeRun
from tests.operator_decoders import Operator, write_operator
from tests.plain_decoders import Plain, write_plain

PROMPT, STEPS = 40, 40
UNTURNED = {**TEXT_CONFIG, "max_position_embeddings": 100_000}
"""More positions than tables are made for: the pieces turn queries and keys as the graph does."""

GraphFile = Callable[[str], Path]


def torch_file(model: str, attention: str, *, opset: int = 17, is_dynamo: bool = False) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        from tests import torch_decoders  # late: torch takes seconds

        made = (
            torch_decoders.Decoder(attention)
            if model == "own"
            else torch_decoders.TransformersDecoder(model, attention)
        )
        return torch_decoders.export(made, path, opset=opset, is_dynamo=is_dynamo)

    return write


def write_made(path: Path) -> Path:
    """Write the decoder of a made SmolVLM, its weights in a second file."""
    text = {
        **TEXT_CONFIG,
        "intermediate_size": 192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e5,
        "tie_word_embeddings": True,
    }
    vision = {"hidden_size": 32, "num_hidden_layers": 0, "intermediate_size": 32, "patch_size": 8, "image_size": 32}
    config = {"text_config": text, "vision_config": vision, "scale_factor": 2}
    weights = RandomWeights(idefics3_parameters(config))
    decoder(weights, config).save(path, max_inline_bytes=0)
    return path


WRITERS: Mapping[str, Callable[[Path], Path]] = {
    "made": write_made,
    "plain": write_plain,
    "plain-count": lambda path: write_plain(path, Plain(keeps="count")),
    "plain-head-64": lambda path: write_plain(path, Plain(head_dim=64)),
    "plain-norms": lambda path: write_plain(path, Plain(has_norms=True)),
    "plain-packed": lambda path: write_plain(path, Plain(is_packed=True)),
    "plain-gemm": lambda path: write_plain(path, Plain(has_gemm=True)),
    "plain-tables": lambda path: write_plain(path, Plain(is_rope_looked_up=True)),
    "positions-from-lengths": lambda path: write_plain(path, Plain(positions="lengths")),
    "positions-from-mask": lambda path: write_plain(path, Plain(positions="mask")),
    "gqa": write_grouped_query,
    "gqa-packed": lambda path: write_grouped_query(path, GroupedQuery(is_packed=True)),
    "gqa-outside": lambda path: write_grouped_query(path, GroupedQuery(rope="outside")),
    "gqa-interleaved": lambda path: write_grouped_query(path, GroupedQuery(is_interleaved=True)),
    "gqa-partial": lambda path: write_grouped_query(path, GroupedQuery(rotary_dim=16)),
    "gqa-outside-partial": lambda path: write_grouped_query(path, GroupedQuery(rope="outside", rotary_dim=16)),
    "gqa-positions": lambda path: write_grouped_query(path, GroupedQuery(extra=("position_ids",))),
    "gqa-scale": lambda path: write_grouped_query(path, GroupedQuery(attributes={"scale": 0.3})),
    "operator": write_operator,
    "operator-bool": lambda path: write_operator(path, Operator(is_bool=True)),
    "operator-inner": lambda path: write_operator(path, Operator(has_inner_cache=True)),
    "operator-flat": lambda path: write_operator(path, Operator(has_inner_cache=True, is_flat=True)),
    "operator-scale": lambda path: write_operator(path, Operator(attributes={"scale": 0.3})),
    "merged-plain": lambda path: merge_branches(write_plain(path.with_suffix(".part")), path),
    "merged-gqa": lambda path: merge_branches(write_grouped_query(path.with_suffix(".part")), path),
    "torch-eager": torch_file("own", "eager"),
    "torch-sdpa": torch_file("own", "sdpa"),
    "llama-eager": torch_file("llama", "eager"),
    "llama-sdpa": torch_file("llama", "sdpa"),
    "smolvlm-sdpa": torch_file("smolvlm", "sdpa"),
}
DYNAMO = (("llama", "sdpa", 23),)
CONVERTED = ("plain", "gqa", "torch-sdpa")


@pytest.fixture(scope="session")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> GraphFile:
    """Return graphs by name, written once."""
    root = tmp_path_factory.mktemp("graphs")

    def get(name: str) -> Path:
        if name == "bundled":
            return find_model("bundled").path / "onnx" / "decoder_model_merged.onnx"
        path = root / f"{name}.onnx"
        return path if path.exists() else WRITERS[name](path)

    return get


def difference(path: Path, graph: CutGraph, steps: int = STEPS) -> tuple[float, bool]:
    """Return the largest difference of logits, and whether all tokens are equal.

    The prompt is followed by the tokens that the whole graph likes best.
    """
    whole, cut = WholeRun(path), CutRun(graph)
    width = next(entry.shape[2] for entry in whole.inputs if entry.name == "inputs_embeds")
    random = np.random.default_rng(0)
    table = random.standard_normal((1000, width)).astype(np.float32)
    rows = table[random.integers(0, len(table), PROMPT)]
    cache, largest, is_equal = cut.new_cache(), 0.0, True
    for _ in range(steps + 1):
        expected, found = whole.step(rows), cut.step([(cache, rows)])
        assert np.isfinite(expected).all()
        largest = max(largest, float(np.abs(found - expected).max()))
        best = expected.argmax(-1)
        is_equal = is_equal and np.array_equal(best, found.argmax(-1))
        rows = table[best[-1:]]
    return largest, is_equal


@pytest.mark.parametrize("name", ["bundled", *WRITERS])
def test_pieces_give_the_logits_of_the_whole_graph(graph_file: GraphFile, name: str) -> None:
    graph = cut_graph(graph_file(name), {} if name == "bundled" else TEXT_CONFIG)
    largest, is_equal = difference(graph_file(name), graph)
    assert largest <= 1e-4
    assert is_equal


@pytest.mark.parametrize(
    "name",
    [
        "bundled", "made", "plain", "plain-norms", "plain-packed", "plain-tables", "positions-from-lengths",
        "positions-from-mask", "gqa-outside", "operator", "operator-flat", "torch-sdpa", "llama-eager", "llama-sdpa",
        "smolvlm-sdpa",
    ],
)  # fmt: skip
def test_pieces_that_turn_queries_and_keys_give_them_too(graph_file: GraphFile, name: str) -> None:
    graph = cut_graph(graph_file(name), UNTURNED)
    assert graph.positions == "position_ids"
    assert all(attention.rope is None for attention in graph.attentions)
    largest, is_equal = difference(graph_file(name), graph)
    assert largest <= 1e-4
    assert is_equal


@pytest.mark.parametrize("name", CONVERTED)
def test_weights_of_eight_bits_change_nothing_about_the_cut(graph_file: GraphFile, tmp_path: Path, name: str) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = tmp_path / "int8.onnx"
    logging.disable(logging.WARNING)  # advice to simplify the graph before
    try:
        quantize_dynamic(
            graph_file(name),
            path,
            weight_type=QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    finally:
        logging.disable(logging.NOTSET)
    assert b"MatMulInteger" in path.read_bytes()
    graph = cut_graph(path, TEXT_CONFIG)
    assert graph.shares_scales
    largest, _ = difference(path, graph)
    assert largest <= 0.05  # an activation on the border between two codes may fall to either side


@pytest.mark.parametrize(("accuracy", "tolerance"), [(1, 1e-4), (4, 0.4)])
@pytest.mark.parametrize("name", CONVERTED)
def test_weights_of_four_bits_change_nothing_about_the_cut(
    graph_file: GraphFile, tmp_path: Path, name: str, accuracy: int, tolerance: float
) -> None:
    """At accuracy 4 activations have 8 bits per block: those on a border may fall to either side."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    path = tmp_path / "q4.onnx"
    logging.disable(logging.INFO)
    try:
        quantizer = MatMulNBitsQuantizer(
            onnx.load(graph_file(name)), block_size=32, is_symmetric=True, accuracy_level=accuracy
        )
        quantizer.process()
    finally:
        logging.disable(logging.NOTSET)
    onnx.save(quantizer.model.model, path)
    assert b"MatMulNBits" in path.read_bytes()
    graph = cut_graph(path, TEXT_CONFIG)
    assert not graph.shares_scales
    largest, _ = difference(path, graph)
    assert largest <= tolerance


@pytest.mark.parametrize("name", CONVERTED)
def test_a_graph_in_half_precision_has_borders_in_half_precision(
    graph_file: GraphFile, tmp_path: Path, name: str
) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    path = tmp_path / "fp16.onnx"
    onnx.save(convert_float_to_float16(onnx.load(graph_file(name))), path)
    graph = cut_graph(path, TEXT_CONFIG)
    for attention in graph.attentions:
        dtypes = {attention.query.dtype, attention.key.dtype, attention.value.dtype, attention.context_dtype}
        assert dtypes == {np.dtype(np.float16)}
    largest, _ = difference(path, graph)
    assert largest <= 0.03


@pytest.mark.parametrize(
    "change",
    [
        lambda attention: dataclasses.replace(attention, scale=attention.scale * 1.1),
        lambda attention: dataclasses.replace(attention, rope=None),
        lambda attention: dataclasses.replace(attention, rope=dataclasses.replace(attention.rope, is_interleaved=True)),
        lambda attention: dataclasses.replace(attention, key=attention.value),
    ],
)
def test_a_wrong_attention_would_be_seen(graph_file: GraphFile, change: Callable[[Any], Any]) -> None:
    graph = cut_graph(graph_file("gqa"), TEXT_CONFIG)
    wrong = dataclasses.replace(graph, attentions=(change(graph.attentions[0]), *graph.attentions[1:]))
    assert difference(graph_file("gqa"), wrong, steps=0)[0] > 1e-3


@pytest.mark.parametrize(("model", "attention", "opset"), DYNAMO)
def test_graphs_of_the_newer_exporter_are_cut_too(tmp_path: Path, model: str, attention: str, opset: int) -> None:
    pytest.importorskip("onnxscript", reason="torch.onnx.export(dynamo=True) needs it")
    path = torch_file(model, attention, opset=opset, is_dynamo=True)(tmp_path / "graph.onnx")
    largest, is_equal = difference(path, cut_graph(path, TEXT_CONFIG))
    assert largest <= 1e-4
    assert is_equal


def test_operands_say_where_they_lie(graph_file: GraphFile) -> None:
    apart = cut_graph(graph_file("gqa"), TEXT_CONFIG).attentions[1]
    packed = cut_graph(graph_file("gqa-packed"), TEXT_CONFIG).attentions[1]
    plain = cut_graph(graph_file("plain"), UNTURNED).attentions[1]
    assert [entry.layout for entry in (apart.query, apart.key, apart.value)] == ["rows"] * 3
    assert len({entry.name for entry in (apart.query, apart.key, apart.value)}) == 3
    assert len({entry.name for entry in (packed.query, packed.key, packed.value)}) == 1
    assert [entry.offset for entry in (packed.query, packed.key, packed.value)] == [0, 128, 192]
    # Queries and keys come turned, head by head; values as their projection gives them.
    assert [entry.layout for entry in (plain.query, plain.key, plain.value)] == ["heads", "heads", "rows"]


def test_a_graph_that_counts_positions_gets_an_input_for_them(graph_file: GraphFile) -> None:
    for name in ("positions-from-lengths", "positions-from-mask"):
        names = [entry.name for entry in onnx.load(graph_file(name)).graph.input]
        assert "position_ids" not in names
        graph = cut_graph(graph_file(name), UNTURNED)
        assert graph.positions == "position_ids"
        assert graph.pieces[0].inputs.count("position_ids") == 1


def test_pieces_take_from_the_graph_its_embeds_and_positions_only(graph_file: GraphFile) -> None:
    for name in ("bundled", "plain-count", "gqa", "operator-inner", "merged-plain", "llama-sdpa"):
        graph = cut_graph(graph_file(name), UNTURNED)
        given = {"inputs_embeds", "position_ids", *graph.constants}
        for piece, attention in zip(graph.pieces, (*graph.attentions, None), strict=True):
            assert set(piece.inputs) <= given
            given.update(piece.outputs)
            if attention is not None:
                given.add(attention.context)
                assert {attention.query.name, attention.key.name, attention.value.name} <= set(piece.outputs)
        assert graph.pieces[-1].outputs == ("logits",)


def test_few_tensors_go_from_piece_to_piece(graph_file: GraphFile) -> None:
    """What depends on positions only is computed once, not once for each layer."""
    for name in ("made", "llama-eager", "llama-sdpa", "smolvlm-sdpa", "operator"):
        for config, most in ((TEXT_CONFIG, 2), (UNTURNED, 4)):
            graph = cut_graph(graph_file(name), config)
            for piece in graph.pieces[1:]:
                assert len(set(piece.inputs) - set(graph.constants) - {"position_ids"}) <= most


def rows_of(random: np.random.Generator, count: int) -> Array:
    rows: Array = random.standard_normal((count, 128)).astype(np.float32)
    return rows


@pytest.mark.parametrize("config", [TEXT_CONFIG, UNTURNED], ids=["turned", "unturned"])
@pytest.mark.parametrize("name", ["plain", "positions-from-lengths", "gqa", "gqa-outside", "operator", "llama-sdpa"])
def test_rows_of_several_sequences_go_through_together(
    graph_file: GraphFile, name: str, config: Mapping[str, Any]
) -> None:
    run = CutRun(cut_graph(graph_file(name), config))
    random = np.random.default_rng(1)
    prompts = [rows_of(random, count) for count in (3, 17, 1)]
    steps = [rows_of(random, count) for count in (1, 2, 5)]
    alone = []
    for prompt, step in zip(prompts, steps, strict=True):
        cache = run.new_cache()
        run.step([(cache, prompt)])
        alone.append(run.step([(cache, step)]))
    caches = [run.new_cache() for _ in prompts]
    run.step(list(zip(caches, prompts, strict=True)))
    together = run.step(list(zip(caches, steps, strict=True)))
    np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


@pytest.mark.parametrize("name", ["plain", "plain-count", "gqa", "operator", "llama-sdpa"])
def test_the_last_piece_runs_on_the_rows_that_need_logits(graph_file: GraphFile, name: str) -> None:
    run = CutRun(cut_graph(graph_file(name), UNTURNED))
    rows = rows_of(np.random.default_rng(2), 9)
    every = run.step([(run.new_cache(), rows)])
    some = run.step([(run.new_cache(), rows)], last=[2, 8])
    assert some.shape == (2, 97)
    np.testing.assert_allclose(some, every[[2, 8]], atol=1e-5)
