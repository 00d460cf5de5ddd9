"""First token for a new picture and question, against llama-cpp-python's own picture handler.

Model: the SmolVLM-256M shape, longest edge 1024, a 640x480 picture (2x2 tiles and a thumbnail), the same text file for
all. Every question differs and every picture differs, so that nothing is reused. The answer is one token long: the time
of the whole call is the time to the first token, reading the PNG included.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from benchmarks.models import shape_model
from benchmarks.peers import Mtmd, gguf_pair, messages
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from benchmarks.soft_pictures import as_png, soft_picture
from edge_vl import Runtime
from edge_vl.machine import usable_cores

MODEL = "smolvlm-256m"
LONGEST_EDGE = 1024
TEXT_DTYPE = "q8_0"
MAX_RATIO = 0.50
CONTEXT = 2048


def run(quick: bool) -> Result:
    """Ask all in turn, several rounds, and compare medians."""
    num_rounds = 2 if quick else 7
    folder = shape_model(MODEL, longest_edge=LONGEST_EDGE)
    threads = usable_cores()
    ways: dict[str, Callable[[bytes, str], int]] = {}
    with (
        Runtime.open(
            folder,
            vision_engine="onnxruntime",
            vision_dtype="int8",
            language_engine="llama_cpp",
            language_dtype=TEXT_DTYPE,
            context_length=CONTEXT,
            threads=threads,
        ) as mixed,
        Runtime.open(
            folder,
            vision_engine="llama_cpp",
            vision_dtype="fp16",
            language_engine="llama_cpp",
            language_dtype=TEXT_DTYPE,
            context_length=CONTEXT,
            threads=threads,
        ) as single,
    ):
        ways["edge_vl: onnxruntime int8 sees, llama_cpp speaks"] = lambda png, text: _ask(mixed, png, text)
        ways["edge_vl: llama_cpp in both lanes, f16"] = lambda png, text: _ask(single, png, text)
        peers = {
            dtype: Mtmd(*gguf_pair(folder, TEXT_DTYPE, dtype), threads=threads, context_length=CONTEXT)
            for dtype in ("f16", "q8_0")
        }
        for dtype, peer in peers.items():
            ways[f"llama-cpp-python MTMDChatHandler, {dtype} mmproj"] = partial(_ask_peer, peer)
        times_s: dict[str, list[float]] = {name: [] for name in ways}
        num_prompt_tokens: dict[str, int] = {}
        for turn in range(num_rounds + 1):
            for number, (name, way) in enumerate(ways.items()):
                png = as_png(soft_picture(turn * len(ways) + number))
                started_s = time.perf_counter()
                num_prompt_tokens[name] = way(png, f"What is number {turn}?")
                if turn:  # the first turn allocates and warms up
                    times_s[name].append(time.perf_counter() - started_s)
            report(f"round {turn} of {num_rounds}")
        for peer in peers.values():
            peer.close()
    medians_s = {name: statistics.median(times) for name, times in times_s.items()}
    ours, _, f16, q8 = medians_s.values()
    table: list[dict[str, Cell]] = [
        {
            "way": name,
            "median_s": round(median, 3),
            "lowest_s": round(min(times_s[name]), 3),
            "highest_s": round(max(times_s[name]), 3),
            "of_peer_f16": round(median / f16, 3),
            "of_peer_q8_0": round(median / q8, 3),
            "prompt_tokens": num_prompt_tokens[name],
        }
        for name, median in medians_s.items()
    ]
    return Result({"first token, share of MTMDChatHandler with an f16 mmproj": Bar(ours / f16, MAX_RATIO)}, table)


def _ask(runtime: Runtime, png: bytes, question: str) -> int:
    return runtime.ask(png, question, max_tokens=1).usage.prompt_tokens


def _ask_peer(peer: Mtmd, png: bytes, question: str) -> int:
    return peer.first_token(messages(png, question)).prompt_tokens
