"""How much of long conversations about one picture is reused: 8, 32 and 128 turns.

A conversation is about one picture, which comes with the first turn. Its reuse rate is hits / max(queries, 1) over all
turns: of the prompts' cache entries, those that were not computed again. Memory saved is the share of entries that no
turn had to fill, against a cache for each turn of its own, which would hold its prompt and its answer; every entry
takes the same bytes. The time is that to a turn's first token, the whole call of an answer of one token.

128 turns must fit into the bundled model's 2,048 entries: there, questions are of one or two words, and all answers one
token long. The SmolVLM-256M shape (longest edge 1024, 2x2 tiles and a thumbnail) has room for questions of a sentence.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import shape_model
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from benchmarks.soft_pictures import soft_picture
from edge_vl import Answer, Runtime
from edge_vl.machine import usable_cores
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene

__all__ = ["Reuse", "hits", "run", "talk"]

SHAPE = "smolvlm-256m"
SHAPE_CONTEXT = 4096
LIMITS = {8: (0.32, 0.12), 32: (0.68, 0.39), 128: (0.89, 0.67)}
"""By number of turns: lowest reuse rate, lowest share of memory saved."""

SHORT_QUESTIONS = ("How many?", "Where?", "What?", "What shape?")
QUESTIONS = ("Is there a dog in it?", "What is at the top left?", "How many things are red?", "Where is the largest?")


@dataclass(frozen=True, slots=True)
class Reuse:
    """What a conversation computed and reused.

    Attributes:
        num_queries: cache entries of all its prompts.
        num_hits: those of them that were not computed again.
        num_answered: entries that its answers added.
        num_encoded: image units that were encoded.
        last_prompt_tokens: entries of the last prompt.
        first_token_s: of each turn, in order.
    """

    num_queries: int
    num_hits: int
    num_answered: int
    num_encoded: int
    last_prompt_tokens: int
    first_token_s: tuple[float, ...]

    @property
    def rate(self) -> float:
        """Share of the prompts' entries that were not computed again."""
        return self.num_hits / max(self.num_queries, 1)

    @property
    def memory_saved(self) -> float:
        """Share of the entries that a cache for each turn would hold and that none had to fill."""
        return self.num_hits / max(self.num_queries + self.num_answered, 1)


def run(quick: bool) -> Result:
    """Hold conversations of every length, on the bundled model with both engines and on a real shape."""
    bars: dict[str, Bar] = {}
    table: list[dict[str, Cell]] = []
    for engine in ("onnxruntime", "llama_cpp"):
        with Runtime.open("bundled", vision_engine=engine, language_engine=engine, threads=1) as runtime:
            for num_turns in LIMITS:
                seeds = range(num_turns, num_turns + (1 if quick else 5))  # no picture is seen twice
                found = [talk(runtime, _scene(seed), SHORT_QUESTIONS, num_turns) for seed in seeds]
                _add(bars, table, f"bundled, {engine}", num_turns, found)
    if not quick:
        with Runtime.open(
            shape_model(SHAPE, longest_edge=1024), context_length=SHAPE_CONTEXT, threads=usable_cores()
        ) as runtime:
            for num_turns in LIMITS:
                found = [talk(runtime, soft_picture(num_turns), QUESTIONS, num_turns)]
                _add(bars, table, f"{SHAPE}, {runtime.language_spec.engine}", num_turns, found)
    return Result(bars, table)


def talk(runtime: Runtime, picture: NDArray[np.uint8], questions: tuple[str, ...], num_turns: int) -> Reuse:
    """Hold a conversation about one picture, the questions in turn.

    Raises:
        RuntimeError: what an answer says it reused is not what its trace says.
    """
    num_queries = num_hits = num_answered = num_encoded = last_prompt_tokens = 0
    times_s: list[float] = []
    with runtime.conversation() as conversation:
        for number, question in enumerate(itertools.islice(itertools.cycle(questions), num_turns)):
            started_s = time.perf_counter()
            answer = conversation.ask(question, [] if number else picture, max_tokens=1)
            times_s.append(time.perf_counter() - started_s)
            last_prompt_tokens = answer.usage.prompt_tokens
            num_queries += last_prompt_tokens
            num_hits += hits(answer)
            num_answered += answer.usage.completion_tokens
            num_encoded += sum(span.stage == "encode" and span.source == "computed" for span in answer.timings.spans)
    return Reuse(num_queries, num_hits, num_answered, num_encoded, last_prompt_tokens, tuple(times_s))


def hits(answer: Answer) -> int:
    """Return how many entries of a prompt were not computed again.

    Raises:
        RuntimeError: the answer and its trace disagree.
    """
    told = answer.reused["kv_tokens"] + answer.reused.get("grafted_tokens", 0)
    traced = answer.timings.reuse_rate * answer.usage.prompt_tokens
    if abs(traced - told) > 0.5:
        raise RuntimeError(f"the answer says that {told} entries were reused, its trace says {traced:.1f}")
    return told


def _scene(seed: int) -> NDArray[np.uint8]:
    return render(random_scene(seed, held_out=True), 320, 240)


def _add(
    bars: dict[str, Bar], table: list[dict[str, Cell]], model: str, num_turns: int, conversations: list[Reuse]
) -> None:
    """Add a row, and the bars of a number of turns: the worst conversation counts."""
    rate = min(found.rate for found in conversations)
    saved = min(found.memory_saved for found in conversations)
    least_rate, least_saved = LIMITS[num_turns]
    bars[f"reuse rate of {num_turns} turns, {model}"] = Bar(rate, least_rate, at_least=True)
    bars[f"memory saved by {num_turns} turns, {model}"] = Bar(saved, least_saved, at_least=True)
    first_s = [found.first_token_s[0] for found in conversations]
    later_s = [time_s for found in conversations for time_s in found.first_token_s[1:]]
    all_s = first_s + later_s
    table.append(
        {
            "model": model,
            "turns": num_turns,
            "conversations": len(conversations),
            "reuse_rate": round(rate, 4),
            "memory_saved": round(saved, 4),
            "p95_first_token_s": round(float(np.percentile(all_s, 95)), 4),
            "median_first_token_s": round(float(np.median(all_s)), 4),
            "first_turn_s": round(float(np.median(first_s)), 4),
            "last_prompt_tokens": max(found.last_prompt_tokens for found in conversations),
            "units_encoded": max(found.num_encoded for found in conversations),
        }
    )
    report(f"{model}, {num_turns} turns: reuse rate {rate:.3f}, memory saved {saved:.3f}")
