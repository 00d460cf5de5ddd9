"""What the ONNX Runtime engine and the whole runtime add to a bare onnxruntime loop, per token and per request.

All three answer the same kind of request in turns, with one thread; medians are compared. The scheduler's own cost (two
lanes, policy, caches, trace, cancelling, text) is the time until the first token that no call of an engine took, in
serial mode and without the reading and cutting of the picture, which the bare loop is spared; likewise per token.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.progress import report
from benchmarks.result import Bar, Result
from edge_vl import Runtime
from edge_vl.engine import (
    EngineStatus,
    ImageEmbeds,
    KVCache,
    LaneOptions,
    LanguageModel,
    LanguageSpec,
    Prefillable,
    Tokenizer,
    VisionEncoder,
    VisionSpec,
)
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl_kernels import normalize_tile
from edge_vl_onnxruntime import engine

NUM_TOKENS = 64
QUESTION = "Describe the picture."
MAX_TOKEN_MS, MAX_REQUEST_MS = 0.2, 2.0
MAX_SCHEDULER_TOKEN_MS, MAX_SCHEDULER_REQUEST_MS = 0.2, 2.0


@dataclass
class Script:
    """What the engine was asked to do for one request: the units, and the runs with an index for each image.

    Attributes:
        units: that were encoded.
        runs: passes of the prompt.
        token_ids: that were decoded.
        prompt_s: time that encoding and prefilling took.
        decode_s: time that each decoded token took.
    """

    units: list[ImageUnit] = field(default_factory=list)
    runs: list[list[TextChunk | int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    prompt_s: float = 0.0
    decode_s: list[float] = field(default_factory=list)

    def clear(self) -> None:
        """Begin anew with the next request."""
        self.units.clear()
        self.runs.clear()
        self.token_ids.clear()
        self.prompt_s = 0.0
        self.decode_s.clear()


@dataclass(frozen=True)
class Times:
    """Durations of one request, in milliseconds.

    Attributes:
        first_token_ms: from the first unit to the first logits.
        token_ms: of each decode after that.
        own_request_ms: of the time until the first token, what no engine took; only for the runtime.
        own_token_ms: likewise for each token after that.
    """

    first_token_ms: float
    token_ms: list[float]
    own_request_ms: float = 0.0
    own_token_ms: float = 0.0


class Recorder:
    """The engine, writing down what it is asked, with a tokenizer that knows no end: every answer has full length."""

    name = "recorder"

    def __init__(self, script: Script) -> None:
        """Write to a script."""
        self._script = script

    def status(self) -> EngineStatus:
        """Pass on."""
        return engine.status()

    def describe(self, model: ModelSpec) -> Mapping[str, Any]:
        """Pass on."""
        return engine.describe(model)

    def load_vision(self, model: ModelSpec, options: LaneOptions) -> VisionEncoder:
        """Load both the encoder and its recorder."""
        return RecordingVision(engine.load_vision(model, options), self._script)

    def load_language(self, model: ModelSpec, options: LaneOptions) -> LanguageModel:
        """Load both the language model and its recorder."""
        return RecordingLanguage(engine.load_language(model, options), self._script)


class RecordingVision:
    """A vision encoder that notes its units."""

    def __init__(self, inner: VisionEncoder, script: Script) -> None:
        """Wrap an encoder."""
        self._inner, self._script = inner, script
        self.close = inner.close

    @property
    def spec(self) -> VisionSpec:
        """Pass on."""
        return self._inner.spec

    def encode(self, unit: ImageUnit) -> ImageEmbeds:
        """Note and pass on."""
        self._script.units.append(unit)
        begin = time.perf_counter()
        embeds = self._inner.encode(unit)
        self._script.prompt_s += time.perf_counter() - begin
        return embeds


class EndlessTokenizer:
    """A tokenizer whose every token is part of the answer."""

    eos_token_ids: frozenset[int] = frozenset()

    def __init__(self, inner: Tokenizer) -> None:
        """Wrap a tokenizer."""
        self.vocab_size, self.special_tokens = inner.vocab_size, inner.special_tokens
        self.encode_text, self.token_bytes = inner.encode_text, inner.token_bytes


class RecordingLanguage:
    """A language model that notes its runs and tokens."""

    def __init__(self, inner: LanguageModel, script: Script) -> None:
        """Wrap a language model."""
        self._inner, self._script = inner, script
        self.new_cache, self.close = inner.new_cache, inner.close

    @property
    def spec(self) -> LanguageSpec:
        """Pass on."""
        return self._inner.spec

    @property
    def tokenizer(self) -> Tokenizer:
        """Pass on, without an end."""
        return EndlessTokenizer(self._inner.tokenizer)

    def prefill(
        self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True
    ) -> NDArray[np.float32] | None:
        """Note and pass on; image embeds are noted by their number."""
        num_images = sum(isinstance(part, int) for noted in self._script.runs for part in noted)
        noted: list[TextChunk | int] = []
        for part in run:
            if isinstance(part, TextChunk):
                noted.append(part)
            else:
                noted.append(num_images)
                num_images += 1
        self._script.runs.append(noted)
        begin = time.perf_counter()
        logits = self._inner.prefill(cache, run, want_logits=want_logits)
        self._script.prompt_s += time.perf_counter() - begin
        return logits

    def decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        """Note and pass on."""
        self._script.token_ids.append(token_id)
        begin = time.perf_counter()
        logits = self._inner.decode(cache, token_id)
        self._script.decode_s.append(time.perf_counter() - begin)
        return logits


class BareLoop:
    """What one would write straight against onnxruntime: NumPy arrays in and out, the past fed back by name."""

    def __init__(self, model: ModelSpec) -> None:
        """Open the three graphs as plainly as possible, with as many threads as the engine."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        settings = model.preprocessor
        self._normalise = (settings["rescale_factor"], settings["image_mean"], settings["image_std"])
        folder = model.path / "onnx"
        self._vision, self._embed, self._decoder = (
            onnxruntime.InferenceSession(folder / f"{stem}.onnx", options, providers=["CPUExecutionProvider"])
            for stem in ("vision_encoder", "embed_tokens", "decoder_model_merged")
        )
        self._wants = {node.name for node in self._decoder.get_inputs()}
        self._past_shapes = {
            node.name: (1, node.shape[1], 0, node.shape[3])
            for node in self._decoder.get_inputs()
            if node.name.startswith("past_key_values")
        }

    def request(self, script: Script) -> Times:
        """Answer one request."""
        start = time.perf_counter()
        tiles = [normalize_tile(unit.pixels, *self._normalise) for unit in script.units]
        mask = np.ones((1, 1, *tiles[0].shape[1:]), bool)
        images = [
            self._vision.run(None, {"pixel_values": tile[None, None], "pixel_attention_mask": mask})[0][0]
            for tile in tiles
        ]
        past = {name: np.zeros(shape, np.float32) for name, shape in self._past_shapes.items()}
        length = 0
        for run in script.runs:
            rows = np.concatenate([images[part] if isinstance(part, int) else self._look_up(part) for part in run])
            length += len(rows)
            _, past = self._step(rows[None], past, length)
        end = time.perf_counter()
        token_ms = []
        for token_id in script.token_ids:
            begin = time.perf_counter()
            length += 1
            _, past = self._step(self._embed.run(None, {"input_ids": np.array([[token_id]])})[0], past, length)
            token_ms.append((time.perf_counter() - begin) * 1e3)
        return Times((end - start) * 1e3, token_ms)

    def _look_up(self, chunk: TextChunk) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = self._embed.run(None, {"input_ids": np.array([chunk.token_ids])})[0][0]
        return rows

    def _step(
        self, rows: NDArray[Any], past: dict[str, Any], length: int
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        feeds = {
            "inputs_embeds": rows,
            "attention_mask": np.ones((1, length), np.int64),
            "position_ids": np.arange(length - rows.shape[1], length)[None],
            "num_logits_to_keep": np.array(1),
        }
        logits, *present = self._decoder.run(None, {k: v for k, v in feeds.items() if k in self._wants} | past)
        return logits[0, -1], dict(zip(past, present, strict=True))


def run(quick: bool) -> Result:
    """Answer the same request in turns: bare loop, engine, whole runtime."""
    repetitions = 15 if quick else 100
    script = Script()
    with _open_runtime(script) as runtime:
        runtime.ask(_picture(0), QUESTION, max_tokens=NUM_TOKENS)
        model = runtime.model
    options = LaneOptions(threads=1)
    vision, language = engine.load_vision(model, options), engine.load_language(model, options)
    bare = BareLoop(model)
    times: dict[str, list[Times]] = {"bare": [], "engine": [], "runtime": []}
    used = Script()
    with _open_runtime(used) as runtime:
        for number in range(repetitions + 3):
            results = (
                bare.request(script),
                _ask_engine(script, vision, language),
                _ask_runtime(runtime, used, _picture(number)),
            )
            if number >= 3:  # the first ones warm up
                for way, result in zip(times, results, strict=True):
                    times[way].append(result)
            if number % 25 == 0:
                report(f"{number} of {repetitions + 3} rounds")
    vision.close()
    language.close()
    table: list[dict[str, str | int | float]] = []
    bars: dict[str, Bar] = {}
    bare_request_ms = bare_token_ms = 0.0
    for way, rounds in times.items():
        request_ms = statistics.median(one.first_token_ms for one in rounds)
        token_ms = statistics.median(value for one in rounds for value in one.token_ms)
        own_request_ms = statistics.median(one.own_request_ms for one in rounds)
        own_token_ms = statistics.median(one.own_token_ms for one in rounds)
        if way == "bare":
            bare_request_ms, bare_token_ms = request_ms, token_ms
        table.append(
            {
                "way": way,
                "first_token_ms": request_ms,
                "token_ms": token_ms,
                "added_per_request_ms": request_ms - bare_request_ms,
                "added_per_token_ms": token_ms - bare_token_ms,
                "own_per_request_ms": own_request_ms,
                "own_per_token_ms": own_token_ms,
                "tiles": len(script.units),
                "passes": len(script.runs),
                "tokens": len(script.token_ids),
                "rounds": repetitions,
            }
        )
        if way == "engine":
            bars["ms added per token"] = Bar(token_ms - bare_token_ms, MAX_TOKEN_MS)
            bars["ms added per request"] = Bar(request_ms - bare_request_ms, MAX_REQUEST_MS)
        if way == "runtime":
            bars["ms of the scheduler per token"] = Bar(own_token_ms, MAX_SCHEDULER_TOKEN_MS)
            bars["ms of the scheduler per request"] = Bar(own_request_ms, MAX_SCHEDULER_REQUEST_MS)
    return Result(bars, table)


def _open_runtime(script: Script) -> Runtime:
    return Runtime.open(vision_engine=Recorder(script), language_engine=Recorder(script), threads=1, mode="serial")


def _ask_engine(script: Script, vision: VisionEncoder, language: LanguageModel) -> Times:
    """Do with the engine what the script says."""
    start = time.perf_counter()
    images = [vision.encode(unit) for unit in script.units]
    cache = language.new_cache()
    for number, run in enumerate(script.runs):
        parts = [images[part] if isinstance(part, int) else part for part in run]
        language.prefill(cache, parts, want_logits=number == len(script.runs) - 1)
    end = time.perf_counter()
    token_ms = []
    for token_id in script.token_ids:
        begin = time.perf_counter()
        language.decode(cache, token_id)
        token_ms.append((time.perf_counter() - begin) * 1e3)
    cache.close()
    return Times((end - start) * 1e3, token_ms)


def _ask_runtime(runtime: Runtime, used: Script, pixels: NDArray[np.uint8]) -> Times:
    """Ask the runtime, and leave out what the bare loop is spared: reading, cutting up and laying out the picture."""
    used.clear()
    timings = runtime.ask(pixels, QUESTION, max_tokens=NUM_TOKENS).timings
    spared_s = sum(timings.stage_s(stage) for stage in ("picture", "tile", "layout"))
    first_s = (timings.first_token_s if timings.first_token_s is not None else timings.total_s) - spared_s
    gaps_s = np.diff(timings.token_s)
    own_token_s = (gaps_s.sum() - sum(used.decode_s)) / len(gaps_s)
    return Times(first_s * 1e3, (gaps_s * 1e3).tolist(), (first_s - used.prompt_s) * 1e3, float(own_token_s) * 1e3)


def _picture(seed: int) -> NDArray[np.uint8]:
    """Return a picture that no other round has, so that nothing can be reused."""
    return np.random.default_rng(seed).integers(0, 256, (480, 640, 3), np.uint8)
