"""The engine: what edge_vl finds behind the entry point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from edge_vl.engine import (
    EngineStatus,
    LaneMemory,
    LaneOptions,
    LanguageModel,
    LanguageSpec,
    Tokenizer,
    VisionEncoder,
    VisionSpec,
)
from edge_vl.errors import EngineUnavailable, ModelError
from edge_vl.machine import usable_cores
from edge_vl.model_spec import GGUF_FAMILY, ModelSpec
from edge_vl_llama_cpp.context import block_tokens, make_context, plan_context
from edge_vl_llama_cpp.cutting import CuttingEncoder
from edge_vl_llama_cpp.file_checks import check_cutting, check_projector_file, check_text_file
from edge_vl_llama_cpp.files import GGUFFile, dtypes_of, find_projector_file, find_text_file, list_files
from edge_vl_llama_cpp.flash_attention import check_flash_attention
from edge_vl_llama_cpp.kv_types import grant_kv, head_widths, kv_precisions
from edge_vl_llama_cpp.language import LlamaLanguageModel
from edge_vl_llama_cpp.library import ENGINE, INSTALL, Library, open_library
from edge_vl_llama_cpp.memory import language_memory, vision_memory
from edge_vl_llama_cpp.native_model import ModelPool, NativeModel
from edge_vl_llama_cpp.projector import Projector, ProjectorSettings
from edge_vl_llama_cpp.tokenizer import GGUFTokenizer, check_tokenizer
from edge_vl_llama_cpp.vision import TileEncoder, check_normalization, tokens_of_tile

__all__ = ["LlamaCppEngine", "engine"]

_TILE_FAMILIES = ("idefics3", "smolvlm")
_TILE_PROJECTOR = "idefics3"

_UNSUPPORTED = {
    "hunyuanvl": "its positions have four dimensions",
    "deepseek4v": "the tokens of a picture depend on what stands before it",
}
"""Kinds of projector that need more than the seam can say, and why."""


class LlamaCppEngine:
    """Both lanes on llama.cpp."""

    def __init__(self) -> None:
        """Load nothing yet."""
        self._models = ModelPool()

    @property
    def name(self) -> str:
        """Short name."""
        return ENGINE

    def status(self) -> EngineStatus:
        """Say whether llama-cpp-python can be imported, and which devices its build offers."""
        try:
            library = open_library()
        except EngineUnavailable as error:
            return EngineStatus(False, reason=error.missing, install=INSTALL)
        except Exception as error:  # a half-installed package can fail in any way
            return EngineStatus(False, reason=f"{type(error).__name__}: {error}", install=INSTALL)
        devices = tuple(device.name for device in library.devices)
        notes = tuple(f"{device}: this path was never executed by us" for device in devices if device != "cpu")
        return EngineStatus(True, version=library.version, devices=devices, notes=notes)

    def describe(self, model: ModelSpec) -> Mapping[str, Any]:
        """Return the precisions at hand and what the files call the kinds of model; no vision dtypes: text only."""
        files = list_files(model)
        texts = [file for file in files if not file.is_projector]
        if model.file is not None:
            texts = [file for file in texts if file.path == model.file]
        if not texts:
            return {}
        projectors = [file for file in files if file.is_projector and file.projector_type]
        return {
            "vision_dtypes": dtypes_of(projectors),
            "language_dtypes": dtypes_of(texts),
            "kv_precisions": kv_precisions(texts[0]),
            "architecture": texts[0].architecture,
            "projector": projectors[0].projector_type if projectors else "",
        }

    def plan_memory(
        self, model: ModelSpec, lane: Literal["vision", "language"], options: LaneOptions
    ) -> LaneMemory | None:
        """Say what a lane would take on the CPU; on other devices that was never measured."""
        if options.device != "cpu" and (options.device != "auto" or len(self.status().devices) > 1):
            return None
        if lane == "vision":
            text = find_text_file(model, "auto")
            return vision_memory(model, text, find_projector_file(model, text, options.dtype))
        file = find_text_file(model, options.dtype)
        options, _ = grant_kv(file, options)
        return language_memory(model, file, plan_context(file, options, _block_tokens(model), keeps_states=False))

    def load_vision(self, model: ModelSpec, options: LaneOptions) -> VisionEncoder:
        """Load the mmproj file that fits the text model."""
        library = open_library()
        device = library.device(options.device)
        text = find_text_file(model, "auto")
        file = find_projector_file(model, text, options.dtype)
        check_text_file(text)
        check_projector_file(file)
        is_tiled = _encodes_tiles(model, file)
        tokens = 0
        if is_tiled:
            tokens = tokens_of_tile(file)
            check_normalization(model, file)
        else:
            check_cutting(file)
        native = self._models.open(library, text.path, device, with_weights=False)
        try:
            settings = ProjectorSettings(options.threads or usable_cores(), tokens)
            projector = Projector(native, file, device, settings)
        except BaseException:
            native.close()
            raise
        side = file.number("vision.image_size") if is_tiled else 0
        spec = VisionSpec(ENGINE, side, side, tokens, projector.width, file.dtype, device.name, str(file.path))
        try:
            if not projector.sees:
                raise ModelError(f"{file.path} has no vision encoder", file=str(file.path))
            return TileEncoder(projector, spec) if is_tiled else CuttingEncoder(projector, spec, file.projector_type)
        except BaseException:
            projector.close()
            raise

    def load_language(self, model: ModelSpec, options: LaneOptions) -> LanguageModel:
        """Load the text model and make a context that all caches share."""
        library = open_library()
        device = library.device(options.device)
        file = find_text_file(model, options.dtype)
        check_text_file(file)
        # Refuses wrong options before anything is loaded.
        options, notes = grant_kv(file, options, lambda kv: check_flash_attention(library, device, file, kv))
        native = self._models.open(library, file.path, device, with_weights=True)
        try:
            return self._language(library, model, options, file, native, notes)
        except BaseException:
            native.close()
            raise

    def _language(
        self,
        library: Library,
        model: ModelSpec,
        options: LaneOptions,
        file: GGUFFile,
        native: NativeModel,
        notes: tuple[str, ...],
    ) -> LlamaLanguageModel:
        device = library.device(options.device)
        if library.llama.llama_model_has_encoder(native.pointer):
            raise ModelError(f"{file.path} has an encoder of its own; only decoders are run", file=str(file.path))
        tokenizer = _tokenizer(model, native)
        plan = plan_context(file, options, _block_tokens(model), keeps_states=native.is_recurrent)
        context = make_context(native, plan, device)
        if not library.llama.llama_get_memory(context):
            library.llama.llama_free(context)
            raise ModelError(f"{file.path} is not a model that writes text: it keeps no cache", file=str(file.path))
        spec = LanguageSpec(
            engine=ENGINE,
            context_length=plan.context_length,
            vocab_size=native.vocab_size,
            hidden_size=native.input_width,
            num_layers=file.number("block_count"),
            num_kv_heads=file.number("attention.head_count_kv") or file.number("attention.head_count"),
            head_dim=head_widths(file)[0],
            dtype=file.dtype,
            device=device.name,
            file=str(file.path),
            kv=plan.kv.name,
            rollback="whole" if native.is_recurrent else "any",
            notes=notes,
        )
        return LlamaLanguageModel(native, context, plan, spec, tokenizer)


def _encodes_tiles(model: ModelSpec, file: GGUFFile) -> bool:
    """Whether our own family cuts the pictures; refuses encoders that cannot be used.

    Raises:
        ModelError: it says why.
    """
    if file.projector_type in _UNSUPPORTED:
        why = _UNSUPPORTED[file.projector_type]
        raise ModelError(f"{file.path}: {file.projector_type} is not supported, because {why}", file=str(file.path))
    if model.family not in _TILE_FAMILIES:
        return False
    if file.projector_type != _TILE_PROJECTOR:
        raise ModelError(
            f"{file.path} is a vision encoder of kind {file.projector_type!r}, and {model.name} is {model.family}: "
            "they are not of one model",
            file=str(file.path),
        )
    return True


def _tokenizer(model: ModelSpec, native: NativeModel) -> Tokenizer:
    """Take `tokenizer.json` where the model has one, and see that it fits; otherwise the file's own."""
    if model.family == GGUF_FAMILY:
        return GGUFTokenizer(native)
    from edge_vl.tokenizer import HFTokenizer  # late: it loads a library

    tokenizer = HFTokenizer(model)
    check_tokenizer(tokenizer, native, str(model.tokenizer_file))
    return tokenizer


def _block_tokens(model: ModelSpec) -> int:
    """Return the most image tokens that must go in together, as far as the encoders' files tell."""
    return max((block_tokens(file) for file in list_files(model) if file.is_projector), default=0)


engine = LlamaCppEngine()
