"""Putting a language model together from the pieces of a decoder."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from edge_vl.errors import EdgeVLError
from edge_vl.kv_policy import MAX_LOGIT_ERROR, KVPolicy, TokenKind
from edge_vl.machine import usable_cores
from edge_vl_kernels.kv import KVKernels, Rope
from edge_vl_onnxruntime.cache_formats import cache_format
from edge_vl_onnxruntime.cut_geometry import geometry_of
from edge_vl_onnxruntime.cut_language import CutLanguageModel
from edge_vl_onnxruntime.cut_sessions import open_sessions
from edge_vl_onnxruntime.cut_store import CutStore
from edge_vl_onnxruntime.decoder_graph import read_decoder_graph
from edge_vl_onnxruntime.decoder_parts import DecoderParts, try_out
from edge_vl_onnxruntime.embedding import Embedding
from edge_vl_onnxruntime.graph_cut import CannotCut
from edge_vl_onnxruntime.proven_cut import ProvenCut
from edge_vl_onnxruntime.session import return_freed_memory

if TYPE_CHECKING:
    from edge_vl_kernels.kv_format import Precision

__all__ = ["CutAssembly", "Making"]

_GUARD_CONTEXT = 512


@dataclass(frozen=True, slots=True)
class Making:
    """What is made of pieces.

    Attributes:
        policy: of the caches.
        context_length: of the caches.
        guarded: layers whose keys do not have 4 bits.
    """

    policy: KVPolicy
    context_length: int
    guarded: tuple[int, ...] = ()


class CutAssembly:
    """A decoder in pieces, on the way to a language model."""

    def __init__(
        self,
        parts: DecoderParts,
        isa: str,
        store: CutStore,
        proven: ProvenCut,
        embedding: Embedding | None = None,
    ) -> None:
        """Load the pieces.

        Args:
            parts: what the model is loaded from.
            isa: kernels to use, one that is there.
            store: keeps what is measured.
            proven: the pieces.
            embedding: token embeddings, if they are loaded already.

        Raises:
            CannotCut: a piece cannot be loaded.
            ModelError: the files do not fit.
        """
        self._parts, self._isa, self._store, self._proven = parts, isa, store, proven
        self._graph = read_decoder_graph(proven.decoder, parts.text_config)
        self._spec = parts.describe(proven.decoder, self._graph)
        self._threads = parts.options.threads or usable_cores()
        first = proven.cut.attentions[0]
        self._geometry = geometry_of(proven.cut)
        self._scale = first.scale
        self._rope: Rope | None = None
        if first.rope is not None:
            self._rope = Rope(first.rope.cosines, first.rope.sines, first.rope.is_interleaved)
        self._embedding = embedding or parts.open_embedding(self._graph)
        self._made: Making | None = None
        self._sessions = open_sessions(proven.cut, self._graph, num_threads=self._threads)
        return_freed_memory()

    def open(self) -> CutLanguageModel:
        """Return the model that is asked for, tried out.

        Raises:
            ModelError: it does not work.
            CannotCut: what it needs cannot be measured.
        """
        model = self.make(self._wanted())
        try:
            try_out(model)
        except BaseException:
            model.close()
            raise
        return model

    def make(self, making: Making) -> CutLanguageModel:
        """Return a model."""
        policy, guarded = making.policy, making.guarded
        own: Precision = "f16" if self._graph.cache_dtype is np.float16 else "f32"
        kernels = KVKernels(
            cache_format(policy, self._geometry, own=own, guarded=guarded),
            scale=self._scale,
            rope=self._rope,
            num_threads=self._threads,
            isa=self._isa,
        )
        num_layers = self._geometry.num_layers
        name = own if policy.is_auto else policy.name
        notes = [f"attention: own, {num_layers} layers, {name} KV, {kernels.isa}"]
        warnings: tuple[str, ...] = ()
        if kernels.isa == "reference":
            warnings = (
                "attention runs in NumPy, which is slow: there are no compiled kernels; edge-vl doctor says why",
            )
        if finer := _finer_layers(policy, num_layers, guarded):
            notes.append(
                f"KV cache: layers {', '.join(map(str, finer))} in int8: keys in 4 bits would move their attention "
                f"logits by more than {MAX_LOGIT_ERROR:g}"
            )
        spec = dataclasses.replace(
            self._spec,
            context_length=making.context_length,
            kv="" if policy.is_auto else policy.name,
            notes=tuple(notes),
            warnings=warnings,
        )
        self._made = making
        return CutLanguageModel(self._sessions, kernels, self._embedding, spec, self._parts.tokenizer)

    def finish(self, model: CutLanguageModel) -> CutLanguageModel:
        """Return the model that is asked for, in place of the last one that was made."""
        made, wanted = self._made, self._wanted()
        if made == wanted:
            return model
        model.detach()
        return self.make(wanted)

    def _wanted(self) -> Making:
        policy = self._parts.options.kv
        return Making(policy, self._spec.context_length, self._guarded() if policy.wants_errors else ())

    def _guarded(self) -> tuple[int, ...]:
        """Name the layers whose keys must not have 4 bits, measured once."""
        from edge_vl_onnxruntime.key_error import key_errors  # late: few ask for 4 bits

        if not self._proven.key_errors:
            limit = self._parts.context_limit if self._rope is None else self._rope.num_positions
            model = self.make(Making(KVPolicy(), min(limit, self._parts.context_limit, _GUARD_CONTEXT)))
            try:
                errors = key_errors(model, ("int4", "int8"))
            except EdgeVLError as error:
                raise CannotCut(f"the error of its keys cannot be measured: {error}") from error
            finally:
                model.detach()
            self._proven = dataclasses.replace(self._proven, key_errors=errors)
            self._store.save(self._proven)
        return self._proven.guards


def _finer_layers(policy: KVPolicy, num_layers: int, guarded: tuple[int, ...]) -> list[int]:
    """Name the layers that are kept finer than a policy says."""
    kinds: tuple[TokenKind, ...] = ("text", "image")
    return [
        layer
        for layer in guarded
        if any(
            policy.layers(num_layers, kind, guarded=guarded)[layer] != policy.layers(num_layers, kind)[layer]
            for kind in kinds
        )
    ]
