"""The engine: what edge_vl finds behind the entry point."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_vl.config_values import whole_number
from edge_vl.engine import (
    EngineStatus,
    LaneMemory,
    LaneOptions,
    LanguageModel,
    LanguageSpec,
    Tokenizer,
    VisionEncoder,
)
from edge_vl.environment import read_environment
from edge_vl.errors import EngineUnavailable, ModelError, RequestError
from edge_vl.kv_policy import KVPolicy, Precision, TokenKind
from edge_vl.model_spec import ModelSpec
from edge_vl_kernels.kv_format import PRECISIONS
from edge_vl_onnxruntime.cut_loading import known_guards, load_cut, why_whole
from edge_vl_onnxruntime.decoder_graph import DecoderGraph, read_decoder_graph
from edge_vl_onnxruntime.decoder_parts import DecoderParts, try_out
from edge_vl_onnxruntime.embedding import Embedding
from edge_vl_onnxruntime.files import DECODER, EMBED_TOKENS, VISION_ENCODER, ModelFile, find_file, list_dtypes
from edge_vl_onnxruntime.graph_cut import CannotCut
from edge_vl_onnxruntime.language import OnnxLanguageModel
from edge_vl_onnxruntime.memory import cut_language_memory, language_memory, vision_memory
from edge_vl_onnxruntime.quantize import made_vision_file, quantized_vision_file, vision_int8_report
from edge_vl_onnxruntime.session import (
    ENGINE,
    INSTALL,
    Session,
    available_devices,
    import_onnxruntime,
    open_session,
    reason,
    return_freed_memory,
)
from edge_vl_onnxruntime.vision import OnnxVisionEncoder

__all__ = ["OnnxRuntimeEngine", "engine"]

_IN_PLACE_OPERATOR = b"GroupQueryAttention"
_MAX_CONTEXT = 1 << 24
_SCAN_BYTES = 64 * 1024 * 1024  # a graph's nodes stand before its weights


class OnnxRuntimeEngine:
    """Both lanes on ONNX Runtime."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        """Choose where int8 copies are kept; None asks the environment when one is needed."""
        self._cache_dir = cache_dir

    @property
    def name(self) -> str:
        """Short name."""
        return ENGINE

    def status(self) -> EngineStatus:
        """Say whether ONNX Runtime can be imported, and which devices its build offers."""
        try:
            onnxruntime = import_onnxruntime()
            devices = available_devices(onnxruntime)
        except EngineUnavailable as error:
            return EngineStatus(False, reason=error.missing, install=INSTALL)
        except Exception as error:  # a half-installed package can fail in any way
            return EngineStatus(False, reason=f"{type(error).__name__}: {error}", install=INSTALL)
        notes = tuple(f"{device}: this path was never executed by us" for device in devices if device != "cpu")
        return EngineStatus(True, version=str(onnxruntime.__version__), devices=devices, notes=notes)

    def describe(self, model: ModelSpec) -> Mapping[str, Any]:
        """Return the precisions at hand, and how far the int8 vision encoder made on this machine is from fp32."""
        vision, language = list_dtypes(model, VISION_ENCODER), list_dtypes(model, DECODER)
        if not vision and not language:
            return {}
        return {
            "vision_dtypes": sorted(vision),
            "vision_dtypes_made": ["int8"] if "fp32" in vision and "int8" not in vision else [],
            "language_dtypes": sorted(language),
            "int8_vision": vision_int8_report(model, self._cache_dir),
            "kv_precisions": list(PRECISIONS) if language else [],
            "kv_parts": ["image", "first_layers", "last_layers"] if language else [],
        }

    def plan_memory(
        self, model: ModelSpec, lane: Literal["vision", "language"], options: LaneOptions
    ) -> LaneMemory | None:
        """Say what a lane would take on the CPU; on other devices that was never measured."""
        if options.device != "cpu" and (options.device != "auto" or "cuda" in self.status().devices):
            return None
        if lane == "vision":
            source = _source_of_int8(model, options)
            if source is None:
                return vision_memory(model, find_file(model, VISION_ENCODER, options.dtype))
            made = made_vision_file(source.path, self._cache_dir)
            file = source if made is None else ModelFile(made, "int8")
            return vision_memory(model, file, making_int8=made is None)
        text: Mapping[str, Any] = model.config.get("text_config") or model.config
        file, embed = _language_files(model, options)
        limit = _context_limit(model, text)
        context_length = min(limit, options.context_length or limit)
        isa, kept_in = read_environment().isa, self._kept_in()
        if why_whole(file.path, text, options, isa, kept_in):
            is_shared = _names_in_place_operator(file.path)
            return language_memory(model, file, embed.path, context_length, is_shared=is_shared)
        guarded = known_guards(file.path, text, isa, kept_in) if options.kv.wants_errors else None
        return cut_language_memory(model, file, embed.path, context_length, options.kv, guarded)

    def load_vision(self, model: ModelSpec, options: LaneOptions) -> VisionEncoder:
        """Load `vision_encoder*.onnx`; `int8` is made from fp32 where the model does not bring it."""
        if (source := _source_of_int8(model, options)) is not None:
            file = ModelFile(quantized_vision_file(model, source.path, self._cache_dir), "int8")
        else:
            file = find_file(model, VISION_ENCODER, options.dtype)
        session = open_session(file.path, options)
        return_freed_memory()
        return OnnxVisionEncoder(session, model, file.dtype, isa=read_environment().isa)

    def load_language(self, model: ModelSpec, options: LaneOptions) -> LanguageModel:
        """Load `decoder_model_merged*.onnx` and `embed_tokens*.onnx` and try both out."""
        from edge_vl.tokenizer import HFTokenizer  # late: it loads a library

        file, embed_file = _language_files(model, options)
        tokenizer = HFTokenizer(model)
        text: Mapping[str, Any] = model.config.get("text_config") or model.config
        limit = _context_limit(model, text)

        def open_embedding(graph: DecoderGraph) -> Embedding:
            one_thread = dataclasses.replace(options, threads=1)  # a lookup has nothing to share out
            embedding = Embedding(open_session(embed_file.path, one_thread), graph.embeds.dtype, graph.hidden_size)
            _check_vocabulary(tokenizer, model.tokenizer_file, graph, file.path, embedding, embed_file.path)
            return embedding

        def describe(decoder: Session, graph: DecoderGraph) -> LanguageSpec:
            return _language_spec(decoder, graph, file.dtype, parts.context_length)

        parts = DecoderParts(file.path, text, options, limit, tokenizer, open_embedding, describe)
        try:
            return load_cut(parts, read_environment().isa, self._kept_in())
        except CannotCut as error:
            return _load_instead(parts, str(error))

    def _kept_in(self) -> Path | None:
        return self._cache_dir or read_environment().cache_dir


def _load_instead(parts: DecoderParts, why: str) -> OnnxLanguageModel:
    """Load a decoder as it is, because it cannot be cut.

    Raises:
        ModelError: it does not work.
        RequestError: it cannot give what was asked for.
    """
    options = parts.options
    whole = _load_whole(parts, why)  # first: where the file is damaged, that is what must be said
    is_kv_kept = options.kv.is_auto or options.is_kv_wish or bool(whole.spec.kv)
    if is_kv_kept and options.attention != "cut":
        return whole
    whole.close()
    if is_kv_kept:
        raise RequestError(f"the graph cannot be cut at its attention: {why}", field="attention")
    raise RequestError(
        f"kv is {options.kv.name!r}, and engine {ENGINE!r} keeps the KV cache as the graph does because it runs it "
        f"whole: {why}; leave kv at 'auto', or let llama_cpp speak",
        field="kv",
    )


def _is_own_precision(policy: KVPolicy, graph: DecoderGraph) -> bool:
    """Say whether a policy asks for nothing but what the graph does by itself."""
    own: Precision = "f16" if graph.cache_dtype is np.float16 else "f32"
    kinds: tuple[TokenKind, ...] = ("text", "image")
    return all(
        layer.keys == layer.values == own for kind in kinds for layer in policy.layers(graph.num_layers, kind, own=own)
    )


def _load_whole(parts: DecoderParts, why: str) -> OnnxLanguageModel:
    """Load a decoder that runs as it is, its cache in place if it works so.

    Raises:
        ModelError: it does not work.
    """
    decoder = open_session(parts.path, parts.options)
    graph = read_decoder_graph(decoder, parts.text_config)
    embedding = parts.open_embedding(graph)
    notes = [f"attention: the graph's own, because {why}"]
    policy = parts.options.kv
    is_kept = not policy.is_auto and _is_own_precision(policy, graph)
    if not policy.is_auto and not is_kept:
        notes.append(f"KV cache: as the graph keeps it and not in the profile's {policy.name}, for the same reason")
    spec = dataclasses.replace(parts.describe(decoder, graph), notes=tuple(notes), kv=policy.name if is_kept else "")
    whole = OnnxLanguageModel(decoder, graph, embedding, spec, parts.tokenizer, is_shared=False)
    return_freed_memory()
    expected = try_out(whole)
    if _names_in_place_operator(parts.path):
        in_place = OnnxLanguageModel(decoder, graph, embedding, spec, parts.tokenizer, is_shared=True)
        if _agrees(in_place, expected):
            return in_place
    return whole


def _source_of_int8(model: ModelSpec, options: LaneOptions) -> ModelFile | None:
    """Return the fp32 vision encoder if int8 is wanted and the model does not bring it."""
    found = list_dtypes(model, VISION_ENCODER)
    is_made = options.dtype == "int8" and "int8" not in found and "fp32" in found
    return find_file(model, VISION_ENCODER, "fp32") if is_made else None


def _language_files(model: ModelSpec, options: LaneOptions) -> tuple[ModelFile, ModelFile]:
    """Find the decoder and the embeddings that go with it."""
    decoder = find_file(model, DECODER, options.dtype)
    embed_dtype = decoder.dtype if decoder.dtype in list_dtypes(model, EMBED_TOKENS) else "auto"
    return decoder, find_file(model, EMBED_TOKENS, embed_dtype)


def _context_limit(model: ModelSpec, text: Mapping[str, Any]) -> int:
    """Return the entries that a sequence of the model may have."""
    file = model.path / "config.json"
    limit = whole_number(text, "max_position_embeddings", file, low=1, high=_MAX_CONTEXT)
    if not limit:
        raise ModelError(f"{file} has no text_config.max_position_embeddings", file=str(file))
    return limit


def _check_vocabulary(
    tokenizer: Tokenizer, tokenizer_file: Path, graph: DecoderGraph, decoder: Path, embedding: Embedding, embed: Path
) -> None:
    """Refuse a tokenizer with ids that a graph has no row for; spare rows are usual, as padding."""
    highest = tokenizer.vocab_size - 1
    if highest >= graph.vocab_size:
        raise ModelError(
            f"{tokenizer_file} has ids up to {highest}, and {decoder} a vocabulary of {graph.vocab_size}: "
            "they are not of one model",
            file=str(tokenizer_file),
        )
    try:
        embedding.many((highest,))
    except Exception as error:  # the backend's own errors share no base class
        raise ModelError(
            f"{embed} cannot look up {highest}, the highest id of {tokenizer_file}: {reason(error)}", file=str(embed)
        ) from error


def _language_spec(decoder: Session, graph: DecoderGraph, dtype: str, context_length: int) -> LanguageSpec:
    if dtype == "fp32" and graph.embeds.dtype is np.float16:
        dtype = "fp16"  # a file without suffix that was converted in place
    return LanguageSpec(
        engine=ENGINE,
        context_length=context_length,
        vocab_size=graph.vocab_size,
        hidden_size=graph.hidden_size,
        num_layers=graph.num_layers,
        num_kv_heads=graph.num_kv_heads,
        head_dim=graph.head_dim,
        dtype=dtype,
        device=decoder.device,
        file=str(decoder.path),
    )


def _names_in_place_operator(path: Path) -> bool:
    """Look for the operator's name in the file, which needs no ONNX parser."""
    overlap = len(_IN_PLACE_OPERATOR)
    tail = b""
    with path.open("rb") as file:
        for _ in range(_SCAN_BYTES // (1 << 20)):
            block = file.read(1 << 20)
            if _IN_PLACE_OPERATOR in tail + block:
                return True
            if not block:
                break
            tail = block[-overlap:]
    return False


def _agrees(model: OnnxLanguageModel, expected: list[NDArray[np.float32]]) -> bool:
    """Whether in-place buffers give the same logits; if not, the graph works with growing ones all the same."""
    try:
        found = try_out(model)
    except ModelError:
        return False
    tolerance = 1e-3 if model.spec.dtype == "fp32" else 0.1
    return all(
        float(np.linalg.norm(one - other)) <= tolerance * float(np.linalg.norm(other))
        for one, other in zip(found, expected, strict=True)
    )


engine = OnnxRuntimeEngine()
