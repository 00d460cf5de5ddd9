"""What runs on the vision lane: some units of one request, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from edge_vl.engine import ImageEmbeds, VisionEncoder
from edge_vl.errors import EngineFault
from edge_vl.plan import ImageChunk
from edge_vl.request import Settled
from edge_vl.run import Run, unit_name

__all__ = ["Encoded", "Encoding"]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """What came of one unit.

    Attributes:
        encoding: to which it belongs.
        chunk: the unit; None: nothing more comes.
        embeds: its embeds; None where it failed.
        error: why.
        duration_s: how long it took.
        is_corun: the language lane worked for most of that time.
    """

    encoding: Encoding
    chunk: ImageChunk | None
    embeds: ImageEmbeds | None = None
    error: BaseException | None = None
    duration_s: float = 0.0
    is_corun: bool = False


@dataclass(slots=True, eq=False)
class Encoding:
    """Some units of one request on their way through the vision lane.

    Attributes:
        run: the request.
        chunks: the units, in order.
        hidden_size: width that embeds must have.
        deliver: takes what comes of each unit, and of the end; called on the vision lane.
        language_busy_s: says how long the language lane has worked so far.
        limit_s: how long one unit may take.
        should_stop: set from the language lane: the units after the one that runs are not wanted now.
        began_s: when the unit that runs now began, on the monotonic clock; None between units.
        is_abandoned: the lane hangs; nobody waits for it any more.
        is_over: nothing more comes.
    """

    run: Run
    chunks: Sequence[ImageChunk]
    hidden_size: int
    deliver: Callable[[Encoded], None]
    language_busy_s: Callable[[], float]
    limit_s: float
    should_stop: bool = False
    began_s: float | None = None
    is_abandoned: bool = False
    is_over: bool = False
    keys: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        """Collect the content keys."""
        self.keys = frozenset(chunk.unit.key for chunk in self.chunks)

    def work(self, vision: VisionEncoder | None) -> None:
        """Encode. Runs on the vision lane and never raises."""
        error: BaseException | None = None
        try:
            if vision is None:
                raise EngineFault("vision", "encode", "no vision encoder is loaded")
            for number, chunk in enumerate(self.chunks):
                if self.is_abandoned or (number and self.should_stop):  # the first one was decided for
                    break
                self.run.request.begin("encode")
                self._encode(vision, chunk)
        except Settled:
            pass
        except BaseException as caught:
            error = caught
        self.began_s = None
        self.is_over = True
        self.deliver(Encoded(self, None, error=error))

    def _encode(self, vision: VisionEncoder, chunk: ImageChunk) -> None:
        busy_s = self.language_busy_s()
        self.began_s = began_s = time.monotonic()
        embeds = vision.encode(chunk.unit)
        duration_s = time.monotonic() - began_s
        if self.is_abandoned:
            return
        self.run.request.trace.add("encode", began_s, num_tokens=chunk.num_tokens, detail=unit_name(chunk))
        expected = (chunk.num_tokens, self.hidden_size)
        if embeds.values.shape != expected:
            raise EngineFault(
                vision.spec.engine, "encode", f"image embeds have shape {embeds.values.shape}, expected {expected}"
            )
        if not np.isfinite(embeds.values).all():
            raise EngineFault(vision.spec.engine, "encode", "image embeds are not finite")
        is_corun = self.language_busy_s() - busy_s > 0.5 * duration_s
        self.deliver(Encoded(self, chunk, embeds, duration_s=duration_s, is_corun=is_corun))
