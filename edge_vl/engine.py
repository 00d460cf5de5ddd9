"""The engine seam: what an inference backend offers to edge_vl.

An engine is passive: it starts no threads of its own, keeps no queues and never retries; long calls release the
GIL. The runtime calls a `VisionEncoder` from one thread and a `LanguageModel` from one thread, always the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from edge_vl.kv_policy import KVPolicy
from edge_vl.plan import ExactnessRules, ImageGrid, ImageUnit, TextChunk

if TYPE_CHECKING:
    from edge_vl.frame import Frame
    from edge_vl.model_spec import ModelSpec

__all__ = [
    "BlockwiseCache",
    "Engine",
    "EngineStatus",
    "Graftable",
    "ImageEmbeds",
    "KVCache",
    "LaneMemory",
    "LaneOptions",
    "LanguageModel",
    "LanguageSpec",
    "MemoryPlanner",
    "PictureCutter",
    "Prefillable",
    "Tokenizer",
    "VisionEncoder",
    "VisionSpec",
]


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """How one lane is to be loaded.

    Attributes:
        dtype: `auto`, or the wanted precision of the weights: `fp32`, `fp16`, `int8`, `q4`, ...
        threads: CPU threads for the lane; None lets the engine choose from the cores it may use.
        device: `auto`, `cpu`, or a name that the engine lists in its status.
        context_length: wanted cache entries; None takes the model's own limit.
        kv: in what precision the KV cache is kept; `auto` is the engine's own.
        is_kv_wish: `kv` is what a profile prefers and nobody asked for: an engine that finds while it loads that it
            cannot keep it takes its own precision and says so in `LanguageSpec.notes`.
        attention: of the language lane, where the engine has a choice: `cut` takes the graph apart at its attention and
            runs attention over caches of our own between the parts, `whole` runs the graph as it is; `auto` cuts
            where that is possible.
    """

    dtype: str = "auto"
    threads: int | None = None
    device: str = "auto"
    context_length: int | None = None
    kv: KVPolicy = field(default_factory=KVPolicy)
    is_kv_wish: bool = False
    attention: Literal["auto", "cut", "whole"] = "auto"


@dataclass(frozen=True, slots=True)
class LaneMemory:
    """Memory that a lane takes once it is loaded and at work, known before it is loaded. In bytes.

    Attributes:
        weights_bytes: the weights, as they lie in memory.
        kv_bytes: the KV cache at its full length; 0 for a vision lane.
        activation_bytes: what the largest single step needs besides.
        picture_bytes: pixels of a unit in every form that is held at once; 0 for a language lane.
        dtype: precision of the weights meant.
        file: the file meant.
        context_length: cache entries meant; 0 for a vision lane.
    """

    weights_bytes: int
    kv_bytes: int
    activation_bytes: int
    picture_bytes: int
    dtype: str
    file: str
    context_length: int = 0

    @property
    def total_bytes(self) -> int:
        """All of it."""
        return self.weights_bytes + self.kv_bytes + self.activation_bytes + self.picture_bytes


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """Whether an engine can run here, and why not.

    Attributes:
        is_available: it can.
        version: of the backend, empty when it is missing.
        devices: what `LaneOptions.device` may name.
        reason: why it is not available: the real error.
        install: the command that installs what is missing.
        notes: things worth knowing, such as a path that was never executed on this machine.
    """

    is_available: bool
    version: str = ""
    devices: tuple[str, ...] = ()
    reason: str = ""
    install: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VisionSpec:
    """What a loaded vision encoder is.

    Attributes:
        engine: name of the engine.
        tile_height: rows of pixels that a unit must have; 0: any.
        tile_width: columns, likewise.
        tokens_per_unit: image tokens of one unit; 0: depends on its size.
        hidden_size: width of an image token.
        dtype: precision of the weights in use.
        device: where it runs.
        file: the file that was loaded.
    """

    engine: str
    tile_height: int
    tile_width: int
    tokens_per_unit: int
    hidden_size: int
    dtype: str
    device: str
    file: str


@dataclass(frozen=True, slots=True)
class LanguageSpec:
    """What a loaded language model is.

    Attributes:
        engine: name of the engine.
        context_length: cache entries that one sequence may have.
        vocab_size: length of a row of logits.
        hidden_size: width of a token's embedding.
        num_layers: decoder layers.
        num_kv_heads: key/value heads of a layer.
        head_dim: width of a head.
        dtype: precision of the weights in use.
        device: where it runs.
        file: the file that was loaded.
        kv: name of the policy that its KV caches follow; empty: the precision of the weights' arithmetic.
        rollback: what its caches can forget: `any` number of last entries, or only the `whole` sequence.
        notes: things worth knowing about how it was loaded, such as what computes attention and why.
        warnings: what should be otherwise and can be mended; people are told once.
    """

    engine: str
    context_length: int
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    device: str
    file: str
    kv: str = ""
    rollback: Literal["any", "whole"] = "any"
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ImageEmbeds:
    """Output of the vision encoder for one unit.

    Attributes:
        values: float32 (num_image_tokens, hidden_size), on the host.
        key: content key of the unit they came from.
        positions: int32 (num_image_tokens, 3), time, row and column of each token for M-RoPE, counted from the unit's
            first position; None: one position after the other.
        num_positions: positions that they span; 0: as many as tokens.
        is_causal: whether a token attends to those before it only; otherwise all see each other and go in together.
    """

    values: NDArray[np.float32]
    key: str
    positions: NDArray[np.int32] | None = None
    num_positions: int = 0
    is_causal: bool = True

    @property
    def num_tokens(self) -> int:
        """Cache entries they will take."""
        return int(self.values.shape[0])


Prefillable = TextChunk | ImageEmbeds


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer."""
        ...

    @property
    def special_tokens(self) -> dict[str, int]:
        """Every marker and control token, by its text."""
        ...

    def encode_text(self, text: str) -> list[int]:
        """Encode plain text. Never returns a marker or control token, whatever the text says."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token stands for; empty for control tokens."""
        ...


class KVCache(Protocol):
    """Keys and values of one sequence. Belongs to the language lane's thread."""

    @property
    def num_tokens(self) -> int:
        """Entries stored."""
        ...

    @property
    def next_position(self) -> int:
        """Position of the next token (not `num_tokens` for M-RoPE or after eviction)."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory held for this sequence."""
        ...

    def fork(self) -> Self:
        """Return an independent cache with the same entries."""
        ...

    def trim(self, num_tokens: int) -> None:
        """Forget all but the first `num_tokens` entries; a `BlockwiseCache` may have to forget some more."""
        ...

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        ...


@runtime_checkable
class BlockwiseCache(Protocol):
    """A cache that cannot forget any number of last entries, because older ones are compressed block by block."""

    def keepable(self, num_tokens: int) -> int:
        """Return how many entries `trim(num_tokens)` would keep: at most `num_tokens`, fewer inside a block.

        Args:
            num_tokens: at most the entries stored.
        """
        ...


@runtime_checkable
class Graftable(Protocol):
    """A cache that can take entries from another one of the same model instead of computing them.

    Whether they are what would have been computed here depends on what stands before them, which is not looked at.
    """

    def graft(self, donor: KVCache, start: int, stop: int) -> None:
        """Append the donor's entries `start` to `stop`, at the places and positions that they have there.

        The donor is not changed, and both go their own ways afterwards. When it raises, this cache is as it was.
        Called from the language lane's thread.

        Args:
            donor: a cache of the same loaded model.
            start: this cache's `num_tokens`, at whose place the donor has this cache's `next_position`.
            stop: behind the last entry, at most the donor's `num_tokens`; equal to `start` for none.

        Raises:
            ValueError: the donor is of another model or does not have these entries, this cache does not end at
                `start`, the positions differ, a picture whose tokens belong together would be torn apart, or the model
                keeps a state that has no entries.
            EngineFault: this cache, the donor or the model is closed.
        """
        ...


class VisionEncoder(Protocol):
    """A loaded vision encoder with its projector. Called from one thread."""

    @property
    def spec(self) -> VisionSpec:
        """What it is."""
        ...

    def encode(self, unit: ImageUnit) -> ImageEmbeds:
        """Encode one unit.

        Returns:
            float32 (num_image_tokens, hidden_size), owned by the caller.

        Raises:
            EngineFault: the backend failed.
        """
        ...

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        ...


@runtime_checkable
class PictureCutter(Protocol):
    """A vision encoder that resizes and cuts pictures itself, for models whose layout no family of ours knows."""

    @property
    def rules(self) -> ExactnessRules:
        """What may be split, kept and rolled back."""
        ...

    def cut(self, frame: Frame) -> ImageGrid:
        """Resize and cut a picture. Called from any thread, also while the encoder works.

        Returns:
            Units with `num_tokens`, `num_positions` and `prepared`, and the `markers` around them.

        Raises:
            ImageError: the picture cannot be used.
            EngineFault: the backend failed, or the encoder is closed.
        """
        ...


class LanguageModel(Protocol):
    """A loaded language model. Called from one thread."""

    @property
    def spec(self) -> LanguageSpec:
        """What it is."""
        ...

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that belongs to its weights."""
        ...

    def new_cache(self) -> KVCache:
        """Return an empty cache for one sequence.

        Raises:
            CacheFull: there are too many caches; it may go through after others were closed.
        """
        ...

    def prefill(
        self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True
    ) -> NDArray[np.float32] | None:
        """Append a run of consecutive chunks in one pass.

        A run mixes text and image embeds so that a tile and its markers cost one pass over the weights. The caller
        has checked that the run fits into the context. When it raises, the cache is as it was.

        Returns:
            float32 (vocab_size,), the logits after the last token, owned by the caller; None if not wanted.

        Raises:
            CacheFull: the memory for all caches is used up; it may go through after others were closed.
            EngineFault: the backend failed.
        """
        ...

    def decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        """Append one token.

        Returns:
            float32 (vocab_size,), the logits after it, owned by the caller.

        Raises:
            CacheFull: as for `prefill`.
            EngineFault: the backend failed.
        """
        ...

    def close(self) -> None:
        """Give the memory back. May be called twice."""
        ...


@runtime_checkable
class Engine(Protocol):
    """A factory for either lane. Importing it must not import its backend."""

    @property
    def name(self) -> str:
        """Short name, the same as its entry point's."""
        ...

    def status(self) -> EngineStatus:
        """Say whether the engine can run here. Never raises."""
        ...

    def describe(self, model: ModelSpec) -> Mapping[str, Any]:
        """Say what the engine knows about a model without loading it, for `edge-vl models info`.

        Returns:
            JSON-ready facts by name, such as the precisions at hand; empty if the engine cannot run the model.
        """
        ...

    def load_vision(self, model: ModelSpec, options: LaneOptions) -> VisionEncoder:
        """Load the vision encoder.

        Raises:
            EngineUnavailable: the backend is missing.
            ModelError: the files are missing or do not fit.
        """
        ...

    def load_language(self, model: ModelSpec, options: LaneOptions) -> LanguageModel:
        """Load the language model.

        Raises:
            EngineUnavailable: the backend is missing.
            ModelError: the files are missing or do not fit.
        """
        ...


@runtime_checkable
class MemoryPlanner(Protocol):
    """An engine that can tell what a lane will take before it is loaded; without it nothing is checked."""

    def plan_memory(
        self, model: ModelSpec, lane: Literal["vision", "language"], options: LaneOptions
    ) -> LaneMemory | None:
        """Say what a lane would take, from the files' headers alone; None if that cannot be told.

        Raises:
            ModelError: the files are missing or do not fit.
        """
        ...
