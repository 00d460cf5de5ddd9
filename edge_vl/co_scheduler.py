"""The co-scheduler: brings every request to its end, and outlives a lane that hangs or dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal

from edge_vl.costs import CostBook
from edge_vl.embeds_cache import EmbedsCache
from edge_vl.errors import EngineFault
from edge_vl.lanes import Lanes
from edge_vl.loop import LaneKind, Loop, Op
from edge_vl.mode_choice import Mode
from edge_vl.op_watch import OpWatch
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl.policy import Policy, next_step
from edge_vl.resident import Resident
from edge_vl.run import Job
from edge_vl.scheduler_limits import SchedulerLimits

__all__ = ["CoScheduler"]


class CoScheduler:
    """Runs requests on both lanes. All methods may be called from any thread.

    Attributes:
        book: what units cost.
        embeds: image embeds kept, with counters.
        limits: bounds.
    """

    def __init__(
        self,
        lanes: Lanes,
        *,
        mode: Mode | Literal["auto"] = "auto",
        book: CostBook | None = None,
        limits: SchedulerLimits | None = None,
        policy: Policy = next_step,
    ) -> None:
        """Take over loaded lanes.

        Args:
            lanes: what sees and speaks; closed with this.
            mode: how the lanes take turns; `auto` learns it.
            book: what units cost, from before; None: nothing is known.
            limits: bounds.
            policy: decides what is done next.
        """
        self.book = CostBook() if book is None else book
        self._lanes = lanes
        self._mode: Mode | Literal["auto"] = mode
        self.limits = limits or SchedulerLimits()
        self._policy = policy
        self.embeds = EmbedsCache(self.limits.max_embeds_bytes)
        self._lock = threading.RLock()
        self._head: TextChunk | None = None
        self._num_faults: dict[LaneKind, int] = {"vision": 0, "language": 0}
        self._rebuilt: set[LaneKind] = set()
        self._lost: dict[LaneKind, EngineFault] = {}
        self._waiting: list[Job] = []
        self._is_closed = False
        self._watch = OpWatch(self._look)
        self._loop = self._new_loop()

    @property
    def num_abandoned(self) -> int:
        """Threads that hang in a native call and cannot be ended."""
        return self._lanes.num_abandoned

    def submit(self, job: Job) -> None:
        """Queue a request."""
        with self._lock:
            fault = self._fault_for(job)
            if fault is None:
                if self._loop.is_abandoned:
                    self._waiting.append(job)  # the lane is being loaded once more
                else:
                    self._loop.submit(job)
                return
        self._refuse(job, fault)

    def backlog_s(self) -> float:
        """Return the device time that requests before a new one still need, as far as it is known."""
        estimates = (job.request.progress.remaining_s for job in self._loop.jobs())
        return sum(estimate for estimate in estimates if estimate is not None)

    def num_missing(self, units: Sequence[ImageUnit]) -> int:
        """Return how many of these units have no image embeds that are kept."""
        return len({unit.key for unit in units if unit.key not in self.embeds})

    def pin(self, head: TextChunk, owned: Resident | None = None) -> None:
        """Prefill text that prompts begin with, before any picture arrives, and keep it.

        Args:
            head: the text.
            owned: the cache of a conversation that begins with it; None: every prompt does.
        """
        with self._lock:
            if owned is None:
                self._head = head
            if not self._is_closed and not self._loop.is_abandoned:
                self._lanes.language_lane.post(partial(self._loop.pin, head, owned))

    def on_language_lane(self, job: Callable[[], None]) -> None:
        """Run a job on the language lane between two steps; at once when the lane is closed."""
        try:
            self._lanes.language_lane.submit(job)
        except RuntimeError:
            job()

    def finish(self) -> None:
        """Give all caches back, close both lanes behind what they do, and take no more requests. Does not wait."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, []
            self._lanes.language_lane.post(self._close_loop)
            self._lanes.finish()
        self._watch.finish()
        for job in waiting:
            self._refuse(job, EngineFault(self._engine_of("language"), "load", "the runtime was closed meanwhile"))

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of both lanes, at most `timeout_s` for each. After `finish`."""
        self._lanes.wait(timeout_s)
        self._watch.close()

    def _new_loop(self) -> Loop:
        return Loop(
            self._lanes,
            mode=self._mode,
            book=self.book,
            embeds=self.embeds,
            limits=self.limits,
            policy=self._policy,
            watch=self._watch,
            on_fault=self._note_fault,
            on_success=self._note_success,
        )

    def _fault_for(self, job: Job) -> EngineFault | None:
        """Return why a request cannot be answered any more; None: it can."""
        needed: tuple[LaneKind, ...] = ("language", "vision") if job.plan.images else ("language",)
        return next((self._lost[lane] for lane in needed if lane in self._lost), None)

    # Recovery

    def _look(self) -> bool:
        """Look for calls that do not come back. On the watch's thread."""
        now_s = time.monotonic()
        for lane, op in self._loop.ops():
            if now_s - op.began_s > op.limit_s:
                what = f"{op.stage} did not come back within {op.limit_s:.3g} s"
                self._replace(lane, EngineFault(self._engine_of(lane), op.stage, what), op)
        return self._loop.has_work

    def _note_success(self, lane: LaneKind) -> None:
        self._num_faults[lane] = 0

    def _note_fault(self, lane: LaneKind) -> None:
        """Count a failure; several in a row, and the lane counts as dead. On the language lane."""
        self._num_faults[lane] += 1
        if self._num_faults[lane] >= self.limits.max_faults_in_row:
            what = f"{self._num_faults[lane]} calls failed, one after the other"
            self._replace(lane, EngineFault(self._engine_of(lane), "load", what), None)

    def _replace(self, lane: LaneKind, fault: EngineFault, op: Op | None) -> None:
        """End what the lane was doing, and load it once more; the second time it stays lost.

        Args:
            lane: which.
            fault: why.
            op: the call that hangs in it; None: the lane is dead, and this is called on the language lane.
        """
        with self._lock:
            if self._is_closed or lane in self._lost:
                return
            left = self._loop.abandon(op) if lane == "language" else ([], [])
            if left is None:
                return
            begun, waiting = left
            self._waiting += waiting
            self._num_faults[lane] = 0
            if lane in self._rebuilt or not self._can_reload(lane):
                fault = EngineFault(
                    fault.engine, fault.stage, f"{fault.cause}; the {lane} lane is lost, open a new runtime"
                )
                self._lost[lane] = fault
            self._rebuilt.add(lane)
            if lane == "vision":
                self._replace_vision(fault, op)
            else:
                self._replace_language(is_hung=op is not None)
        for job in begun:  # without the lock: whoever is told may hold one of his own
            self._refuse(job, fault)

    def _can_reload(self, lane: LaneKind) -> bool:
        return (self._lanes.load_vision if lane == "vision" else self._lanes.load_language) is not None

    def _replace_vision(self, fault: EngineFault, op: Op | None) -> None:
        encoding = None if op is None else op.encoding
        if encoding is not None:
            encoding.is_abandoned = True  # at once: the language lane may be busy for long
        loading = self._lanes.replace_vision(is_hung=op is not None, reload="vision" not in self._lost)
        loading.add_done_callback(partial(self._note_reload, "vision"))
        if encoding is not None:
            self._lanes.language_lane.post(lambda: self._loop.vision_is_lost(encoding, fault))

    def _replace_language(self, *, is_hung: bool) -> None:
        """Begin anew with a loop of its own; requests that had not begun go over to it."""
        self._lanes.language_lane.post(self._loop.close)
        loading = self._lanes.replace_language(is_hung=is_hung, reload="language" not in self._lost)
        loading.add_done_callback(partial(self._note_reload, "language"))
        self._lanes.language_lane.post(self._take_over)

    def _take_over(self) -> None:
        """Begin anew. On the new language lane, behind its loading."""
        with self._lock:
            if "language" not in self._lost:
                old, self._loop = self._loop, self._new_loop()
                self._loop.adopt(old)
            waiting, self._waiting = self._waiting, []
        for job in waiting:
            self.submit(job)
        if self._head is not None and "language" not in self._lost and not self._is_closed:
            self._loop.pin(self._head)  # before their turn comes; it may hang, too

    def _close_loop(self) -> None:
        """Give the caches back that belong to this lane; those of a lane that is lost are closed there. On the lane."""
        if not self._loop.is_abandoned:
            self._loop.close()

    def _note_reload(self, lane: LaneKind, loading: Future[None]) -> None:
        """Note that a lane could not be loaded once more."""
        error = loading.exception()
        if error is not None:
            with self._lock:
                self._lost[lane] = EngineFault(
                    self._engine_of(lane), "load", f"it could not be loaded once more ({error}); open a new runtime"
                )

    def _engine_of(self, lane: LaneKind) -> str:
        vision = self._lanes.vision
        return vision.spec.engine if lane == "vision" and vision is not None else self._lanes.language.spec.engine

    @staticmethod
    def _refuse(job: Job, fault: EngineFault) -> None:
        job.on_end()
        job.request.settle(fault.again())
