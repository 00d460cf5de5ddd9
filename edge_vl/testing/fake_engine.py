"""A deterministic engine in NumPy, for tests of everything above the engine seam.

Its cache is a real one: a row of logits depends on every entry, its order and its position, so an entry that is
lost, doubled or stale changes the answer.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import (
    EngineStatus,
    ImageEmbeds,
    KVCache,
    LaneMemory,
    LaneOptions,
    LanguageSpec,
    Prefillable,
    Tokenizer,
    VisionSpec,
)
from edge_vl.errors import CacheFull, EngineFault, EngineUnavailable, RequestError
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl.testing.byte_tokenizer import ByteTokenizer
from edge_vl.testing.fake_cache import FakeKVCache, FakeWeights
from edge_vl.testing.fake_faults import FakeCall, FakeFault, FakeLatencies, Stage

__all__ = ["FakeEngine", "FakeLanguageModel", "FakeVisionEncoder"]


class FakeEngine:
    """Either lane, for any model spec, without files.

    Attributes:
        calls: every call so far, in order.
        num_open: encoders, language models and caches that were not closed.
    """

    def __init__(
        self,
        *,
        name: str = "fake",
        tokenizer: Tokenizer | None = None,
        script: str | bytes | Sequence[int] | None = None,
        latencies: FakeLatencies | None = None,
        faults: Sequence[FakeFault] = (),
        tile_size: int | None = None,
        tokens_per_unit: int | None = None,
        hidden_size: int = 32,
        context_length: int | None = None,
        unavailable: str = "",
        sleep: Callable[[float], None] = time.sleep,
        memory: Callable[[str, LaneOptions], LaneMemory] | None = None,
        max_cache_tokens: int | None = None,
        block_entries: int = 1,
    ) -> None:
        """Choose how it behaves.

        Args:
            name: what it calls itself.
            tokenizer: the model's; a `ByteTokenizer` by default.
            script: what every answer says, then the end token. Text and bytes are answered one byte per token, so
                a letter beyond ASCII is split across tokens; a sequence of ids is answered as it is. None lets the
                logits decide.
            latencies: how long the stages take.
            faults: planned misbehaviour.
            tile_size: side of a unit; the model's `vision_config.image_size` by default, 0 takes any size.
            tokens_per_unit: image tokens of a unit; worked out from the model's configuration by default.
            hidden_size: width of an embedding.
            context_length: the model's `max_position_embeddings` by default.
            unavailable: a reason why the engine cannot run.
            sleep: called with seconds for every latency above 0.
            memory: says what a lane (`vision` or `language`) needs; None: it cannot tell.
            max_cache_tokens: entries that all caches together have room for.
            block_entries: entries of a block of a cache; above 1, older blocks can be forgotten only as a whole.
        """
        self._name = name
        self.tokenizer: Tokenizer = tokenizer if tokenizer is not None else ByteTokenizer()
        self.script = None if script is None else _script_ids(script, self.tokenizer)
        self.latencies = latencies or FakeLatencies()
        self.faults = tuple(faults)
        self.calls: list[FakeCall] = []
        self.num_open = 0
        self._tile_size = tile_size
        self._tokens_per_unit = tokens_per_unit
        self._hidden_size = hidden_size
        self._context_length = context_length
        self._unavailable = unavailable
        self._sleep = sleep
        self._memory = memory
        self._max_cache_tokens = max_cache_tokens
        self._block_entries = block_entries
        self._caches: weakref.WeakSet[FakeKVCache] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._num_calls: dict[Stage, int] = {}

    @property
    def name(self) -> str:
        """Short name."""
        return self._name

    def status(self) -> EngineStatus:
        """Say whether it pretends to be there."""
        if self._unavailable:
            return EngineStatus(False, reason=self._unavailable, install="pip install fake")
        return EngineStatus(True, version="0", devices=("cpu",))

    def describe(self, model: ModelSpec) -> dict[str, Any]:
        """Know that there is one precision."""
        return {"vision_dtypes": ["fp32"], "language_dtypes": ["fp32"]}

    def plan_memory(
        self, model: ModelSpec, lane: Literal["vision", "language"], options: LaneOptions
    ) -> LaneMemory | None:
        """Need what it was told to need."""
        return None if self._memory is None else self._memory(lane, options)

    def load_vision(self, model: ModelSpec, options: LaneOptions) -> FakeVisionEncoder:
        """Load nothing, and return an encoder."""
        self._load("load_vision", options)
        vision = model.config.get("vision_config", {})
        size, patch = int(vision.get("image_size", 0)), int(vision.get("patch_size", 1))
        if self._tile_size is not None:
            size = self._tile_size
        num_tokens = self._tokens_per_unit
        if num_tokens is None:
            num_tokens = max(1, (size // patch // int(model.config.get("scale_factor", 1))) ** 2) if size else 4
        spec = VisionSpec(self._name, size, size, num_tokens, self._hidden_size, "fp32", "cpu", str(model.path))
        return FakeVisionEncoder(self, spec)

    def load_language(self, model: ModelSpec, options: LaneOptions) -> FakeLanguageModel:
        """Load nothing, and return a language model."""
        self._load("load_language", options)
        if not options.kv.is_auto:
            raise RequestError(f"kv is {options.kv.name!r}, and engine {self._name!r} has one precision", field="kv")
        text = model.config.get("text_config", {})
        context = self._context_length or int(text.get("max_position_embeddings", 4096))
        if options.context_length is not None:
            context = min(context, options.context_length)
        vocab_size = max(self.tokenizer.vocab_size, int(text.get("vocab_size", 0)))
        hidden = self._hidden_size
        spec = LanguageSpec(self._name, context, vocab_size, hidden, 1, 1, hidden, "fp32", "cpu", str(model.path))
        return FakeLanguageModel(self, spec)

    def enter(self, call: FakeCall, latency_s: float) -> FakeFault | None:
        """Note a call, wait, misbehave if it is planned, and return the fault that the caller has to act out."""
        with self._lock:
            self.calls.append(call)
            index = self._num_calls.get(call.stage, 0)
            self._num_calls[call.stage] = index + 1
        if latency_s > 0:
            self._sleep(latency_s)
        for fault in self.faults:
            if fault.stage == call.stage and fault.at <= index < fault.at + fault.times:
                fault.reached.set()
                if fault.kind == "raise":
                    raise fault.error or EngineFault(self._name, call.stage, "planned fault")
                if fault.kind == "hang":
                    fault.release.wait()
                    continue
                return fault
        return None

    def begin_anew(self, faults: Sequence[FakeFault] | None = None) -> None:
        """Forget the calls so far, so that faults count from now on.

        Args:
            faults: planned misbehaviour from now on; None: as before.
        """
        with self._lock:
            self.calls.clear()
            self._num_calls.clear()
            if faults is not None:
                self.faults = tuple(faults)

    def make_cache(self) -> FakeKVCache:
        """Return an empty cache that counts towards `max_cache_tokens`."""
        return FakeKVCache(self._hidden_size, self.count_open, self._caches, block_entries=self._block_entries)

    def check_room(self, num_tokens: int) -> None:
        """Refuse entries that there is no room for in all caches together."""
        if self._max_cache_tokens is None:
            return
        if sum(cache.num_tokens for cache in self._caches) + num_tokens > self._max_cache_tokens:
            raise CacheFull(self._name, num_tokens)

    def count_open(self, change: int) -> None:
        """Count what is open."""
        with self._lock:
            self.num_open += change

    def _load(self, stage: Stage, options: LaneOptions) -> None:
        if self._unavailable:
            raise EngineUnavailable(self._name, self._unavailable, "pip install fake")
        if options.device not in {"auto", "cpu"}:
            raise EngineUnavailable(self._name, f"no device {options.device!r}")
        self.enter(FakeCall(stage, thread_id=threading.get_ident()), self.latencies.load_s)


class FakeVisionEncoder:
    """Turns pixels into embeds that depend on all of them."""

    def __init__(self, engine: FakeEngine, spec: VisionSpec) -> None:
        """Belong to an engine."""
        self._engine = engine
        self._spec = spec
        self._weights = np.random.default_rng(7).standard_normal((8, spec.hidden_size))
        self._is_open = True
        engine.count_open(1)

    @property
    def spec(self) -> VisionSpec:
        """What it is."""
        return self._spec

    def encode(self, unit: ImageUnit) -> ImageEmbeds:
        """Encode one unit into float32 (tokens_per_unit, hidden_size)."""
        spec = self._spec
        if not self._is_open:
            raise EngineFault(spec.engine, "encode", "the encoder is closed")
        if spec.tile_height and unit.pixels.shape != (spec.tile_height, spec.tile_width, 3):
            raise EngineFault(spec.engine, "encode", f"a unit of shape {unit.pixels.shape} does not fit")
        call = FakeCall("encode", spec.tokens_per_unit, key=unit.key, thread_id=threading.get_ident())
        fault = self._engine.enter(call, self._engine.latencies.encode_s)
        flat = unit.pixels.astype(np.float64).ravel() / 255.0
        flat = np.resize(flat, -(-flat.size // (spec.tokens_per_unit * 8)) * spec.tokens_per_unit * 8)
        blocks = flat.reshape(spec.tokens_per_unit, 8, -1).mean(axis=2)
        values = (blocks @ self._weights).astype(np.float32)
        if fault is not None:
            values = np.full_like(values, np.nan) if fault.kind == "nan" else values[:, :-1].copy()
        return ImageEmbeds(values, unit.key)

    def close(self) -> None:
        """Count as closed."""
        if self._is_open:
            self._is_open = False
            self._engine.count_open(-1)


class FakeLanguageModel:
    """One layer of attention that forgets nothing."""

    def __init__(self, engine: FakeEngine, spec: LanguageSpec) -> None:
        """Belong to an engine."""
        self._engine = engine
        self._spec = spec
        self._weights = FakeWeights(spec.vocab_size, spec.hidden_size, engine.tokenizer)
        self._is_open = True
        engine.count_open(1)

    @property
    def spec(self) -> LanguageSpec:
        """What it is."""
        return self._spec

    @property
    def tokenizer(self) -> Tokenizer:
        """The engine's tokenizer."""
        return self._engine.tokenizer

    def new_cache(self) -> FakeKVCache:
        """Return an empty cache."""
        return self._engine.make_cache()

    def prefill(
        self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True
    ) -> NDArray[np.float32] | None:
        """Append a run; logits float32 (vocab_size,) after its last token."""
        ids = tuple(token for part in run if isinstance(part, TextChunk) for token in part.token_ids)
        num_tokens = sum(part.num_tokens for part in run)
        own = self._check(cache, "prefill", num_tokens, ids)
        for part in run:
            if isinstance(part, ImageEmbeds) and part.values.shape[1:] != (self._spec.hidden_size,):
                raise EngineFault(self._spec.engine, "prefill", f"image embeds of shape {part.values.shape} do not fit")
        latencies = self._engine.latencies
        call = FakeCall("prefill", num_tokens, ids, thread_id=threading.get_ident(), want_logits=want_logits)
        fault = self._engine.enter(call, latencies.prefill_s + latencies.prefill_token_s * num_tokens)
        rows = [
            self._weights.embed(part.token_ids) if isinstance(part, TextChunk) else part.values.astype(np.float64)
            for part in run
        ]
        own.append(np.concatenate(rows), self._weights)
        own.begin_answer()
        return self._logits(own, fault) if want_logits else None

    def decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        """Append one token; logits float32 (vocab_size,) after it."""
        own = self._check(cache, "decode", 1, (token_id,))
        call = FakeCall("decode", 1, (token_id,), thread_id=threading.get_ident())
        fault = self._engine.enter(call, self._engine.latencies.decode_s)
        own.append(self._weights.embed((token_id,)), self._weights)
        return self._logits(own, fault)

    def close(self) -> None:
        """Count as closed."""
        if self._is_open:
            self._is_open = False
            self._engine.count_open(-1)

    def _check(self, cache: KVCache, stage: Stage, num_tokens: int, ids: tuple[int, ...]) -> FakeKVCache:
        """Refuse what a real backend would abort on."""
        name, room = self._spec.engine, self._spec.context_length - cache.num_tokens
        if not isinstance(cache, FakeKVCache) or not self._is_open or not cache.is_open:
            raise EngineFault(name, stage, "the language model or the cache is closed, or the cache is not its own")
        if not 0 < num_tokens <= room:
            raise EngineFault(name, stage, f"{num_tokens} tokens do not fit where there is room for {room}")
        for token_id in ids:
            if not 0 <= token_id < self._spec.vocab_size:
                raise EngineFault(name, stage, f"token id {token_id} is outside the vocabulary")
        self._engine.check_room(num_tokens)
        return cache

    def _logits(self, cache: FakeKVCache, fault: FakeFault | None) -> NDArray[np.float32]:
        logits = self._weights.logits(cache)
        script = self._engine.script
        if script is not None:
            step = cache.num_answer_tokens
            eos = sorted(self._engine.tokenizer.eos_token_ids)
            if step < len(script):
                logits[script[step]] = 100.0
            elif eos:
                logits[eos[0]] = 100.0
        if fault is not None:
            return np.full_like(logits, np.nan) if fault.kind == "nan" else logits[:-1].copy()
        return logits


def _script_ids(script: str | bytes | Sequence[int], tokenizer: Tokenizer) -> tuple[int, ...]:
    """Spell a script in tokens of one byte each."""
    if not isinstance(script, str | bytes):
        return tuple(script)
    data = script.encode() if isinstance(script, str) else script
    by_byte = {tokenizer.token_bytes(token_id): token_id for token_id in reversed(range(tokenizer.vocab_size))}
    try:
        return tuple(by_byte[bytes((byte,))] for byte in data)
    except KeyError as error:
        raise ValueError(f"the tokenizer has no token for the byte {error.args[0]!r}") from error
