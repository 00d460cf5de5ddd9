"""Small decoder graphs of the operators that opset 23 has for decoders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.decoder_graphs import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB, rope_tables, save
from tests.plain_decoders import Plain, PlainWriter


@dataclass(frozen=True)
class Operator:
    """How a graph with the operators of opset 23 is built.

    Attributes:
        has_inner_cache: `Attention` appends to the cache itself.
        is_flat: its operands are (1, rows, width); only with an inner cache.
        is_bool: the mask says which entries are seen; otherwise it is added.
        attributes: of `Attention`, further ones.
    """

    has_inner_cache: bool = False
    is_flat: bool = False
    is_bool: bool = False
    attributes: Mapping[str, Any] | None = None


def write_operator(path: Path, options: Operator = Operator()) -> Path:
    """Write a decoder of RMSNormalization, RotaryEmbedding and Attention."""
    graph = PlainWriter(Plain())
    mask = graph.seen()
    if not options.is_bool:
        mask = graph.op("Where", mask, graph.constant(0), graph.constant(np.finfo(np.float32).min))
    cosines, sines = (graph.constant(table) for table in rope_tables())
    x = "inputs_embeds"
    none: dict[str, Any] = {}

    def norm(x: str) -> str:
        gamma = graph.constant(graph.random.uniform(0.5, 1.5, HIDDEN))
        return graph.op("RMSNormalization", x, gamma, axis=-1, epsilon=1e-5)

    for layer in range(LAYERS):
        normal, present = norm(x), [f"present.{layer}.{kind}" for kind in ("key", "value")]
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        counts = {"q_num_heads": HEADS, "kv_num_heads": KV_HEADS} if options.is_flat else {}
        if options.is_flat:
            q, k, v = (graph.linear(normal, HIDDEN, heads * HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
        else:
            q, k, v = (graph.heads(normal, heads) for heads in (HEADS, KV_HEADS, KV_HEADS))
        q, k = (
            graph.op(
                "RotaryEmbedding",
                name,
                cosines,
                sines,
                "position_ids",
                **({"num_heads": heads} if options.is_flat else none),
            )
            for name, heads in ((q, HEADS), (k, KV_HEADS))
        )
        attributes = {**counts, **(options.attributes or {})}
        if options.has_inner_cache:
            outputs = [f"mixed_{layer}", *present]
            mixed = graph.op("Attention", q, k, v, mask, *past, outputs=outputs, **attributes)
        else:
            for old, new, name in zip(past, (k, v), present, strict=True):
                graph.op("Concat", old, new, axis=2, outputs=[name])
            mixed = graph.op("Attention", q, *present, mask, **attributes)
        if not options.is_flat:
            mixed = graph.reshape(graph.op("Transpose", mixed, perm=[0, 2, 1, 3]), 0, 0, -1)
        x = graph.op("Add", x, graph.linear(mixed, HEADS * HEAD_DIM, HIDDEN))
        gate = graph.linear(norm(x), HIDDEN, FFN)
        x = graph.op("Add", x, graph.linear(graph.op("Mul", gate, graph.op("Sigmoid", gate)), FFN, HIDDEN))
    graph.op("Identity", graph.linear(norm(x), HIDDEN, VOCAB), outputs=["logits"])
    return save(graph, path, ["attention_mask", "position_ids"], opset=23)
