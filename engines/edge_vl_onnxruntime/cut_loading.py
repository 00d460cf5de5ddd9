"""Loading a decoder in pieces: cut, proven once against the whole graph, and known to be right from then on."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_vl.engine import LaneOptions
from edge_vl.errors import EngineUnavailable
from edge_vl.kv_policy import KVPolicy
from edge_vl_kernels.library import load as load_kernels
from edge_vl_onnxruntime.cut_assembly import CutAssembly, Making
from edge_vl_onnxruntime.cut_geometry import cut_evenly
from edge_vl_onnxruntime.cut_language import CutLanguageModel
from edge_vl_onnxruntime.cut_proof import make_exercise, prove, solve_whole
from edge_vl_onnxruntime.cut_store import CutStore
from edge_vl_onnxruntime.decoder_graph import read_decoder_graph
from edge_vl_onnxruntime.decoder_parts import DecoderParts
from edge_vl_onnxruntime.graph_cut import CannotCut, CutGraph
from edge_vl_onnxruntime.onnx_file import read_onnx_header
from edge_vl_onnxruntime.proven_cut import ProvenCut
from edge_vl_onnxruntime.session import ENGINE, choose_device, open_session, reason, return_freed_memory

__all__ = ["known_guards", "load_cut", "why_whole"]

_TOLERANCE, _ROUNDED_TOLERANCE = 1e-3, 0.1  # of logits, where numbers are float32, and where they are rounded further
_SMALL_TYPES = frozenset({2, 3, 21, 22})  # of TensorProto: uint8, int8, uint4, int4
_SMALL_WEIGHT_BYTES = 64 * 1024  # a smaller one is a table or a zero point


def load_cut(parts: DecoderParts, isa: str, cache_dir: Path | None) -> CutLanguageModel:
    """Load a decoder in pieces.

    Args:
        parts: what to load.
        isa: kernels to use, one of `edge_vl_kernels.ISAS`.
        cache_dir: where is kept what was found out before; None: nowhere.

    Raises:
        CannotCut: it runs whole; the text says why.
        ModelError: the files do not fit.
        EngineUnavailable: the device or the kernels are missing.
    """
    isa = _kernels_in_use(isa)
    if why := _why_not_here(parts.options, isa):
        raise CannotCut(why)
    store = CutStore(cache_dir, parts.path, parts.text_config, isa)
    known = store.load()
    if isinstance(known, str):
        raise CannotCut(known)
    if known is not None:
        _check_positions(known.cut, parts)
        try:
            return CutAssembly(parts, isa, store, known).open()
        except Exception:  # it worked before: whatever has changed, the proof finds it out and says it better
            store.forget()
    return _prove(parts, isa, store)


def why_whole(
    path: Path, text_config: Mapping[str, Any], options: LaneOptions, isa: str, cache_dir: Path | None
) -> str:
    """Say why a decoder would run whole, without loading it; empty if it would run in pieces.

    Args:
        path: the decoder's graph.
        text_config: of the model's `config.json`.
        options: how it would be loaded.
        isa: as for `load_cut`.
        cache_dir: likewise.

    Raises:
        EngineUnavailable: the device or the kernels are missing.
    """
    isa = _kernels_in_use(isa)
    if why := _why_not_here(options, isa):
        return why
    store = CutStore(cache_dir, path, text_config, isa)
    known = store.reason()
    return _why_not_cut(path, store.key, json.dumps(text_config, default=str)) if known is None else known


def known_guards(
    path: Path, text_config: Mapping[str, Any], isa: str, cache_dir: Path | None
) -> tuple[int, ...] | None:
    """Name the layers whose keys would be guarded where a policy leaves that to measurements; None: not measured yet.

    Args:
        path: the decoder's graph.
        text_config: of the model's `config.json`.
        isa: as for `load_cut`.
        cache_dir: likewise.

    Raises:
        EngineUnavailable: these kernels are not there.
    """
    known = CutStore(cache_dir, path, text_config, _kernels_in_use(isa)).load()
    return known.guards if isinstance(known, ProvenCut) and known.key_errors else None


def _kernels_in_use(isa: str) -> str:
    """Return the instruction set that runs where this one is asked for.

    Raises:
        EngineUnavailable: it is not there.
    """
    try:
        return load_kernels(isa).status.isa
    except RuntimeError as error:
        raise EngineUnavailable(ENGINE, str(error)) from error


def _why_not_here(options: LaneOptions, isa: str) -> str:
    """Say why a decoder would run whole, whatever its graph is; empty if nothing is known against pieces."""
    if options.attention == "whole":
        return "that was asked for"
    if choose_device(options) != "cpu":
        return "attention of our own runs on the CPU only"
    if isa == "reference" and options.attention == "auto" and options.kv.name in ("auto", "f32"):
        return "there are no compiled kernels in use, and without them attention of our own is slower"
    return ""


@functools.lru_cache(maxsize=16)
def _why_not_cut(path: Path, _key: str, text_config: str) -> str:
    """Try it, once for each state of the files: a memory plan asks many times."""
    try:
        cut_evenly(path, json.loads(text_config))
    except CannotCut as error:
        return str(error)
    except Exception as error:
        return f"it cannot be read: {reason(error)}"
    return ""


def _prove(parts: DecoderParts, isa: str, store: CutStore) -> CutLanguageModel:
    """Cut the graph, let the whole one solve an exercise, close it, and hold the pieces against it."""
    try:
        cut = cut_evenly(parts.path, parts.text_config)
    except CannotCut as error:
        if not isinstance(error.__cause__, ImportError):
            store.save(str(error))
        raise
    except Exception as error:  # whatever is wrong with the graph is better said by what runs it
        raise CannotCut(f"it cannot be read: {reason(error)}") from error
    _check_positions(cut, parts)
    decoder = open_session(parts.path, parts.options)
    graph = read_decoder_graph(decoder, parts.text_config)
    embedding = parts.open_embedding(graph)
    spec = parts.describe(decoder, graph)
    rope = cut.attentions[0].rope
    limit = parts.context_limit if rope is None else min(parts.context_limit, len(rope.cosines))
    exercise = make_exercise(graph, parts.tokenizer.vocab_size, limit)
    try:
        expected = solve_whole(exercise, decoder, graph, embedding)
    except Exception as error:
        raise CannotCut(f"the whole graph cannot be tried out: {reason(error)}") from error
    proven = ProvenCut.of(cut, decoder)
    del decoder  # never both in memory
    return_freed_memory()
    is_exact = spec.dtype == "fp32" and not cut.shares_scales and not _has_small_weights(parts.path)
    loaded = CutAssembly(parts, isa, store, proven, embedding)
    model = loaded.make(Making(KVPolicy(), exercise.num_entries))
    try:
        prove(model, exercise, expected, graph, _TOLERANCE if is_exact else _ROUNDED_TOLERANCE)
    except BaseException as error:
        model.close()
        if isinstance(error, CannotCut):
            store.save(str(error))
        raise
    store.save(proven)
    return loaded.finish(model)


def _check_positions(cut: CutGraph, parts: DecoderParts) -> None:
    """Refuse tables that do not cover the context.

    Raises:
        CannotCut: they do not.
    """
    rope = cut.attentions[0].rope
    if rope is not None and len(rope.cosines) < parts.context_length:
        raise CannotCut(f"it turns {len(rope.cosines)} positions and has a context of {parts.context_length}")


def _has_small_weights(path: Path) -> bool:
    """Say whether weights are quantised, which the name of the file need not tell."""
    weights = read_onnx_header(path).weights
    return any(weight.dtype in _SMALL_TYPES and weight.nbytes >= _SMALL_WEIGHT_BYTES for weight in weights)
