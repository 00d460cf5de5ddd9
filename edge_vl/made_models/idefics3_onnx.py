"""The three ONNX graphs of an Idefics3 model in the Hugging Face export layout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto

from edge_vl.made_models.onnx_graph import Graph
from edge_vl.made_models.weights import Weights

__all__ = ["FILES", "decoder", "embed_tokens", "export_onnx", "vision_encoder"]

FILES = ("vision_encoder.onnx", "embed_tokens.onnx", "decoder_model_merged.onnx")
LOWEST = float(np.finfo(np.float32).min)


def export_onnx(
    weights: Weights, config: dict[str, Any], folder: Path, *, on_file: Callable[[str], None] = lambda name: None
) -> None:
    """Write the graphs of a model.

    Args:
        weights: parameters under transformers' names.
        config: the contents of `config.json`.
        folder: where the files of `FILES` go.
        on_file: gets the name of each file before it is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, build in zip(FILES, (vision_encoder, embed_tokens, decoder), strict=True):
        on_file(name)
        build(weights, config).save(folder / name)


def vision_encoder(weights: Weights, config: dict[str, Any]) -> Graph:
    """Build pixels to image embeds; tiles that are all zero are padding and give no embeds."""
    vision, factor = config["vision_config"], config["scale_factor"]
    tile, patch, heads = vision["image_size"], vision["patch_size"], vision["num_attention_heads"]
    width, epsilon = vision["hidden_size"], vision["layer_norm_eps"]
    side = tile // patch
    graph = Graph("vision_encoder", weights)
    batch = ("batch_size", "num_images")
    pixels = graph.input("pixel_values", TensorProto.FLOAT, (*batch, 3, tile, tile))
    pixel_mask = graph.input("pixel_attention_mask", TensorProto.BOOL, (*batch, tile, tile))

    graph.scope = "/vision_model/embeddings"
    pixels = graph.reshape(pixels, -1, 3, tile, tile)
    brightest = graph.op("ReduceMax", graph.op("Abs", pixels), axes=[1, 2, 3], keepdims=0)
    is_real = graph.op("Greater", brightest, graph.number(0))
    pixels = graph.op("Compress", pixels, is_real, axis=0)
    pixel_mask = graph.op("Compress", graph.reshape(pixel_mask, -1, 1, tile, tile), is_real, axis=0)
    cells = graph.op(
        "MaxPool", graph.op("Cast", pixel_mask, to=TensorProto.FLOAT), kernel_shape=[patch] * 2, strides=[patch] * 2
    )
    prefix = "model.vision_model.embeddings"
    x = graph.op(
        "Conv", pixels, *(graph.parameter(f"{prefix}.patch_embedding.{kind}") for kind in ("weight", "bias")),
        kernel_shape=[patch] * 2, strides=[patch] * 2,
    )  # fmt: skip
    x = graph.op("Transpose", graph.reshape(x, 0, width, -1), perm=[0, 2, 1])
    positions = _patch_positions(graph, cells, side)
    x = graph.op("Add", x, graph.op("Gather", graph.parameter(f"{prefix}.position_embedding.weight"), positions))
    seen = graph.op("Greater", graph.reshape(cells, -1, 1, 1, side**2), graph.number(0))
    bias = graph.op("Where", seen, graph.number(0), graph.number(LOWEST))

    def norm(x: str, name: str) -> str:
        scale_and_shift = (graph.parameter(f"{name}.{kind}") for kind in ("weight", "bias"))
        return graph.op("LayerNormalization", x, *scale_and_shift, axis=-1, epsilon=epsilon)

    for number in range(vision["num_hidden_layers"]):
        prefix = f"model.vision_model.encoder.layers.{number}"
        graph.scope = f"/vision_model/encoder/layers.{number}"
        normal = norm(x, f"{prefix}.layer_norm1")
        q, k, v = (
            graph.op(
                "Transpose",
                graph.reshape(graph.linear(normal, f"{prefix}.self_attn.{kind}_proj", bias=True), 0, 0, heads, -1),
                perm=[0, 2, 3, 1] if kind == "k" else [0, 2, 1, 3],
            )
            for kind in "qkv"
        )
        scores = graph.op("Mul", graph.op("MatMul", q, k), graph.number((width // heads) ** -0.5))
        shares = graph.op("Softmax", graph.op("Add", scores, bias), axis=-1)
        mixed = graph.op("Transpose", graph.op("MatMul", shares, v), perm=[0, 2, 1, 3])
        mixed = graph.linear(graph.reshape(mixed, 0, 0, -1), f"{prefix}.self_attn.out_proj", bias=True)
        x = graph.op("Add", x, mixed)
        hidden = graph.linear(norm(x, f"{prefix}.layer_norm2"), f"{prefix}.mlp.fc1", bias=True)
        x = graph.op("Add", x, graph.linear(_gelu(graph, hidden), f"{prefix}.mlp.fc2", bias=True))

    graph.scope = "/connector"
    x = norm(x, "model.vision_model.post_layernorm")
    small = side // factor
    x = graph.op("Transpose", graph.reshape(x, -1, small, factor, small, factor * width), perm=[0, 1, 3, 2, 4])
    x = graph.linear(graph.reshape(x, -1, small**2, factor**2 * width), "model.connector.modality_projection.proj")
    graph.output("image_features", TensorProto.FLOAT, ("num_tiles", small**2, config["text_config"]["hidden_size"]))
    graph.op("Identity", x, result="image_features")
    return graph


def _patch_positions(graph: Graph, cells: str, side: int) -> str:
    """Return the position of every patch, as if the seen part of a tile filled it: int64 (num_tiles, side * side)."""
    first = graph.integers(0)
    row_of = graph.array("patch_row", np.repeat(np.arange(side), side).astype(np.float32)[None])
    column_of = graph.array("patch_column", np.tile(np.arange(side), side).astype(np.float32)[None])
    places = []
    for axis, index in ((2, row_of), (3, column_of)):
        line = graph.slice(cells, first, graph.integers(1), 5 - axis)
        num_seen = graph.reshape(graph.op("ReduceSum", line, graph.integers(1, 2, 3), keepdims=0), -1, 1)
        share = graph.op("Min", graph.op("Div", index, num_seen), graph.number(1 - 1e-6))
        places.append(graph.op("Floor", graph.op("Mul", share, graph.number(side))))
    position = graph.op("Add", graph.op("Mul", places[0], graph.number(side)), places[1])
    position = graph.op("Mul", position, graph.reshape(cells, -1, side**2))
    return graph.op("Cast", position, to=TensorProto.INT64)


def _gelu(graph: Graph, x: str) -> str:
    """Return the tanh form of GELU."""
    cube = graph.op("Mul", graph.op("Pow", x, graph.number(3)), graph.number(0.044715))
    inner = graph.op("Mul", graph.op("Add", x, cube), graph.number((2 / np.pi) ** 0.5))
    factor = graph.op("Add", graph.op("Tanh", inner), graph.number(1))
    return graph.op("Mul", graph.op("Mul", x, factor), graph.number(0.5))


def embed_tokens(weights: Weights, config: dict[str, Any]) -> Graph:
    """Build token ids to embeds."""
    graph = Graph("embed_tokens", weights)
    tokens = ("batch_size", "sequence_length")
    ids = graph.input("input_ids", TensorProto.INT64, tokens)
    graph.output("inputs_embeds", TensorProto.FLOAT, (*tokens, config["text_config"]["hidden_size"]))
    graph.op("Gather", graph.parameter("model.text_model.embed_tokens.weight"), ids, result="inputs_embeds")
    return graph


@dataclass(frozen=True, slots=True)
class _Rotation:
    """Names of the cosine, the sine, and the additive mask of one run."""

    cosine: str
    sine: str
    mask: str


def decoder(weights: Weights, config: dict[str, Any]) -> Graph:
    """Build embeds to logits, with the KV cache handed in and out."""
    text = config["text_config"]
    layers, hidden, epsilon = text["num_hidden_layers"], text["hidden_size"], text["rms_norm_eps"]
    graph = Graph("decoder_model_merged", weights)
    batch, length = "batch_size", "sequence_length"
    cache = (batch, text["num_key_value_heads"], "past_sequence_length", text["head_dim"])
    x = graph.input("inputs_embeds", TensorProto.FLOAT, (batch, length, hidden))
    attention_mask = graph.input("attention_mask", TensorProto.INT64, (batch, "total_sequence_length"))
    position_ids = graph.input("position_ids", TensorProto.INT64, (batch, length))
    past = [
        tuple(graph.input(f"past_key_values.{number}.{kind}", TensorProto.FLOAT, cache) for kind in ("key", "value"))
        for number in range(layers)
    ]
    keep = graph.input("num_logits_to_keep", TensorProto.INT64, ())
    graph.output("logits", TensorProto.FLOAT, (batch, "num_logits", text["vocab_size"]))

    def norm(x: str, name: str) -> str:
        square = graph.op("ReduceMean", graph.op("Pow", x, graph.number(2)), axes=[-1], keepdims=1)
        size = graph.op("Sqrt", graph.op("Add", square, graph.number(epsilon)))
        return graph.op("Mul", graph.parameter(f"{name}.weight"), graph.op("Div", x, size))

    graph.scope = "/model"
    rotation = _rotation(graph, x, attention_mask, position_ids, text)
    for number in range(layers):
        prefix = f"model.text_model.layers.{number}"
        graph.scope = f"/model/layers.{number}"
        normal = norm(x, f"{prefix}.input_layernorm")
        x = graph.op("Add", x, _attention(graph, normal, number, past[number], rotation, text))
        normal = norm(x, f"{prefix}.post_attention_layernorm")
        gate = graph.linear(normal, f"{prefix}.mlp.gate_proj")
        gate = graph.op("Mul", gate, graph.op("Sigmoid", gate))
        gated = graph.op("Mul", gate, graph.linear(normal, f"{prefix}.mlp.up_proj"))
        x = graph.op("Add", x, graph.linear(gated, f"{prefix}.mlp.down_proj"))
    graph.scope = "/lm_head"
    # The last `keep` rows; all of them for 0, since a slice from -0 is whole.
    start = graph.reshape(graph.op("Neg", keep), 1)
    x = graph.slice(x, start, graph.integers(np.iinfo(np.int64).max), 1)
    x = norm(x, "model.text_model.norm")
    head = "model.text_model.embed_tokens.weight" if text["tie_word_embeddings"] else "lm_head.weight"
    graph.op("MatMul", x, graph.transposed(head, "lm_head.MatMul.weight"), result="logits")
    return graph


def _rotation(graph: Graph, x: str, attention_mask: str, position_ids: str, text: dict[str, Any]) -> _Rotation:
    half = text["head_dim"] // 2
    frequencies = (text["rope_theta"] ** -(np.arange(half) / half)).astype(np.float32)
    place = graph.op("Unsqueeze", graph.op("Cast", position_ids, to=TensorProto.FLOAT), graph.integers(2))
    angles = graph.op("Mul", place, graph.array("rotary_emb.inv_freq", frequencies))
    angles = graph.op("Unsqueeze", graph.op("Concat", angles, angles, axis=-1), graph.integers(1))
    num_new = graph.op("Gather", graph.op("Shape", x), graph.integer(1))
    total = graph.op("Gather", graph.op("Shape", attention_mask), graph.integer(1))
    one = graph.integer(1)
    query = graph.op("Range", graph.op("Sub", total, num_new), total, one)
    key = graph.op("Range", graph.integer(0), total, one)
    past_or_present = graph.op("LessOrEqual", key, graph.op("Unsqueeze", query, graph.integers(1)))
    real = graph.op("Cast", attention_mask, to=TensorProto.BOOL)
    visible = graph.op("And", past_or_present, graph.op("Unsqueeze", real, graph.integers(1, 2)))
    mask = graph.op("Where", visible, graph.number(0), graph.number(LOWEST))
    return _Rotation(graph.op("Cos", angles), graph.op("Sin", angles), mask)


def _attention(
    graph: Graph, x: str, number: int, past: tuple[str, ...], rotation: _Rotation, text: dict[str, Any]
) -> str:
    heads, kv_heads, head_dim = text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]
    prefix = f"model.text_model.layers.{number}.self_attn"
    graph.scope += "/self_attn"

    def split(kind: str, num_heads: int) -> str:
        rows = graph.reshape(graph.linear(x, f"{prefix}.{kind}_proj"), 0, 0, num_heads, head_dim)
        return graph.op("Transpose", rows, perm=[0, 2, 1, 3])

    def rotate(rows: str) -> str:
        start, middle, end = graph.integers(0), graph.integers(head_dim // 2), graph.integers(head_dim)
        first, second = graph.slice(rows, start, middle, 3), graph.slice(rows, middle, end, 3)
        turned = graph.op("Concat", graph.op("Neg", second), first, axis=-1)
        return graph.op("Add", graph.op("Mul", rows, rotation.cosine), graph.op("Mul", turned, rotation.sine))

    def extend(kind: str, old: str, new: str) -> str:
        """Append to the cache, hand it out, and repeat it for the query heads that share it."""
        size = ("batch_size", kv_heads, "total_sequence_length", head_dim)
        present = graph.output(f"present.{number}.{kind}", TensorProto.FLOAT, size)
        graph.op("Concat", old, new, axis=2, result=present)
        shape, zero, two = graph.op("Shape", present), graph.integers(0), graph.integers(2)
        batch, rest = graph.slice(shape, zero, graph.integers(1), 0), graph.slice(shape, two, graph.integers(4), 0)
        groups = graph.op("Concat", graph.slice(shape, zero, two, 0), graph.integers(heads // kv_heads), rest, axis=0)
        repeated = graph.op("Expand", graph.op("Unsqueeze", present, two), groups)
        return graph.op("Reshape", repeated, graph.op("Concat", batch, graph.integers(heads), rest, axis=0))

    q, k, v = rotate(split("q", heads)), rotate(split("k", kv_heads)), split("v", kv_heads)
    keys, values = extend("key", past[0], k), extend("value", past[1], v)
    scores = graph.op("MatMul", q, graph.op("Transpose", keys, perm=[0, 1, 3, 2]))
    scores = graph.op("Add", graph.op("Mul", scores, graph.number(head_dim**-0.5)), rotation.mask)
    mixed = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), values)
    mixed = graph.reshape(graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), 0, 0, heads * head_dim)
    return graph.linear(mixed, f"{prefix}.o_proj")
