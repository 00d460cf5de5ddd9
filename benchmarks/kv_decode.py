"""Speed of the cut decoder with compressed KV against ONNX Runtime's best, a plain export, llama.cpp.

One model of SmolLM2-135M's shape with the same random weights everywhere, float32 and 4 bits (32 weights to a scale,
8-bit activations); llama.cpp has float16 and q4_0 with an 8-bit head instead. *Whole* is the graph around
GroupQueryAttention with past and present in one buffer, bound once; *plain* an export in plain operators, its present
fed back as values that are not copied. Ours is the lane of the engine, embedding and check of the logits included,
cut from the former graph, and once from the latter.

Caches are not filled by prefill: the same made-up keys and values go by append-only steps into our pages, straight into
the buffers of the others, and into llama.cpp by way of a saved state. The logits of the first token are compared, so
that all do the same work. All run in one process and take turns, a few tokens each; ratios are medians over the
rounds. Closing a block costs once in 64 tokens, which a median hides; `kv-kernels` has it.

Run it on an idle machine: with two threads the others wait actively for each other, which takes them many times as long
where a core is taken away from them, while ours is hardly touched. That would be no fair comparison.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.decode_memory import loaded_bytes
from benchmarks.decode_models import WEIGHTS, DecodeModels, decode_models
from benchmarks.decode_peers import Decoder, Growing, LlamaCpp, SharedBuffers, token_embeds
from benchmarks.decode_turns import Times, ratio, take_turns
from benchmarks.kv_rows import KVRowsSource, append_rows
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl.engine import LaneOptions
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.machine import usable_cores
from edge_vl.models import find_model
from edge_vl_onnxruntime.cache_formats import cache_format
from edge_vl_onnxruntime.cut_language import CutLanguageModel
from edge_vl_onnxruntime.engine import engine

WHOLE, PLAIN = "whole, shared buffers", "plain, bound"
INT8, FLOAT16 = "ours int8", "ours f16"
OURS = ("f32", "f16", "int8", "int4")
FROM_PLAIN = "ours int8, cut from plain"
LLAMA = ("f16", "q8_0")

BAR_ENTRIES = 8192
MIN_OF_WHOLE = {"fp32": 1.7, "q4": 2.5}
MIN_OF_PLAIN = {"q4": 8.0}
MAX_EMPTY, MAX_OF_F16, MAX_MEMORY = 1.03, 1.02, 1.15
TOKEN_ID = 1000

_ROOM = 128  # entries behind those that are filled in
_ERRORS = {"f32": 1e-4, "f16": 5e-3, "int8": 0.06, "int4": 0.7}
"""How far logits may be off, by precision of the cache, where the weights are float32. Normally distributed keys and
values are the worst that can be quantised, and thirty layers of random weights make it worse; logits that have nothing
to do with each other are off by 1.4."""

_LLAMA_ERROR = 0.1  # weights and activations in float16
_Q4_ERROR = 0.3
"""What rounding activations to 8 bits makes of differences that are next to nothing, and other 4-bit weights too."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        entries: of the caches, for all decoders; for the last of `long`, ours alone.
        long: for ours in f16 and int8 and, except for the last one, llama.cpp.
        num_rounds: turns of each decoder.
        num_steps: tokens of a turn.
        weights: precisions of them.
        is_small: a model of few layers.
    """

    entries: Sequence[int] = (0, 1024, 4096, BAR_ENTRIES)
    long: Sequence[int] = (16_384, 32_768)
    num_rounds: int = 9
    num_steps: int = 4
    weights: Sequence[str] = WEIGHTS
    is_small: bool = False


QUICK = Plan(entries=(0, 512), long=(1024, 2048), num_rounds=3, num_steps=2, weights=WEIGHTS[1:], is_small=True)


class Cut:
    """The language lane of the engine over the cut graph."""

    def __init__(self, name: str, language: CutLanguageModel, rows: KVRowsSource, *, owns_pieces: bool) -> None:
        """Take a model, and the pieces with it unless they are another's."""
        self.name = name
        self._owns_pieces = owns_pieces
        self.language = language
        self._rows = rows
        self._cache = language.new_cache()

    @classmethod
    def load(
        cls, name: str, folder: Path, rows: KVRowsSource, *, weights: str, kv: str, threads: int, context_length: int
    ) -> Self:
        """Load a model; what the engine says about it is reported.

        Raises:
            RuntimeError: it was not cut.
        """
        options = LaneOptions(
            dtype=weights, threads=threads, context_length=context_length, kv=parse_kv_policy(kv), attention="cut"
        )
        language = engine.load_language(find_model(folder), options)
        report(f"  {name}: {'; '.join(language.spec.notes)}")
        if not isinstance(language, CutLanguageModel):
            raise RuntimeError(f"{folder}: the graph was not cut")
        return cls(name, language, rows, owns_pieces=True)

    def in_other_precision(self, name: str, kv: str) -> Self:
        """Return one over the same pieces: two loads of the same weights differ by more than two precisions do."""
        policy = parse_kv_policy(kv)
        stored = cache_format(policy, self.language.kernels.cache_format.geometry)
        return type(self)(name, self.language.with_format(stored, policy.name), self._rows, owns_pieces=False)

    def fill(self, num_entries: int) -> None:
        """Begin a new cache and append the entries."""
        self._cache.close()
        self._cache = self.language.new_cache()
        append_rows(self._cache, self.language.kernels, self._rows, num_entries)

    def step(self) -> NDArray[np.float32]:
        """Decode the token."""
        return self.language.decode(self._cache, TOKEN_ID)

    def close(self) -> None:
        """Give everything back."""
        self._cache.close()
        if self._owns_pieces:
            self.language.close()
        else:
            self.language.detach()


def run(quick: bool) -> Result:
    """Measure both precisions of the weights with one thread and with two, then memory."""
    plan = QUICK if quick else Plan()
    models = decode_models(is_small=plan.is_small)
    kept: dict[str, Bar] = {}
    table: list[dict[str, Cell]] = []
    for weights in plan.weights:
        for threads in (1,) if quick or usable_cores() < 2 else (1, 2):
            case = f"{weights} weights, {threads} thread{'s' * (threads > 1)}"
            report(f"{case}; load average {os.getloadavg()[0]:.2f}, this process included")
            found = _measure(models, weights, threads, plan)
            table += [row for entries, times in found.items() for row in _rows(weights, threads, entries, times)]
            if not quick:
                kept |= bars(case, weights, found)
    for weights in plan.weights:
        whole, cut = (loaded_bytes(models.gqa, weights, attention) for attention in ("whole", "cut"))
        report(f"{weights} weights, loaded: whole {whole / 2**20:.0f} MiB, cut {cut / 2**20:.0f} MiB")
        if not quick:
            kept[f"{weights} weights, memory of the loaded pieces, of the whole's"] = Bar(cut / whole, MAX_MEMORY)
        for row in table:
            if row["weights"] == weights and row["system"] in (WHOLE, INT8):
                row["loaded_mib"] = round((whole if row["system"] == WHOLE else cut) / 2**20, 1)
    return Result(kept, table)


def _measure(models: DecodeModels, weights: str, threads: int, plan: Plan) -> dict[int, dict[str, Times]]:
    """Return times by entries and decoder."""
    found: dict[int, dict[str, Times]] = {}
    with _opened(models, weights, threads, plan) as decoders:
        for num_entries in (*plan.entries, *plan.long):
            chosen = [decoder for decoder in decoders if is_measured(decoder.name, num_entries, plan)]
            report(f"  {num_entries} entries: {', '.join(decoder.name for decoder in chosen)}")
            found[num_entries] = take_turns(
                chosen,
                num_entries,
                num_rounds=plan.num_rounds,
                num_steps=plan.num_steps,
                max_errors={decoder.name: max_error(decoder.name, weights) for decoder in chosen},
            )
    return found


def is_measured(name: str, num_entries: int, plan: Plan) -> bool:
    """Say whether a decoder takes part with so many entries."""
    if name.startswith("llama"):
        return num_entries in (plan.entries[1], plan.entries[-1], *plan.long[:-1])
    return num_entries in plan.entries or name in (FLOAT16, INT8)


def max_error(name: str, weights: str) -> float:
    """Return how far a decoder's logits may be off those of the whole graph, relatively."""
    precision = next((kind for kind in _ERRORS if kind in name.replace(",", "").split()), "f32")
    error = _LLAMA_ERROR if name.startswith("llama") else _ERRORS[precision]
    return error if weights == "fp32" else max(error, _Q4_ERROR)


@contextlib.contextmanager
def _opened(models: DecodeModels, weights: str, threads: int, plan: Plan) -> Iterator[list[Decoder]]:
    """Load all decoders, the whole graph first; close them afterwards."""
    text = models.config()
    top, longest = max(plan.entries) + _ROOM, max(plan.long) + _ROOM
    rows = KVRowsSource(text["num_hidden_layers"], text["num_key_value_heads"], text["head_dim"], max_entries=longest)
    file = f"decoder_model_merged{'' if weights == 'fp32' else '_q4'}.onnx"
    given: dict[str, Any] = {
        "threads": threads, "embeds": token_embeds(models.gqa, TOKEN_ID), "vocab_size": text["vocab_size"]
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        decoders: list[Decoder] = []

        def add(decoder: Decoder) -> None:
            stack.callback(decoder.close)
            decoders.append(decoder)

        add(SharedBuffers(WHOLE, models.gqa / "onnx" / file, rows, capacity=top, **given))
        add(Growing(PLAIN, models.plain / "onnx" / file, rows, **given))
        lane: dict[str, Any] = {"weights": weights, "threads": threads, "context_length": longest}
        first = Cut.load(f"ours {OURS[0]}", models.gqa, rows, kv=OURS[0], **lane)
        add(first)
        for kv in OURS[1:]:
            add(first.in_other_precision(f"ours {kv}", kv))
        add(Cut.load(FROM_PLAIN, models.plain, rows, kv="int8", **lane))
        if importlib.util.find_spec("llama_cpp") is not None:
            for kv in LLAMA:
                add(
                    LlamaCpp(
                        f"llama.cpp {kv}", models.gguf(weights), rows, kv=kv, capacity=plan.long[-2] + _ROOM,
                        threads=threads, token_id=TOKEN_ID,
                    )
                )  # fmt: skip
        yield decoders
        decoders.clear()
    gc.collect()


def _rows(weights: str, threads: int, num_entries: int, times: dict[str, Times]) -> list[dict[str, Cell]]:
    table: list[dict[str, Cell]] = []
    for name, found in times.items():
        median_s = statistics.median(found.of_rounds)
        speedup = {peer: ratio(times[peer], found) if peer in times else None for peer in (WHOLE, PLAIN, FLOAT16)}
        table.append(
            {
                "weights": weights,
                "threads": threads,
                "entries": num_entries,
                "system": name,
                "median_ms": round(median_s * 1e3, 3),
                "mean_ms": round(statistics.mean(found.of_steps) * 1e3, 3),
                "lowest_ms": round(min(found.of_steps) * 1e3, 3),
                "tokens_per_s": round(1 / median_s, 1),
                "speed_of_whole": _rounded(speedup[WHOLE]),
                "speed_of_plain": _rounded(speedup[PLAIN]),
                "speed_of_our_f16": _rounded(speedup[FLOAT16]),
                "loaded_mib": None,
            }
        )
    return table


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def bars(case: str, weights: str, found: Mapping[int, Mapping[str, Times]]) -> dict[str, Bar]:
    """Return what must hold for int8 KV.

    Args:
        case: what the names of the bars begin with.
        weights: of `WEIGHTS`.
        found: times by entries and decoder; at most entries, ours alone.
    """
    longest = max(found)
    at_bar = found[BAR_ENTRIES]
    of_f16 = {entries: ratio(times[INT8], times[FLOAT16]) for entries, times in found.items()}
    shorter = sorted(of_f16)[:-1]
    kept = {
        f"{case}, speed at {BAR_ENTRIES} entries, of the whole graph's": Bar(
            ratio(at_bar[WHOLE], at_bar[INT8]), MIN_OF_WHOLE[weights], at_least=True
        ),
        f"{case}, time at an empty cache, of the whole graph's": Bar(ratio(found[0][INT8], found[0][WHOLE]), MAX_EMPTY),
        f"{case}, time with int8 KV up to {shorter[-1]} entries, of our f16's": Bar(
            max(of_f16[entries] for entries in shorter), MAX_OF_F16
        ),
        f"{case}, time with int8 KV at {longest} entries, of our f16's": Bar(of_f16[longest], 1.0),
    }
    if weights in MIN_OF_PLAIN:
        kept[f"{case}, speed at {BAR_ENTRIES} entries, of the plain export's"] = Bar(
            ratio(at_bar[PLAIN], at_bar[INT8]), MIN_OF_PLAIN[weights], at_least=True
        )
    return kept
