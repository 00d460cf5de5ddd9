"""A decoder graph as ONNX Runtime runs it fastest, from the weights of one that is exported in plain operators.

Source:
    The operators and their order follow what the model builder of microsoft/onnxruntime-genai writes for Llama:
    `GroupQueryAttention` with the rotary embedding inside, on packed queries, keys and values, and
    `SkipSimplifiedLayerNormalization`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from edge_vl.made_models.onnx_graph import TRANSPOSED, Graph
from edge_vl.made_models.weights import Shape, Weights

__all__ = ["PackedWeights", "gqa_decoder"]

_PACKED = ".self_attn.qkv_proj.weight"
_PARTS = ("q", "k", "v")


class PackedWeights:
    """Weights with one matrix more per layer: queries, keys and values below each other, `self_attn.qkv_proj`."""

    def __init__(self, weights: Weights) -> None:
        """Pack what is asked for; nothing is made yet."""
        self._weights = weights

    def names(self) -> Sequence[str]:
        """Return the names of all parameters, packed ones left out."""
        return self._weights.names()

    def shape(self, name: str) -> Shape:
        """Return the shape of a parameter."""
        if not name.endswith(_PACKED):
            return self._weights.shape(name)
        shapes = [self._weights.shape(part) for part in _parts(name)]
        return (sum(shape[0] for shape in shapes), shapes[0][1])

    def values(self, name: str) -> NDArray[np.float32]:
        """Return a parameter."""
        if not name.endswith(_PACKED):
            return self._weights.values(name)
        return np.concatenate([self._weights.values(part) for part in _parts(name)])


def gqa_decoder(weights: Weights, config: dict[str, Any]) -> Graph:
    """Build embeds to logits around `GroupQueryAttention`, with the KV cache handed in and out.

    Args:
        weights: parameters under transformers' names.
        config: the contents of `config.json` of an Idefics3 model.

    Returns:
        The graph; it computes what `idefics3_onnx.decoder` of the same weights does, logits for every row.
    """
    text = config["text_config"]
    hidden, epsilon = text["hidden_size"], text["rms_norm_eps"]
    graph = Graph("decoder_model_merged", PackedWeights(weights))
    rows = ("batch_size", "sequence_length")
    x = graph.input("inputs_embeds", TensorProto.FLOAT, (*rows, hidden))
    mask = graph.input("attention_mask", TensorProto.INT64, ("batch_size", "total_sequence_length"))
    graph.output("logits", TensorProto.FLOAT, (*rows, text["vocab_size"]))
    attention = _Attention(graph, mask, text)

    x_normal = graph.op(
        "SimplifiedLayerNormalization", x, graph.parameter("model.text_model.layers.0.input_layernorm.weight"),
        axis=-1, epsilon=epsilon,
    )  # fmt: skip

    def add_and_norm(x: str, more: str, name: str) -> tuple[str, str]:
        """Return the sum and its norm."""
        summed, normal = f"{graph.scope}/{name}/sum", f"{graph.scope}/{name}/norm"
        inputs = (x, more, graph.parameter(name))
        graph.contrib("SkipSimplifiedLayerNormalization", inputs, (normal, "", "", summed), epsilon=epsilon)
        return summed, normal

    for number in range(text["num_hidden_layers"]):
        prefix = f"model.text_model.layers.{number}"
        graph.scope = f"/model/layers.{number}"
        x, normal = add_and_norm(x, attention.layer(x_normal, number), f"{prefix}.post_attention_layernorm.weight")
        gate = graph.linear(normal, f"{prefix}.mlp.gate_proj")
        gate = graph.op("Mul", gate, graph.op("Sigmoid", gate))
        gated = graph.op("Mul", gate, graph.linear(normal, f"{prefix}.mlp.up_proj"))
        is_last = number == text["num_hidden_layers"] - 1
        norm = "model.text_model.norm" if is_last else f"model.text_model.layers.{number + 1}.input_layernorm"
        x, x_normal = add_and_norm(x, graph.linear(gated, f"{prefix}.mlp.down_proj"), f"{norm}.weight")
    graph.scope = "/lm_head"
    head = "model.text_model.embed_tokens.weight" if text["tie_word_embeddings"] else "lm_head.weight"
    graph.op("MatMul", x_normal, graph.transposed(head, "lm_head.MatMul.weight"), result="logits")
    return graph


class _Attention:
    """The attention of all layers: what they share is made once."""

    def __init__(self, graph: Graph, mask: str, text: dict[str, Any]) -> None:
        self._graph = graph
        self._text = text
        graph.scope = "/model/attn_mask"
        num_seen = graph.op("ReduceSum", mask, graph.integers(1), keepdims=0)
        self._last = graph.op("Cast", graph.op("Sub", num_seen, graph.integers(1)), to=TensorProto.INT32)
        total = graph.op("Gather", graph.op("Shape", mask), graph.integer(1))
        self._total = graph.op("Cast", total, to=TensorProto.INT32)
        half = text["head_dim"] // 2
        frequencies = text["rope_theta"] ** -(np.arange(half) / half)
        angles = np.arange(text["max_position_embeddings"])[:, None] * frequencies.astype(np.float32)
        self._tables = (
            graph.array("cos_cache", np.cos(angles).astype(np.float32)),
            graph.array("sin_cache", np.sin(angles).astype(np.float32)),
        )

    def layer(self, x: str, number: int) -> str:
        graph, text = self._graph, self._text
        prefix = f"model.text_model.layers.{number}"
        heads, kv_heads, head_dim = text["num_attention_heads"], text["num_key_value_heads"], text["head_dim"]
        size = ("batch_size", kv_heads, "past_sequence_length", head_dim)
        past = [graph.input(f"past_key_values.{number}.{kind}", TensorProto.FLOAT, size) for kind in ("key", "value")]
        size = ("batch_size", kv_heads, "total_sequence_length", head_dim)
        present = [graph.output(f"present.{number}.{kind}", TensorProto.FLOAT, size) for kind in ("key", "value")]
        weight = graph.transposed(prefix + _PACKED, f"{prefix}.self_attn.qkv_proj{TRANSPOSED}")
        mixed = f"{graph.scope}/attn/mixed"
        graph.contrib(
            "GroupQueryAttention",
            (graph.op("MatMul", x, weight), "", "", *past, self._last, self._total, *self._tables),
            (mixed, *present),
            num_heads=heads, kv_num_heads=kv_heads, scale=head_dim**-0.5, do_rotary=1, rotary_interleaved=0,
        )  # fmt: skip
        return graph.linear(mixed, f"{prefix}.self_attn.o_proj")


def _parts(name: str) -> list[str]:
    return [name.replace(".qkv_proj.", f".{part}_proj.") for part in _PARTS]
