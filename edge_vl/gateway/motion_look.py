"""Looks for motion at a low rate, also while an answer is made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from edge_vl.frame import Frame
from edge_vl.gateway.motion_spell import QUIET_S, MotionSpell
from edge_vl.sources.motion_gate import MotionGate
from edge_vl.sources.source import LiveSource

__all__ = ["LOOK_S", "MotionLook"]

LOOK_S = 0.2
"""From one look to the next."""

MOTION_THRESHOLD = 0.01
"""Share of the picture that has to differ."""


class MotionLook:
    """Shows a live source's newest frame to a motion gate, again and again."""

    def __init__(
        self,
        source: LiveSource,
        max_silence_s: float,
        *,
        on_pass: Callable[[Frame], None],
        on_motion: Callable[[bool, int], None],
    ) -> None:
        """Begin without a background.

        Args:
            source: gives the frames.
            max_silence_s: after so long a frame passes all the same.
            on_pass: called on the event loop's thread with a frame that passed.
            on_motion: called there when motion has begun (true) and when it has ended (false), with the index of the
                newest frame.
        """
        self._source = source
        self._gate = MotionGate(MOTION_THRESHOLD, max_silence_s=max_silence_s)
        self._spell = MotionSpell(QUIET_S)
        self._on_pass = on_pass
        self._on_motion = on_motion
        self._index = -1

    async def look(self) -> None:
        """Look once, then wait for the next look."""
        frame, has_moved = self._source.latest(), False
        if frame is not None and frame.index > self._index:
            is_first = self._index < 0
            self._index = frame.index
            if await asyncio.to_thread(self._gate.passes, frame):
                has_moved = not is_first and self._gate.changed_share >= MOTION_THRESHOLD
                self._on_pass(frame)
        change = self._spell.look(has_moved, time.monotonic())
        if change is not None:
            self._on_motion(change, self._index)
        del frame
        await asyncio.sleep(LOOK_S)
