"""The proof that the attention of a graph is the one that is put in its place.

What was recognised by its operators is run with random numbers and compared, which catches whatever operators do not
show: the order in which heads are repeated, factors, limits of scores. Masks are looked at over long caches too, where
a window would show.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl_onnxruntime.decoder_graph import PAST
from edge_vl_onnxruntime.graph_cut import CannotCut, CutAttention, Operand
from edge_vl_onnxruntime.graph_part import GraphPart
from edge_vl_onnxruntime.graph_pattern import Site
from edge_vl_onnxruntime.graph_rope import ROPE_OPERATORS
from edge_vl_onnxruntime.graph_rows import RowAxes
from edge_vl_onnxruntime.graph_skeleton import Skeleton
from edge_vl_onnxruntime.graph_trace import CacheSizes, Length, Trace
from edge_vl_onnxruntime.rotation import rotated

__all__ = ["probe_attention"]

_SHORT = (Length(1, 0), Length(1, 7), Length(5, 0), Length(4, 9), Length(3, 70))
_LONG = (Length(1, 0), Length(1, 7), Length(5, 0), Length(4, 9), Length(3, 4097), Length(1, 8191))
_MAX_PAST = 131071
_HIDDEN_BELOW = -9999.0  # exporters write -10000, the lowest float, or minus infinity
_SPREAD = 3.0  # standard deviation of the scores: a limit on scores or another scale shows
_TOLERANCES = {np.dtype(np.float32): 1e-3, np.dtype(np.float16): 3e-2}

_MASK_OPERATORS = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Concat", "Constant", "ConstantOfShape", "CumSum", "Div", "Equal",
    "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherND", "Greater", "GreaterOrEqual", "Identity", "IsNaN",
    "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "Not", "Or", "Range", "ReduceMax", "ReduceMin",
    "ReduceSum", "Reshape", "ScatterND", "Shape", "Size", "Slice", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose",
    "Trilu", "Unsqueeze", "Where",
})  # fmt: skip
_ATTENTION_OPERATORS = (
    _MASK_OPERATORS | ROPE_OPERATORS | {"Attention", "MatMul", "Softmax", "com.microsoft::GroupQueryAttention"}
)


def probe_attention(
    skeleton: Skeleton, sites: Sequence[Site], trace: Trace, axes: RowAxes, sizes: CacheSizes, context_length: int
) -> None:
    """Run the attention of every layer, and look at every mask.

    Args:
        skeleton: the graph.
        sites: its attention.
        trace: of any length.
        axes: of rows.
        sizes: of the cache.
        context_length: positions that the model has.

    Raises:
        CannotCut: it is not causal attention to all entries, as described.
    """
    borders = {operand.name for site in sites for operand, _ in _operands(site.attention)}
    masks = list(dict.fromkeys(site.mask for site in sites if site.mask))
    if masks:
        part = GraphPart(skeleton, trace, axes, sizes, borders=borders, results=masks, operators=_MASK_OPERATORS)
        # Not where keys are needed, or a mask of all entries by all entries is made: that would take gigabytes.
        goes_on = not part.borders and part.largest <= trace.length.rows * (trace.length.rows + trace.length.past)
        for length in _fitting(_LONG, context_length, goes_on=goes_on):
            for name, mask in zip(masks, part.run(length, {}), strict=True):
                _check_mask(name, mask, length)
    contexts = [site.attention.context for site in sites]
    part = GraphPart(skeleton, trace, axes, sizes, borders=borders, results=contexts, operators=_ATTENTION_OPERATORS)
    random = np.random.default_rng(0)
    for length in _fitting(_SHORT, _num_positions(sites, context_length), goes_on=False):
        data = _random_data(part, skeleton, sites, sizes, length, random)
        for site, found in zip(sites, part.run(length, data), strict=True):
            _check_context(site.attention, found, data, _past_names(skeleton, site.attention.layer), length)


def _operands(attention: CutAttention) -> list[tuple[Operand, int]]:
    """Return operands and their numbers of heads."""
    kv_heads = attention.num_kv_heads
    return [(attention.query, attention.num_query_heads), (attention.key, kv_heads), (attention.value, kv_heads)]


def _fitting(lengths: Iterable[Length], context_length: int, *, goes_on: bool) -> list[Length]:
    """Shorten lengths to the context, or go on to its end."""
    lengths = [*lengths, Length(1, _MAX_PAST)] if goes_on else list(lengths)
    cut = [Length(length.rows, min(length.past, context_length - length.rows)) for length in lengths]
    return list(dict.fromkeys(length for length in cut if length.past >= 0))


def _num_positions(sites: Sequence[Site], context_length: int) -> int:
    """Return for how many positions the attention has what it needs."""
    ropes = [site.attention.rope for site in sites]
    return min([context_length, *(len(rope.cosines) for rope in ropes if rope is not None)])


def _past_names(skeleton: Skeleton, layer: int) -> tuple[str, str]:
    names = {match[2]: name for name in skeleton.inputs if (match := PAST.fullmatch(name)) and int(match[1]) == layer}
    return names["key"], names["value"]


def _random_data(
    part: GraphPart,
    skeleton: Skeleton,
    sites: Sequence[Site],
    sizes: CacheSizes,
    length: Length,
    random: np.random.Generator,
) -> dict[str, NDArray[Any]]:
    """Return operands and caches such that scores have the wanted spread."""
    data: dict[str, NDArray[Any]] = {}
    cache = (1, sizes.num_kv_heads, length.past, sizes.head_dim)
    for site in sites:
        attention = site.attention
        size = (_SPREAD / (abs(attention.scale) * sizes.head_dim**0.5)) ** 0.5 if attention.scale else 1.0
        keys, values = _past_names(skeleton, attention.layer)
        data[keys] = (size * random.standard_normal(cache)).astype(part.dtype(keys))
        data[values] = random.standard_normal(cache).astype(part.dtype(values))
        for operand, _ in _operands(attention):
            if operand.name not in data and operand.name in part.borders:
                factor = 1.0 if operand is attention.value else size
                shape = part.shape(operand.name, length)
                data[operand.name] = (factor * random.standard_normal(shape)).astype(operand.dtype)
    return data


def _check_mask(name: str, mask: NDArray[Any], length: Length) -> None:
    """Compare a mask with the causal one; it is added to scores, or true where an entry is seen."""
    total = length.rows + length.past
    visible = np.arange(total) <= length.past + np.arange(length.rows)[:, None]
    seen = mask if mask.dtype == np.bool_ else mask == 0
    hidden = ~seen if mask.dtype == np.bool_ else mask < _HIDDEN_BELOW
    try:
        shape = np.broadcast_shapes(mask.shape, (1, 1, length.rows, total))
    except ValueError:
        shape = ()
    if (
        shape[-2:] != (length.rows, total)
        or not np.array_equal(seen | ~visible, np.ones(shape, bool))
        or not np.array_equal(hidden | visible, np.ones(shape, bool))
    ):
        raise CannotCut(
            f"its mask {name} is not causal for {length.rows} rows behind {length.past} entries: "
            "it has a window, a bias, or looks ahead"
        )


def _check_context(
    attention: CutAttention,
    found: NDArray[Any],
    data: dict[str, NDArray[Any]],
    past_names: tuple[str, str],
    length: Length,
) -> None:
    """Compare what a layer's attention returns with causal attention to all entries."""
    query, key, value = (
        _rows(data[operand.name], operand, heads, attention.head_dim) for operand, heads in _operands(attention)
    )
    if attention.rope is not None:
        query, key = (rotated(rows, attention.rope, length.past) for rows in (query, key))
    past_keys, past_values = (data[name][0].transpose(1, 0, 2).astype(np.float32) for name in past_names)
    keys, values = np.concatenate([past_keys, key]), np.concatenate([past_values, value])
    expected = _attend(query, keys, values, attention.scale)
    tolerance = _TOLERANCES[attention.context_dtype]
    same = found.shape == (1, length.rows, expected.shape[1] * expected.shape[2]) and np.allclose(
        found.reshape(expected.shape).astype(np.float32), expected, rtol=tolerance, atol=tolerance
    )
    if not same:
        raise CannotCut(
            f"layer {attention.layer}: its attention gives something else than causal attention to all entries, "
            f"for {length.rows} rows behind {length.past} entries"
        )


def _rows(tensor: NDArray[Any], operand: Operand, num_heads: int, head_dim: int) -> NDArray[np.float32]:
    """Return float32 (rows, heads, head_dim)."""
    if operand.layout == "heads":
        return np.asarray(tensor[0].transpose(1, 0, 2), np.float32)
    part = tensor[0, :, operand.offset : operand.offset + num_heads * head_dim]
    return np.asarray(part.reshape(len(part), num_heads, head_dim), np.float32)


def _attend(
    query: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32], scale: float
) -> NDArray[np.float32]:
    """Return (rows, heads, head_dim) of causal attention; the last row is the last entry."""
    group = query.shape[1] // keys.shape[1]
    keys, values = (np.repeat(entries, group, 1).transpose(1, 0, 2) for entries in (keys, values))
    scores = scale * query.transpose(1, 0, 2) @ keys.transpose(0, 2, 1)
    num_rows, num_entries = scores.shape[1:]
    ahead = np.arange(num_entries) > num_entries - num_rows + np.arange(num_rows)[:, None]
    scores[:, ahead] = -np.inf
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed: NDArray[np.float32] = ((shares / shares.sum(-1, keepdims=True)) @ values).transpose(1, 0, 2)
    return mixed
