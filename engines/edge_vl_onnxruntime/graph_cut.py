"""The cut: a decoder graph without its attention, in pieces between which attention of our own runs.

A decoder with n layers becomes n + 1 pieces. Piece i takes what attention i - 1 returned and gives the queries, keys
and values of layer i; the last one gives logits. Everything that is recognised is on a list; whatever is not makes the
graph one that runs whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

__all__ = ["CUT_VERSION", "ROWS", "CannotCut", "CutAttention", "CutGraph", "CutRope", "Operand", "Piece", "cut_graph"]

CUT_VERSION = 1
"""Raised whenever the same file gives other pieces than before, so that kept ones are made anew."""

ROWS = "rows"
"""Name of the one open dimension of every input and output of a piece."""


class CannotCut(Exception):
    """A graph that runs whole; the text says why, in one sentence."""


@dataclass(frozen=True, slots=True)
class Operand:
    """Queries, keys or values, as an output of a piece.

    Attributes:
        name: of the output.
        dtype: float32 or float16.
        layout: `rows`: (1, rows, width), a head's channels side by side, heads behind each other; `heads`: (1, heads,
            rows, head_dim).
        offset: first channel, where one output holds several operands.
    """

    name: str
    dtype: np.dtype[Any]
    layout: Literal["rows", "heads"]
    offset: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class CutRope:
    """Rotation that the graph's attention does itself.

    Attributes:
        cosines: float32 (num_positions, rotary_dim / 2).
        sines: likewise.
        is_interleaved: channels 2i and 2i + 1 turn together; otherwise i and i + rotary_dim / 2.
    """

    cosines: NDArray[np.float32]
    sines: NDArray[np.float32]
    is_interleaved: bool


@dataclass(frozen=True, slots=True)
class CutAttention:
    """Causal attention between two pieces.

    Attributes:
        layer: number, from 0; also of the piece that gives its operands.
        query: (num_query_heads, head_dim) for each row.
        key: (num_kv_heads, head_dim) for each row.
        value: likewise.
        context: the next piece's input for the result, (1, rows, num_query_heads * head_dim).
        context_dtype: float32 or float16.
        num_query_heads: consecutive ones share a key/value head.
        num_kv_heads: key/value heads.
        head_dim: channels of a head.
        scale: of the scores.
        rope: to be done to queries and keys, at the row's position; None: they come turned.
    """

    layer: int
    query: Operand
    key: Operand
    value: Operand
    context: str
    context_dtype: np.dtype[Any]
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    rope: CutRope | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """One graph.

    Attributes:
        graph: an ONNX message; weights are references into files of `CutGraph.folder`.
        inputs: inputs of the decoder graph, `CutAttention.context` of the attention before, outputs of earlier pieces,
            and names of `CutGraph.constants`.
        outputs: operands of the attention behind it, and what later pieces need.
    """

    graph: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CutGraph:
    """A decoder in pieces. Batch size is 1, and `ROWS` the number of rows of a run, of one sequence or of several.

    No piece mixes rows, so each piece may run on any of them; an input of the decoder that says how many rows of logits
    are wanted must say: all of the last piece's.

    Attributes:
        pieces: one more than layers; the last one gives `logits`.
        attentions: in the order of layers.
        constants: inputs that stay the same: weights that several pieces share.
        folder: for `session.model_external_initializers_file_folder_path`.
        positions: name of the input for the rows' positions; empty if no piece needs them. If the decoder graph has
            none it is `position_ids`, int64 (1, rows).
        shares_scales: activations are quantised with one scale for all rows of a run, as the graph does too; which rows
            run together then changes results by rounding.
    """

    pieces: tuple[Piece, ...]
    attentions: tuple[CutAttention, ...]
    constants: Mapping[str, NDArray[Any]]
    folder: Path
    positions: str = ""
    shares_scales: bool = False


def cut_graph(path: Path, text_config: Mapping[str, Any]) -> CutGraph:
    """Cut a decoder graph at its attention. Weights stay in the file.

    Args:
        path: the graph; external data lies beside it.
        text_config: of the model's `config.json`; fills in sizes that the graph leaves open.

    Raises:
        CannotCut: something in the graph is not known to be safe.
    """
    try:
        from edge_vl_onnxruntime.graph_cutter import cut  # late: it needs the package onnx
    except ImportError as error:
        raise CannotCut(f"the package onnx is missing ({error}); pip install onnx") from error
    try:
        return cut(path, text_config)
    except CannotCut:
        raise
    except (
        Exception
    ) as error:  # a graph that breaks a rule of the format can fail anywhere, and runs whole or not at all
        raise CannotCut(f"it is not understood ({type(error).__name__}: {error})") from error
