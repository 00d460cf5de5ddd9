"""Small decoder graphs with random weights, in the forms that exporters write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.engines.tiny_models import GraphBuilder, value

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, LAYERS, CONTEXT = 128, 4, 2, 32, 192, 97, 3, 16384

TEXT_CONFIG: Mapping[str, Any] = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
    "max_position_embeddings": CONTEXT,
}


def rope_tables(positions: int = CONTEXT, rotary_dim: int = HEAD_DIM) -> tuple[Any, Any]:
    """Return cosines and sines, float32 (positions, rotary_dim / 2)."""
    half = rotary_dim // 2
    angles = np.arange(positions)[:, None] * 10000.0 ** -(np.arange(half) / half)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def save(
    graph: GraphBuilder,
    path: Path,
    names: Sequence[str],
    *,
    opset: int = 21,
    head_dim: int = HEAD_DIM,
    outputs: Sequence[Any] = (),
) -> Path:
    """Write a graph with the inputs and outputs that Optimum gives; `names` are inputs beside embeds and cache."""
    batch, rows = "batch_size", "sequence_length"
    shapes: dict[str, tuple[int | str, ...]] = {
        "attention_mask": (batch, "total_sequence_length"), "position_ids": (batch, rows), "num_logits_to_keep": (),
    }  # fmt: skip
    inputs = [value("inputs_embeds", TensorProto.FLOAT, (batch, rows, HIDDEN))]
    inputs += [value(name, TensorProto.INT64, shapes[name]) for name in names]
    described = [value("logits", TensorProto.FLOAT, (batch, "num_logits", VOCAB))]
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            past = (batch, KV_HEADS, "past_sequence_length", head_dim)
            inputs.append(value(f"past_key_values.{layer}.{kind}", TensorProto.FLOAT, past))
            present = (batch, KV_HEADS, "total_sequence_length", head_dim)
            described.append(value(f"present.{layer}.{kind}", TensorProto.FLOAT, present))
    content = helper.make_graph(graph.nodes, path.stem, inputs, [*described, *outputs], graph.weights)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(content, opset_imports=opsets, ir_version=10), path)
    return path


def _only(condition: bool, **attributes: Any) -> dict[str, Any]:
    return attributes if condition else {}


@dataclass(frozen=True)
class GroupedQuery:
    """How a graph with `GroupQueryAttention` is built.

    Attributes:
        is_packed: queries, keys and values are one tensor.
        rope: `inside` the operator, or an operator `outside` it.
        is_interleaved: pairs of neighbours turn.
        rotary_dim: channels that turn.
        attributes: of the operator, further ones.
        extra: inputs of the operator behind the tables: names or weights.
    """

    is_packed: bool = False
    rope: str = "inside"
    is_interleaved: bool = False
    rotary_dim: int = HEAD_DIM
    attributes: Mapping[str, Any] | None = None
    extra: tuple[Any, ...] = ()


def write_grouped_query(path: Path, options: GroupedQuery = GroupedQuery()) -> Path:
    """Write a decoder as the builder of onnxruntime-genai does."""
    graph = GraphBuilder(5)
    sizes = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM)
    cosines, sines = (graph.constant(table) for table in rope_tables(rotary_dim=options.rotary_dim))
    microsoft = "com.microsoft"
    count = graph.op("ReduceSum", "attention_mask", graph.constant([1], np.int64), keepdims=0)
    seqlens = graph.op("Cast", graph.op("Sub", count, graph.constant([1], np.int64)), to=TensorProto.INT32)
    total = graph.op("Gather", graph.op("Shape", "attention_mask"), graph.constant(1, np.int64))
    total = graph.op("Cast", total, to=TensorProto.INT32)

    def gamma() -> str:
        return graph.constant(graph.random.uniform(0.5, 1.5, HIDDEN))

    x = "inputs_embeds"
    normal = graph.op("SimplifiedLayerNormalization", x, gamma(), axis=-1, epsilon=1e-5, stash_type=1)
    for layer in range(LAYERS):
        q, k, v = graph.linear(normal, HIDDEN, sizes[0]), *(graph.linear(normal, HIDDEN, sizes[1]) for _ in "kv")
        if options.rope == "outside":
            kinds: dict[str, Any] = {"interleaved": int(options.is_interleaved)}
            if options.rotary_dim != HEAD_DIM:
                kinds["rotary_embedding_dim"] = options.rotary_dim
            q, k = (
                graph.op(
                    "RotaryEmbedding", name, "position_ids", cosines, sines, domain=microsoft,
                    **kinds, **_only(options.rotary_dim != HEAD_DIM, num_heads=heads),
                )
                for name, heads in ((q, HEADS), (k, KV_HEADS))
            )  # fmt: skip
        if options.is_packed:
            q, k, v = graph.op("Concat", q, k, v, axis=-1), "", ""
        extra = [name if isinstance(name, str) else graph.constant(name) for name in options.extra]
        tables = [cosines, sines] if options.rope == "inside" else ["", ""] if extra else []
        outputs = [f"attention_{layer}", f"present.{layer}.key", f"present.{layer}.value"]
        attributes = {
            "num_heads": HEADS, "kv_num_heads": KV_HEADS, "do_rotary": int(options.rope == "inside"),
            "rotary_interleaved": int(options.is_interleaved), **(options.attributes or {}),
        }  # fmt: skip
        mixed = graph.op(
            "GroupQueryAttention", q, k, v, f"past_key_values.{layer}.key", f"past_key_values.{layer}.value",
            seqlens, total, *tables, *extra, domain=microsoft, outputs=outputs, **attributes,
        )  # fmt: skip
        mixed = graph.linear(mixed, sizes[0], HIDDEN)
        sums = [f"normal_{layer}_a", "", "", f"sum_{layer}_a"]
        graph.op("SkipSimplifiedLayerNormalization", x, mixed, gamma(), domain=microsoft, outputs=sums, epsilon=1e-5)
        normal, x = sums[0], sums[3]
        gate = graph.linear(normal, HIDDEN, FFN)
        gate = graph.op("Mul", gate, graph.op("Sigmoid", gate))
        down = graph.linear(graph.op("Mul", gate, graph.linear(normal, HIDDEN, FFN)), FFN, HIDDEN)
        sums = [f"normal_{layer}_b", "", "", f"sum_{layer}_b"]
        graph.op("SkipSimplifiedLayerNormalization", x, down, gamma(), domain=microsoft, outputs=sums, epsilon=1e-5)
        normal, x = sums[0], sums[3]
    head = graph.linear(normal, HIDDEN, VOCAB)
    graph.op("Identity", head, outputs=["logits"])
    has_positions = options.rope == "outside" or any(
        name == "position_ids" for name in options.extra if isinstance(name, str)
    )
    return save(graph, path, ["attention_mask", *["position_ids"][: int(has_positions)]])


def merge_branches(path: Path, merged: Path, *, condition: str = "use_cache_branch") -> Path:
    """Write a graph as the cached way of an Optimum file with two ways; the other one gives zeros."""
    model = onnx.load(path)
    graph = model.graph
    names = [entry.name for entry in graph.output]
    inner = {name: f"{name}_of_branch" for name in names}
    for node in graph.node:
        for sequence in (node.input, node.output):
            for place, name in enumerate(sequence):
                sequence[place] = inner.get(name, name)

    def described(name: str) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, None)

    cached = helper.make_graph(graph.node, "cached", [], [described(inner[name]) for name in names])
    zero = helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0])
    zeros = [helper.make_node("Constant", [], [f"{name}_zero"], value=zero) for name in names]
    empty = helper.make_graph(zeros, "empty", [], [described(f"{name}_zero") for name in names])
    choice = helper.make_node("If", [condition], names, then_branch=cached, else_branch=empty)
    inputs = [*graph.input, helper.make_tensor_value_info(condition, TensorProto.BOOL, [1])]
    content = helper.make_graph([choice], "merged", inputs, graph.output, graph.initializer)
    onnx.save(helper.make_model(content, opset_imports=model.opset_import, ir_version=model.ir_version), merged)
    return merged
