"""First token, cold and where part was computed before, against MTMDChatHandler and xllamacpp's server.

Model: the SmolVLM-256M shape, longest edge 1024, pictures of 640x480 (2x2 tiles and a thumbnail), the same text file
for all; everything in one process but xllamacpp, whose times are taken in its own. One round asks everybody in turn:

- cold: a new picture;
- last tile changed: the same question about it after its lower right changed, so that the last tile and the thumbnail
  are others and the rest is equal to the pixel;
- same picture: a new question about that;
- third turn: a conversation about that, each with the answers it gave. MTMDChatHandler keeps nothing between two calls:
  it gets edge_vl's answers as the turns before.

Then the clip: a camera that looks at a still scene, with sensor noise, one question about every frame, with
`reuse="perceptual"`. Its first frame and all refreshes count; the bar takes the mean. The peers get the first few
frames only.

An answer is one token long. What counts of edge_vl and MTMDChatHandler is the whole call, of xllamacpp the time until
its stream brings the first token; all of them get the picture as a PNG. The peers with a q8_0 mmproj are asked cold
only: where xllamacpp reuses a picture it does not need that file, and MTMDChatHandler is always cold.

The peers' prompts are edge_vl's but for one token: they hand the picture to the chat template as a text, which then
writes a space before it. xllamacpp runs as its wheel on PyPI was compiled (for any processor of the kind, without
AVX-512, as its page says), with its defaults but for threads and context.
"""

from __future__ import annotations

import statistics
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.models import shape_model
from benchmarks.peers import Mtmd, Peer, Reply, Turn, Xllamacpp, gguf_pair, messages
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from benchmarks.soft_pictures import as_png, noisy_clip, soft_picture, with_other_corner
from edge_vl import Runtime
from edge_vl.families import family_of
from edge_vl.machine import usable_cores
from edge_vl.models import find_model
from edge_vl.pictures import load_picture
from edge_vl.profile_choice import decide

__all__ = ["Measured", "changed_units", "run"]

MODEL = "smolvlm-256m"
LONGEST_EDGE = 1024
CONTEXT = 2048
VISION, VISION_DTYPE = "onnxruntime", "int8"
LANGUAGE, LANGUAGE_DTYPE = "llama_cpp", "q8_0"
NUM_TURN_TOKENS = 8

COLD, TILE, SAME, TURN, CLIP = "cold", "last tile changed", "same picture", "third turn", "clip"
FIRST_QUESTION = "What do you see in the picture?"
NEW_QUESTION = "How many things are red, and which of them is the largest?"
CONVERSATION = ("Is there a dog?", "Where is it?", "Which colour does it have?")

OURS = f"edge_vl: {VISION} {VISION_DTYPE} sees, {LANGUAGE} {LANGUAGE_DTYPE} speaks"
OURS_SINGLE = f"edge_vl: llama_cpp in both lanes, f16 sees, {LANGUAGE_DTYPE} speaks"
MTMD, MTMD_Q8 = (f"llama-cpp-python MTMDChatHandler, {dtype} mmproj" for dtype in ("f16", "q8_0"))
XLLAMACPP, XLLAMACPP_Q8 = (f"xllamacpp server, {dtype} mmproj" for dtype in ("f16", "q8_0"))

LIMITS = (
    (COLD, MTMD, 0.48),
    (SAME, MTMD, 0.03),
    (SAME, XLLAMACPP, 1.0),
    (TILE, MTMD, 0.25),
    (TILE, XLLAMACPP, 0.25),
    (TURN, MTMD, 0.03),
    (TURN, XLLAMACPP, 1.0),
    (CLIP, MTMD, 0.20),
)
"""Case, peer, highest share of its time."""


def run(quick: bool) -> Result:
    """Ask everybody in turn, several rounds, then play the clip."""
    num_rounds, num_frames, num_peer_frames = (1, 8, 1) if quick else (5, 120, 3)
    folder = shape_model(MODEL, longest_edge=LONGEST_EDGE)
    measured = Measured()
    with ExitStack() as stack:
        ours, peers = _open(folder, stack)
        if not quick:
            _round(ours, peers, _pictures(folder, 0), Measured())  # allocates, and learns what the lanes cost
        for number in range(1, num_rounds + 1):
            _round(ours, peers, _pictures(folder, number), measured)
            report(f"round {number} of {num_rounds}")
        _clip(ours, peers, num_frames, num_peer_frames, measured)
    profile, is_its_choice = _profile_choice(folder)
    bars = {
        f"{case}, share of {peer}": Bar(measured.typical_s(case, OURS) / measured.typical_s(case, peer), limit)
        for case, peer, limit in LIMITS
    }
    bars[f"lanes that profile {profile} would choose otherwise"] = Bar(0 if is_its_choice else 1, 0)
    return Result(bars, measured.table())


@dataclass(frozen=True, slots=True)
class Measured:
    """Replies by case and way, in the order of asking."""

    replies: dict[tuple[str, str], list[Reply]] = field(default_factory=dict)

    def add(self, case: str, way: str, reply: Reply) -> None:
        """Note a reply."""
        self.replies.setdefault((case, way), []).append(reply)

    def typical_s(self, case: str, way: str) -> float:
        """Return what is compared: the mean of our clip, where few frames are slow, and medians otherwise."""
        times_s = [reply.first_token_s for reply in self.replies[case, way]]
        return statistics.fmean(times_s) if case == CLIP and way in (OURS, OURS_SINGLE) else statistics.median(times_s)

    def table(self) -> list[dict[str, Cell]]:
        """Return a row for each case and way."""
        rows: list[dict[str, Cell]] = []
        for (case, way), replies in self.replies.items():
            times_s = [reply.first_token_s for reply in replies]
            typical_s = self.typical_s(case, way)
            rows.append(
                {
                    "case": case,
                    "way": way,
                    "times": len(times_s),
                    "median_s": round(statistics.median(times_s), 4),
                    "mean_s": round(statistics.fmean(times_s), 4),
                    "p95_s": round(float(np.percentile(times_s, 95)), 4) if len(times_s) >= 20 else None,
                    "lowest_s": round(min(times_s), 4),
                    "highest_s": round(max(times_s), 4),
                    "of_mtmd_f16": round(typical_s / self.typical_s(case, MTMD), 4),
                    "of_xllamacpp_f16": round(typical_s / self.typical_s(case, XLLAMACPP), 4),
                    "prompt_tokens": int(statistics.median(reply.prompt_tokens for reply in replies)),
                    "kept_tokens": int(statistics.median(reply.kept_tokens for reply in replies)),
                }
            )
        return rows


def _open(folder: Path, stack: ExitStack) -> tuple[dict[str, Runtime], dict[str, Peer]]:
    threads = usable_cores()
    ours = {
        name: stack.enter_context(
            Runtime.open(
                folder,
                vision_engine=vision,
                vision_dtype=dtype,
                language_engine=LANGUAGE,
                language_dtype=LANGUAGE_DTYPE,
                context_length=CONTEXT,
                threads=threads,
            )
        )
        for name, vision, dtype in ((OURS, VISION, VISION_DTYPE), (OURS_SINGLE, "llama_cpp", "fp16"))
    }
    peers: dict[str, Peer] = {}
    for name, kind, mmproj in (
        (MTMD, Mtmd, "f16"),
        (MTMD_Q8, Mtmd, "q8_0"),
        (XLLAMACPP, Xllamacpp, "f16"),
        (XLLAMACPP_Q8, Xllamacpp, "q8_0"),
    ):
        peers[name] = kind(*gguf_pair(folder, LANGUAGE_DTYPE, mmproj), threads=threads, context_length=CONTEXT)
        stack.callback(peers[name].close)
    return ours, peers


def _pictures(folder: Path, number: int) -> tuple[bytes, bytes]:
    """Return the pictures of a round: a new one, and the same with another last tile.

    Raises:
        RuntimeError: more than the last tile and the thumbnail would change, or less.
    """
    picture = soft_picture(2 * number)
    changed = with_other_corner(picture, 2 * number + 1)
    units = changed_units(folder, picture, changed)
    if units != ["tile 2,2", "thumbnail"]:
        raise RuntimeError(f"round {number}: only the last tile and the thumbnail should change, not {units}")
    return as_png(picture), as_png(changed)


def _round(ours: dict[str, Runtime], peers: dict[str, Peer], pictures: tuple[bytes, bytes], measured: Measured) -> None:
    """Ask everybody in every case."""
    before, after = pictures
    asked = ((COLD, before, FIRST_QUESTION), (TILE, after, FIRST_QUESTION), (SAME, after, NEW_QUESTION))
    for case, png, question in asked:
        for name, runtime in ours.items():
            measured.add(case, name, _ask(runtime, png, question))
        for name, peer in peers.items():
            if case == COLD or name not in (MTMD_Q8, XLLAMACPP_Q8):
                measured.add(case, name, peer.first_token(messages(png, question)))
    turns: dict[str, list[Turn]] = {}
    for name, runtime in ours.items():
        turns[name], reply = _converse(runtime, after)
        measured.add(TURN, name, reply)
    for name in (MTMD, XLLAMACPP):
        peer = peers[name]
        said = _turns_before(peer, after) if isinstance(peer, Xllamacpp) else turns[OURS]
        measured.add(TURN, name, peer.first_token(messages(after, CONVERSATION[-1], said)))


def _ask(runtime: Runtime, png: bytes, question: str, *, stream: str = "") -> Reply:
    started_s = time.perf_counter()
    if stream:
        answer = runtime.ask(png, question, max_tokens=1, reuse="perceptual", stream=stream)
    else:
        answer = runtime.ask(png, question, max_tokens=1)
    took_s = time.perf_counter() - started_s
    return Reply(took_s, answer.text, answer.usage.prompt_tokens, answer.reused["kv_tokens"])


def _converse(runtime: Runtime, png: bytes) -> tuple[list[Turn], Reply]:
    """Return the first two turns of a conversation, and what the first token of the third took."""
    turns: list[Turn] = []
    with runtime.conversation() as conversation:
        for question in CONVERSATION[:-1]:
            answer = conversation.ask(question, [] if turns else png, max_tokens=NUM_TURN_TOKENS)
            turns.append((question, answer.text))
        started_s = time.perf_counter()
        answer = conversation.ask(CONVERSATION[-1], max_tokens=1)
        took_s = time.perf_counter() - started_s
    return turns, Reply(took_s, answer.text, answer.usage.prompt_tokens, answer.reused["kv_tokens"])


def _turns_before(peer: Xllamacpp, png: bytes) -> list[Turn]:
    turns: list[Turn] = []
    for question in CONVERSATION[:-1]:
        turns.append((question, peer.ask(messages(png, question, turns), max_tokens=NUM_TURN_TOKENS).text))
    return turns


def _clip(
    ours: dict[str, Runtime], peers: dict[str, Peer], num_frames: int, num_peer_frames: int, measured: Measured
) -> None:
    """Play the clip to both of ours and its first frames to the peers, frame by frame in turn."""
    for number, pixels in enumerate(noisy_clip(soft_picture(1_000_000), num_frames, seed=0)):
        png = as_png(pixels)
        for name, runtime in ours.items():
            measured.add(CLIP, name, _ask(runtime, png, FIRST_QUESTION, stream="camera"))
        if number < num_peer_frames:
            for name in (MTMD, XLLAMACPP):
                measured.add(CLIP, name, peers[name].first_token(messages(png, FIRST_QUESTION)))
        if (number + 1) % 20 == 0:
            report(f"frame {number + 1} of {num_frames}")


def _profile_choice(folder: Path) -> tuple[str, bool]:
    """Return the id of this machine's device profile, and whether it chooses the lanes of `OURS` by itself."""
    decision = decide(find_model(folder), context_length=CONTEXT)
    lanes = [(lane.engine.name, lane.options.dtype) for lane in decision.lanes]
    return decision.profile.id, lanes == [(VISION, VISION_DTYPE), (LANGUAGE, LANGUAGE_DTYPE)]


def changed_units(folder: Path, before: NDArray[np.uint8], after: NDArray[np.uint8]) -> list[str]:
    """Return which units of a picture differ, such as `tile 2,2`, as the model's family cuts it.

    Args:
        folder: of the model.
        before: uint8 (height, width, 3), RGB.
        after: likewise, of the same size.
    """
    family = family_of(find_model(folder))
    assert family is not None
    pairs = zip(*(family.tile(load_picture(pixels)).units for pixels in (before, after)), strict=True)
    return [
        f"{one.kind} {one.row},{one.column}" if one.kind == "tile" else one.kind
        for one, other in pairs
        if one.key != other.key
    ]
