"""Small decoder graphs whose attention is in single operators, with whatever a decoder may do differently."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import TensorProto

from tests.decoder_graphs import FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB, rope_tables, save
from tests.engines.tiny_models import GraphBuilder, value


@dataclass(frozen=True)
class Plain:
    """How a graph with its attention in single operators is built; every default is what can be cut.

    Attributes:
        mask: `causal`, `window`, `ahead` (later entries too), `none`, or `where` instead of a sum.
        window: entries of the window.
        cap: scores go through tanh.
        bias: a second sum, by distance.
        value_factor: values are multiplied.
        repeat: how heads are repeated: `each` head, or `all` heads in turn, or `tile` by the operator.
        is_shared: layer 1 attends to the cache of layer 0 too.
        is_parallel: layer 1 takes what layer 0 takes.
        has_weights_output: the shares are an output.
        positions: `input`, or counted from `lengths`, from the `mask`, or by `row` from 0.
        is_rope_looked_up: in tables that are shortened to the length of the cache.
        stretch_from: entries from which on positions count half; 0: never.
        mixing: what else mixes rows: `mean`, `sum`, `reverse`, `neighbour`, `softmax`, `product`, `first`, `shuffle`,
            `largest`.
        keeps: rows with logits: `all`, as many as the input `num_logits_to_keep` says (`count`), or the `last` one.
        head_dim: channels of a head.
        has_norms: queries and keys are normalised head by head, as (1, rows * heads, head_dim).
        is_packed: queries, keys and values are one product, split.
        has_gemm: the last product of a layer is a `Gemm` of (rows, width) with a bias.
    """

    mask: str = "causal"
    window: int = 512
    cap: bool = False
    bias: bool = False
    value_factor: float = 1.0
    repeat: str = "each"
    is_shared: bool = False
    is_parallel: bool = False
    has_weights_output: bool = False
    positions: str = "input"
    is_rope_looked_up: bool = False
    stretch_from: int = 0
    mixing: str = ""
    keeps: str = "all"
    head_dim: int = HEAD_DIM
    has_norms: bool = False
    is_packed: bool = False
    has_gemm: bool = False


def write_plain(path: Path, options: Plain = Plain()) -> Path:
    """Write a decoder whose attention is MatMul, Softmax and MatMul."""
    return PlainWriter(options).write(path)


class PlainWriter(GraphBuilder):
    """Collects the nodes of one graph."""

    def __init__(self, options: Plain) -> None:
        super().__init__(7)
        self.options = options
        self.rows = self.size("inputs_embeds", 1)
        self.total = self.size("attention_mask", 1)
        self.past = self.op("Sub", self.total, self.rows)

    def integers(self, *values: int) -> str:
        return self.constant(values, np.int64)

    def size(self, name: str, axis: int) -> str:
        return self.op("Gather", self.op("Shape", name), self.constant(axis, np.int64))

    def reshape(self, x: str, *shape: int) -> str:
        return self.op("Reshape", x, self.integers(*shape))

    def range(self, start: str, end: str) -> str:
        return self.op("Range", start, end, self.constant(1, np.int64))

    def norm(self, x: str) -> str:
        return self.op("Mul", super().norm(x), self.constant(self.random.uniform(0.5, 1.5, HIDDEN)))

    def seen(self) -> str:
        """Return which entries each row sees, bool (1, 1, rows, total)."""
        rows = self.op("Unsqueeze", self.range(self.past, self.total), self.integers(1))
        entries = self.range(self.constant(0, np.int64), self.total)
        if self.options.mask == "ahead":
            rows = self.op("Add", rows, self.constant(1, np.int64))
        seen = self.op("LessOrEqual", entries, rows)
        if self.options.mask == "window":
            near = self.op("Greater", entries, self.op("Sub", rows, self.constant(self.options.window, np.int64)))
            seen = self.op("And", seen, near)
        real = self.op("Unsqueeze", self.op("Cast", "attention_mask", to=TensorProto.BOOL), self.integers(1, 2))
        return self.op("And", self.op("Unsqueeze", seen, self.integers(0, 1)), real)

    def angles(self) -> tuple[str, str]:
        options = self.options
        positions = "position_ids"
        if options.positions == "lengths":
            positions = self.op("Unsqueeze", self.range(self.past, self.total), self.integers(0))
        elif options.positions == "mask":
            counted = self.op("CumSum", "attention_mask", self.constant(1, np.int64))
            counted = self.op("Sub", counted, self.constant(1, np.int64))
            start = self.op("Unsqueeze", self.op("Neg", self.rows), self.integers(0))
            positions = self.op("Slice", counted, start, self.integers(1 << 40), self.integers(1))
        elif options.positions == "row":
            positions = self.op("Unsqueeze", self.range(self.constant(0, np.int64), self.rows), self.integers(0))
        half = options.head_dim // 2
        if options.is_rope_looked_up:
            end = self.op("Unsqueeze", self.total, self.integers(0))
            tables = [np.concatenate([table, table], 1) for table in rope_tables(512)]
            parts = [
                self.op("Slice", self.constant(table), self.integers(0), end, self.integers(0)) for table in tables
            ]
            cosine, sine = (self.op("Gather", part, positions, axis=0) for part in parts)
            return self.op("Unsqueeze", cosine, self.integers(1)), self.op("Unsqueeze", sine, self.integers(1))
        positions = self.op("Unsqueeze", self.op("Cast", positions, to=TensorProto.FLOAT), self.integers(2))
        if options.stretch_from:
            is_long = self.op("Greater", self.total, self.constant(options.stretch_from, np.int64))
            positions = self.op("Mul", positions, self.op("Where", is_long, self.constant(0.5), self.constant(1.0)))
        angles = self.op("Mul", positions, self.constant(10000.0 ** -(np.arange(half) / half)))
        angles = self.op("Unsqueeze", self.op("Concat", angles, angles, axis=-1), self.integers(1))
        return self.op("Cos", angles), self.op("Sin", angles)

    def turn(self, x: str, rope: tuple[str, str]) -> str:
        half, axis = self.options.head_dim // 2, self.integers(3)
        first = self.op("Slice", x, self.integers(0), self.integers(half), axis)
        second = self.op("Slice", x, self.integers(half), self.integers(2 * half), axis)
        turned = self.op("Concat", self.op("Neg", second), first, axis=-1)
        return self.op("Add", self.op("Mul", x, rope[0]), self.op("Mul", turned, rope[1]))

    def heads(self, x: str, count: int) -> str:
        return self.apart(self.linear(x, HIDDEN, count * self.options.head_dim), count)

    def apart(self, x: str, count: int) -> str:
        """Return (1, heads, rows, channels) of (1, rows, width)."""
        return self.op("Transpose", self.reshape(x, 0, 0, count, self.options.head_dim), perm=[0, 2, 1, 3])

    def operands(self, x: str) -> tuple[str, str, str]:
        """Return queries, keys and values, (1, heads, rows, channels)."""
        if not self.options.is_packed and not self.options.has_norms:
            return self.heads(x, HEADS), self.heads(x, KV_HEADS), self.heads(x, KV_HEADS)
        counts = (HEADS, KV_HEADS, KV_HEADS)
        widths = [count * self.options.head_dim for count in counts]
        if self.options.is_packed:
            names = [f"{x}_{kind}" for kind in "qkv"]
            self.op("Split", self.linear(x, HIDDEN, sum(widths)), self.integers(*widths), outputs=names, axis=-1)
        else:
            names = [self.linear(x, HIDDEN, width) for width in widths]
        if self.options.has_norms:
            for place, width in enumerate(widths[:2]):
                folded = self.reshape(names[place], 0, -1, self.options.head_dim)
                names[place] = self.reshape(super().norm(folded), 0, -1, width)
        q, k, v = (self.apart(name, count) for name, count in zip(names, counts, strict=True))
        return q, k, v

    def down(self, x: str) -> str:
        """Return the last product of a layer."""
        if not self.options.has_gemm:
            return self.linear(x, FFN, HIDDEN)
        matrix = self.constant(self.random.standard_normal((HIDDEN, FFN)) / FFN**0.5)
        bias = self.constant(self.random.standard_normal(HIDDEN))
        flat = self.op("Gemm", self.reshape(x, -1, FFN), matrix, bias, transB=1)
        sizes = [self.op("Unsqueeze", self.size(x, axis), self.integers(0)) for axis in (0, 1)]
        return self.op("Reshape", flat, self.op("Concat", *sizes, self.integers(HIDDEN), axis=0))

    def repeated(self, x: str) -> str:
        group, width = HEADS // KV_HEADS, self.options.head_dim
        if self.options.repeat == "tile":
            return self.op("Tile", x, self.integers(1, group, 1, 1))
        place = 2 if self.options.repeat == "each" else 1
        sizes = (1, KV_HEADS, group, 1, 1) if place == 2 else (1, group, KV_HEADS, 1, 1)
        spread = self.op("Expand", self.op("Unsqueeze", x, self.integers(place)), self.integers(*sizes))
        return self.reshape(spread, 1, HEADS, -1, width)

    def mixed(self, x: str) -> str:
        """Return the embeddings with what was asked for between rows."""
        kind = self.options.mixing
        if kind == "mean":
            return self.op("Add", x, self.op("ReduceMean", x, self.integers(1), keepdims=1))
        if kind == "sum":
            return self.op("Add", x, self.op("CumSum", x, self.constant(1, np.int64)))
        if kind == "reverse":
            ends = (self.integers(-1), self.integers(-(1 << 40)), self.integers(1), self.integers(-1))
            return self.op("Add", x, self.op("Slice", x, *ends))
        if kind == "neighbour":
            shifted = self.op("Pad", x, self.integers(0, 1, 0, 0, 0, 0))
            return self.op("Add", x, self.op("Slice", shifted, self.integers(0), self.integers(-1), self.integers(1)))
        if kind == "softmax":
            return self.op("Add", x, self.op("Softmax", x, axis=1))
        if kind == "product":
            return self.op("MatMul", x, self.op("MatMul", self.op("Transpose", x, perm=[0, 2, 1]), x))
        if kind == "first":
            return self.op("Add", x, self.op("Gather", x, self.integers(0), axis=1))
        if kind == "shuffle":
            turned = self.reshape(x, 1, HIDDEN, -1)
            return self.op("Add", x, self.op("Transpose", turned, perm=[0, 2, 1]))
        if kind == "largest":
            return self.op("Div", x, self.op("ReduceMax", x, keepdims=1))
        return x

    def attention(self, x: str, layer: int, rope: tuple[str, str], seen: str, mask: str) -> str:
        options = self.options
        q, k, v = self.operands(x)
        q, k = self.turn(q, rope), self.turn(k, rope)
        present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        for kind, new, name in zip(("key", "value"), (k, v), present, strict=True):
            self.op("Concat", f"past_key_values.{layer}.{kind}", new, axis=2, outputs=[name])
        if options.is_shared and layer == 1:
            present = [name.replace("1", "0") for name in present]
        keys, values = (self.repeated(name) for name in present)
        if options.value_factor != 1:
            values = self.op("Mul", values, self.constant(options.value_factor))
        scores = self.op("MatMul", q, self.op("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = self.op("Mul", scores, self.constant(options.head_dim**-0.5))
        if options.cap:
            scores = self.op("Mul", self.op("Tanh", self.op("Div", scores, self.constant(20))), self.constant(20))
        if options.bias:
            entries = self.op("Cast", self.range(self.constant(0, np.int64), self.total), to=TensorProto.FLOAT)
            slopes = self.constant(np.full((HEADS, 1, 1), 0.1))
            scores = self.op("Add", scores, self.op("Mul", entries, slopes))
        if options.mask == "where":
            scores = self.op("Where", seen, scores, self.constant(-1e9))
        elif options.mask != "none":
            scores = self.op("Add", scores, mask)
        named = ["shares"] if options.has_weights_output and layer == 0 else []
        shares = self.op("Softmax", scores, axis=-1, outputs=named)
        mixed = self.op("Transpose", self.op("MatMul", shares, values), perm=[0, 2, 1, 3])
        width = HEADS * options.head_dim
        return self.linear(self.reshape(mixed, 0, 0, width), width, HIDDEN)

    def write(self, path: Path) -> Path:
        options = self.options
        rope, seen = self.angles(), self.seen()
        mask = self.op("Where", seen, self.constant(0), self.constant(np.finfo(np.float32).min))
        x = self.mixed("inputs_embeds")
        before = x
        for layer in range(LAYERS):
            source = before if options.is_parallel and layer == 1 else x
            x = self.op("Add", x, self.attention(self.norm(source), layer, rope, seen, mask))
            normal = self.norm(x)
            gate = self.linear(normal, HIDDEN, FFN)
            gate = self.op("Mul", gate, self.op("Sigmoid", gate))
            up = self.op("Mul", gate, self.linear(normal, HIDDEN, FFN))
            x = self.op("Add", x, self.down(up))
        names = ["attention_mask"]
        if options.positions == "input":
            names.append("position_ids")
        if options.keeps == "count":
            names.append("num_logits_to_keep")
            start = self.reshape(self.op("Neg", "num_logits_to_keep"), 1)
        else:
            start = self.integers(-1)
        if options.keeps != "all":
            x = self.op("Slice", x, start, self.integers(1 << 40), self.integers(1))
        self.op("Identity", self.linear(self.norm(x), HIDDEN, VOCAB), outputs=["logits"])
        further = (
            [value("shares", TensorProto.FLOAT, (1, HEADS, "rows", "total"))] if options.has_weights_output else []
        )
        return save(self, path, names, head_dim=options.head_dim, outputs=further)
