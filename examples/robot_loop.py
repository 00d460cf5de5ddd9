"""A robot that turns towards the red circle that its camera sees.

    python examples/robot_loop.py [SOURCE] [--answers N]

SOURCE is what `edge_vl.open_source` takes: `0` for a webcam, `rtsp://...`, a picture, or `synthetic`: a drawn camera
that the bundled model can answer about. On a robot, put your motors in place of `print`.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from edge_vl import EdgeVLError, Runtime, open_source
from edge_vl.sources.camera_state import CameraState

TARGET = ("circle", "red")
QUESTION = "Describe the picture as JSON."


def steer(text: str) -> float | None:
    """Return where to turn, -1 (left) to 1 (right), for what the model says; None: the target is not in sight."""
    try:
        objects = json.loads(text)
    except ValueError:  # a model may say anything
        return None
    for thing in objects if isinstance(objects, list) else []:
        if isinstance(thing, dict) and (thing.get("shape"), thing.get("color")) == TARGET:
            return -1.0 if "left" in str(thing.get("place")) else 1.0
    return None


def run(
    runtime: Runtime, source: Iterable[Any], drive: Callable[[float | None, float], object], *, answers: int
) -> None:
    """Drive by what is seen.

    Args:
        runtime: answers.
        source: gives frames; while an answer is made, all but the newest are dropped.
        drive: takes where to turn and the age of the frame in seconds.
        answers: after which it ends; 0: never.
    """
    # An answer that would take longer than 2 s, or be about a frame older than 1 s, is given up: a robot has moved on.
    with runtime.watch(source, QUESTION, deadline_s=2.0, max_frame_age_s=1.0) as watch:
        for answer in itertools.islice(watch, answers or None):
            drive(steer(answer.text), answer.frame_age_s or 0.0)


def main() -> None:
    """Read the command line and drive."""
    parser = argparse.ArgumentParser(description="Turn towards the red circle.")
    parser.add_argument("source", nargs="?", default="synthetic")
    parser.add_argument("--answers", type=int, default=0, help="end after so many; 0: never")
    arguments = parser.parse_args()
    words = {-1.0: "turn left", 1.0: "turn right", None: "look around"}

    def drive(turn: float | None, age_s: float) -> None:
        print(f"{words[turn]}  (frame {age_s * 1000:.0f} ms old)", flush=True)

    try:
        # A camera that is away is waited for; without on_state nobody would know.
        with contextlib.closing(open_source(arguments.source, on_state=tell)) as source, Runtime.open() as runtime:
            run(runtime, source, drive, answers=arguments.answers)
    except EdgeVLError as error:
        sys.exit(f"robot_loop: {error}")


def tell(state: CameraState) -> None:
    """Say what became of the camera."""
    if state.status != "closed":
        print(f"the camera is {state.status}{state.reason and f': {state.reason}'}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
