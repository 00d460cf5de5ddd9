"""Tiny random-weight models in the Hugging Face export layout, made with `onnx.helper`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from edge_vl.model_spec import ModelSpec

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, CONTEXT = 64, 4, 2, 16, 2, 320, 256
TILE, PATCH, IMAGE_TOKENS, VISION_HIDDEN = 32, 8, 16, 48

Shape = Sequence[int | str]


class GraphBuilder:
    """Collects nodes and weights, and names them."""

    def __init__(self, seed: int) -> None:
        """Begin empty."""
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def op(self, kind: str, *inputs: str, outputs: Sequence[str] = (), domain: str = "", **attributes: Any) -> str:
        """Add a node and return its first output."""
        names = list(outputs) or [f"{kind}_{len(self.nodes)}"]
        self.nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names[0]

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """Add a weight and return its name."""
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype=dtype), name))
        return name

    def linear(self, x: str, rows: int, columns: int) -> str:
        """Multiply by a random matrix."""
        matrix = self.random.standard_normal((rows, columns)) / np.sqrt(rows)
        return self.op("MatMul", x, self.constant(matrix))

    def norm(self, x: str) -> str:
        """Normalise by the root mean square."""
        mean = self.op("ReduceMean", self.op("Mul", x, x), self.constant([-1], np.int64), keepdims=1)
        return self.op("Div", x, self.op("Sqrt", self.op("Add", mean, self.constant(1e-5))))

    def save(self, path: Path, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        """Write the graph."""
        graph = helper.make_graph(self.nodes, path.stem, inputs, outputs, self.weights)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


def value(name: str, kind: int, shape: Shape) -> Any:
    """Describe an input or output."""
    return helper.make_tensor_value_info(name, kind, list(shape))


@dataclass(frozen=True)
class TinyOptions:
    """Which kind of export to imitate."""

    attention: str = "plain"
    num_logits_to_keep: bool = False
    position_ids: bool = True
    extra_input: str = ""
    pixel_rank: int = 5
    pixel_mask: str = "bool"
    flat_output: bool = False
    symbolic_tile: bool = False


EXPORTS = {
    "plain": TinyOptions(),
    "plain-last-row": TinyOptions(num_logits_to_keep=True),
    "plain-no-positions": TinyOptions(position_ids=False),
    "in-place": TinyOptions(attention="gqa"),
    "in-place-last-row": TinyOptions(attention="gqa", num_logits_to_keep=True, position_ids=False),
}


def write_tiny_model(folder: Path, options: TinyOptions | None = None) -> ModelSpec:
    """Write all three graphs under `folder/onnx` and return a spec for them."""
    options = options or TinyOptions()
    (folder / "onnx").mkdir(parents=True, exist_ok=True)
    _write_vision(folder / "onnx" / "vision_encoder.onnx", options)
    _write_embed(folder / "onnx" / "embed_tokens.onnx")
    _write_decoder(folder / "onnx" / "decoder_model_merged.onnx", options)
    _write_tokenizer(folder / "tokenizer.json")
    return tiny_spec(folder)


def tiny_spec(folder: Path) -> ModelSpec:
    """Describe a folder of tiny graphs."""
    config = {
        "model_type": "idefics3",
        "eos_token_id": 256,
        "scale_factor": 1,
        "vision_config": {"image_size": TILE, "patch_size": PATCH},
        "text_config": {
            "max_position_embeddings": CONTEXT,
            "vocab_size": VOCAB,
            "hidden_size": HIDDEN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
        },
    }
    preprocessor = {"do_rescale": True, "rescale_factor": 1 / 255, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    return ModelSpec("tiny", folder, "idefics3", config, preprocessor, {}, "", folder / "tokenizer.json", {})


def _write_tokenizer(path: Path) -> None:
    """Write a byte-level tokenizer without merges: one token per byte, and an end token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end_of_utterance>"])
    tokenizer.save(str(path))


def _write_vision(path: Path, options: TinyOptions) -> None:
    graph = GraphBuilder(1)
    side: Shape = ("height", "width") if options.symbolic_tile else (TILE, TILE)
    lead: Shape = ("batch", "num_images") if options.pixel_rank == 5 else ("batch",)
    inputs = [value("pixel_values", TensorProto.FLOAT, [*lead, 3, *side])]
    x = graph.op("Reshape", "pixel_values", graph.constant([-1, 3, TILE, TILE], np.int64))
    kernel = graph.random.standard_normal((VISION_HIDDEN, 3, PATCH, PATCH)) / 14
    x = graph.op("Conv", x, graph.constant(kernel), kernel_shape=[PATCH] * 2, strides=[PATCH] * 2)
    x = graph.op("Reshape", x, graph.constant([-1, VISION_HIDDEN, IMAGE_TOKENS], np.int64))
    x = graph.op("Transpose", x, perm=[0, 2, 1])
    if options.pixel_mask:
        kind = TensorProto.BOOL if options.pixel_mask == "bool" else TensorProto.INT64
        inputs.append(value("pixel_attention_mask", kind, [*lead, *side]))
        seen = graph.op("ReduceMax", graph.op("Cast", "pixel_attention_mask", to=TensorProto.FLOAT), keepdims=0)
        x = graph.op("Mul", x, seen)
    x = graph.op("Add", x, graph.op("Relu", graph.linear(graph.norm(x), VISION_HIDDEN, VISION_HIDDEN)))
    x = graph.linear(graph.norm(x), VISION_HIDDEN, HIDDEN)
    shape: Shape = ("num_units", IMAGE_TOKENS, HIDDEN)
    if options.flat_output:
        x, shape = graph.op("Reshape", x, graph.constant([-1, HIDDEN], np.int64)), ("num_tokens", HIDDEN)
    graph.op("Identity", x, outputs=["image_features"])
    graph.save(path, inputs, [value("image_features", TensorProto.FLOAT, shape)])


def _write_embed(path: Path) -> None:
    graph = GraphBuilder(2)
    graph.op(
        "Gather", graph.constant(graph.random.standard_normal((VOCAB, HIDDEN))), "input_ids", outputs=["inputs_embeds"]
    )
    graph.save(
        path,
        [value("input_ids", TensorProto.INT64, ["batch", "sequence"])],
        [value("inputs_embeds", TensorProto.FLOAT, ["batch", "sequence", HIDDEN])],
    )


def _rope_tables() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    angles = np.arange(CONTEXT)[:, None] / 100.0 ** (np.arange(HEAD_DIM // 2) * 2 / HEAD_DIM)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _write_decoder(path: Path, options: TinyOptions) -> None:
    graph = GraphBuilder(3)
    inputs = [
        value("inputs_embeds", TensorProto.FLOAT, ["batch", "sequence", HIDDEN]),
        value("attention_mask", TensorProto.INT64, ["batch", "total"]),
    ]
    if options.position_ids:
        inputs.append(value("position_ids", TensorProto.INT64, ["batch", "sequence"]))
    outputs = [value("logits", TensorProto.FLOAT, ["batch", "rows", VOCAB])]
    total = graph.op("Gather", graph.op("Shape", "attention_mask"), graph.constant(1, np.int64), axis=0)
    length = graph.op("Gather", graph.op("Shape", "inputs_embeds"), graph.constant(1, np.int64), axis=0)
    past = graph.op("Sub", total, length)
    zero, one = graph.constant(0, np.int64), graph.constant(1, np.int64)
    rows = graph.op("Range", past, total, one)
    attend = _gqa(graph, total) if options.attention == "gqa" else _plain(graph, options, total, rows, (zero, one))
    x = "inputs_embeds"
    for layer in range(LAYERS):
        for kind in ("key", "value"):
            shape: Shape = ("batch", KV_HEADS, "past", HEAD_DIM)
            inputs.append(value(f"past_key_values.{layer}.{kind}", TensorProto.FLOAT, shape))
            outputs.append(value(f"present.{layer}.{kind}", TensorProto.FLOAT, ("batch", KV_HEADS, "total", HEAD_DIM)))
        normed = graph.norm(x)
        q = graph.linear(normed, HIDDEN, HEADS * HEAD_DIM)
        k = graph.linear(normed, HIDDEN, KV_HEADS * HEAD_DIM)
        v = graph.linear(normed, HIDDEN, KV_HEADS * HEAD_DIM)
        x = graph.op("Add", x, graph.linear(attend(layer, q, k, v), HEADS * HEAD_DIM, HIDDEN))
        x = graph.op("Add", x, graph.linear(graph.op("Relu", graph.linear(graph.norm(x), HIDDEN, 128)), 128, HIDDEN))
    x = graph.norm(x)
    if options.num_logits_to_keep:
        inputs.append(value("num_logits_to_keep", TensorProto.INT64, []))
        start = graph.op("Reshape", graph.op("Neg", "num_logits_to_keep"), graph.constant([1], np.int64))
        x = graph.op("Slice", x, start, graph.constant([2**31], np.int64), graph.constant([1], np.int64))
    if options.extra_input:
        inputs.append(value(options.extra_input, TensorProto.FLOAT, [1]))
        x = graph.op("Mul", x, options.extra_input)
    head = graph.random.standard_normal((HIDDEN, VOCAB)) / np.sqrt(HIDDEN)
    graph.op("MatMul", x, graph.constant(head), outputs=["logits"])
    graph.save(path, inputs, outputs)


def _gqa(graph: GraphBuilder, total: str) -> Any:
    """Attention as one GroupQueryAttention node, which may work in place."""
    last = graph.op(
        "Sub",
        graph.op("ReduceSum", "attention_mask", graph.constant([1], np.int64), keepdims=0),
        graph.constant([1], np.int64),
    )
    seqlens = graph.op("Cast", last, to=TensorProto.INT32)
    total32 = graph.op("Cast", total, to=TensorProto.INT32)
    cos, sin = (graph.constant(table) for table in _rope_tables())

    def attend(layer: int, q: str, k: str, v: str) -> str:
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        outputs = [f"context_{layer}", f"present.{layer}.key", f"present.{layer}.value"]
        return graph.op(
            "GroupQueryAttention",
            q,
            k,
            v,
            *past,
            seqlens,
            total32,
            cos,
            sin,
            outputs=outputs,
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=KV_HEADS,
            do_rotary=1,
        )

    return attend


def _plain(graph: GraphBuilder, options: TinyOptions, total: str, rows: str, ends: tuple[str, str]) -> Any:
    """Attention from plain operators: past and present are concatenated."""
    columns = graph.op("Range", ends[0], total, ends[1])
    row = graph.op("Unsqueeze", rows, graph.constant([1], np.int64))
    hidden = graph.op("Greater", graph.op("Unsqueeze", columns, graph.constant([0], np.int64)), row)
    bias = graph.op("Where", hidden, graph.constant(-1e4), graph.constant(0.0))
    positions = graph.op("Squeeze", "position_ids", graph.constant([0], np.int64)) if options.position_ids else rows
    cos, sin = (graph.op("Gather", graph.constant(table), positions, axis=0) for table in _rope_tables())

    def split(x: str, heads: int) -> str:
        shaped = graph.op("Reshape", x, graph.constant([0, 0, heads, HEAD_DIM], np.int64))
        return graph.op("Transpose", shaped, perm=[0, 2, 1, 3])

    def rotate(x: str) -> str:
        name = f"half_{len(graph.nodes)}"
        graph.op("Split", x, outputs=[f"{name}_a", f"{name}_b"], axis=3, num_outputs=2)
        a, b = f"{name}_a", f"{name}_b"
        first = graph.op("Sub", graph.op("Mul", a, cos), graph.op("Mul", b, sin))
        second = graph.op("Add", graph.op("Mul", b, cos), graph.op("Mul", a, sin))
        return graph.op("Concat", first, second, axis=3)

    def widen(x: str) -> str:
        repeats = graph.constant([1, 1, HEADS // KV_HEADS, 1, 1], np.int64)
        tall = graph.op("Tile", graph.op("Unsqueeze", x, graph.constant([2], np.int64)), repeats)
        return graph.op("Reshape", tall, graph.constant([1, HEADS, -1, HEAD_DIM], np.int64))

    def attend(layer: int, q: str, k: str, v: str) -> str:
        query, key, values = rotate(split(q, HEADS)), rotate(split(k, KV_HEADS)), split(v, KV_HEADS)
        keys = graph.op("Concat", f"past_key_values.{layer}.key", key, axis=2, outputs=[f"present.{layer}.key"])
        values = graph.op(
            "Concat", f"past_key_values.{layer}.value", values, axis=2, outputs=[f"present.{layer}.value"]
        )
        scores = graph.op("MatMul", query, graph.op("Transpose", widen(keys), perm=[0, 1, 3, 2]))
        scores = graph.op("Add", graph.op("Mul", scores, graph.constant(HEAD_DIM**-0.5)), bias)
        context = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), widen(values))
        merged = graph.op("Transpose", context, perm=[0, 2, 1, 3])
        return graph.op("Reshape", merged, graph.constant([0, 0, HEADS * HEAD_DIM], np.int64))

    return attend
