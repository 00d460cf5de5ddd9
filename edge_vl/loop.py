"""The co-scheduler's loop: does what the policy says, one step a turn, on the language lane."""

from __future__ import annotations

import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar

import numpy as np

from edge_vl.accounts import Accounts
from edge_vl.answer import Answer, Token
from edge_vl.answer_making import log_answer, make_answer
from edge_vl.cache_pool import CachePool
from edge_vl.chunk_policy import chunk_tokens
from edge_vl.costs import CostBook, unit_shape
from edge_vl.decoding import Decoding, check_logits
from edge_vl.embeds_cache import EmbedsCache
from edge_vl.encoding import Encoded, Encoding
from edge_vl.engine import Graftable, KVCache
from edge_vl.entries import entries_of, num_common
from edge_vl.errors import CacheFull, EdgeVLError, EngineFault
from edge_vl.lanes import Lanes
from edge_vl.mode_choice import Mode, choose_mode
from edge_vl.op_watch import OpWatch
from edge_vl.passes import Piece
from edge_vl.plan import ImageChunk, TextChunk
from edge_vl.policy import Encode, Policy, Prefill, State, Step, Wait, smallest_step
from edge_vl.request import Progress, Settled
from edge_vl.resident import Resident
from edge_vl.run import Job, Run, run_name, unit_name
from edge_vl.scheduler_limits import SchedulerLimits
from edge_vl.trace import Stage

__all__ = ["Loop", "Op"]

Result = TypeVar("Result")
LaneKind = Literal["vision", "language"]

_MIN_SHARED_TOKENS = 16
"""A request waits for another that computes the same beginning only if at least so much is the same."""


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """A call into an engine that has not come back yet.

    Attributes:
        stage: what it does.
        began_s: when, on the monotonic clock.
        limit_s: how long it may take.
        encoding: to which it belongs, in the vision lane.
    """

    stage: Literal["encode", "prefill", "decode"]
    began_s: float
    limit_s: float
    encoding: Encoding | None = None


class _NoRoom(Exception):
    """The request gave its cache back and has to wait."""


class Loop:
    """All requests at work. Everything but `submit`, `post` and `ops` belongs to the language lane's thread."""

    def __init__(
        self,
        lanes: Lanes,
        *,
        mode: Mode | Literal["auto"],
        book: CostBook,
        embeds: EmbedsCache,
        limits: SchedulerLimits,
        policy: Policy,
        watch: OpWatch,
        on_fault: Callable[[LaneKind], None],
        on_success: Callable[[LaneKind], None],
    ) -> None:
        """Begin with nothing to do.

        Args:
            lanes: what sees and speaks.
            mode: of all requests, or `auto`.
            book: what units cost.
            embeds: image embeds kept.
            limits: bounds.
            policy: decides what is done next.
            watch: wakes the loop when work has waited for too long.
            on_fault: told that a lane failed.
            on_success: told that a lane did its work.
        """
        self._lanes = lanes
        self._lane = lanes.language_lane
        self._language = lanes.language
        self._mode: Mode | Literal["auto"] = mode
        self._book = book
        self._embeds = embeds
        self._limits = limits
        self._policy = policy
        self._watch = watch
        self._on_fault = on_fault
        self._on_success = on_success
        self._pool = CachePool(lanes.language, max_idle=limits.max_idle_caches, max_idle_bytes=limits.max_idle_bytes)
        self._accounts = Accounts()
        self._lock = threading.Lock()
        self._inbox: deque[Job] = deque()
        self._results: deque[Encoded] = deque()
        self._is_posted = False
        self._pending: list[Run] = []
        self._active: list[Run] = []
        self._may_admit = False
        self._encoding: Encoding | None = None
        self._op: Op | None = None
        self._costs = book.snapshot()  # as it was when the last request began
        self._owed_s = 0.0
        self._idle_since_s: float | None = None
        self._language_busy_s = 0.0
        self._number = 0
        self._orphans: list[KVCache] = []
        self.is_abandoned = False
        self.num_forced = 0

    # From any thread

    def submit(self, job: Job) -> None:
        """Queue a request."""
        self._inbox.append(job)
        self.post()

    def post(self) -> None:
        """Let the loop have a turn."""
        with self._lock:
            if self._is_posted or self.is_abandoned:
                return
            self._is_posted = True
        try:
            self._lane.post(self.turn)
        except RuntimeError:  # closed: nothing is at work any more
            self._is_posted = False

    @property
    def has_work(self) -> bool:
        """Whether there are requests, or a call runs."""
        if self.is_abandoned:
            return False
        return bool(self._inbox or self._pending or self._active or self._encoding or self._op)

    def ops(self) -> list[tuple[LaneKind, Op]]:
        """Return the calls that run now and that somebody waits for."""
        found: list[tuple[LaneKind, Op]] = []
        if self.is_abandoned:
            return found
        op, encoding = self._op, self._encoding
        if op is not None:
            found.append(("language", op))
        if encoding is not None and (began_s := encoding.began_s) is not None and not encoding.is_abandoned:
            found.append(("vision", Op("encode", began_s, encoding.limit_s, encoding)))
        return found

    def abandon(self, op: Op | None = None) -> tuple[list[Job], list[Job]] | None:
        """Stop for good, because the lane is lost; `close` is to follow on it.

        Args:
            op: the call that hangs in the lane; None: the caller is the lane itself.

        Returns:
            The requests that were at work, and those that had not begun; None: the call has come back meanwhile, and
            nothing is given up.
        """
        with self._lock:
            if op is not None and self._op is not op:
                return None
            self.is_abandoned = True
        self._orphans = self._pool.give_up()
        begun = [*self._active, *(run for run in self._pending if run.decoding is not None)]
        waiting = [run.job for run in self._pending if run.decoding is None]
        waiting += self._inbox
        return [run.job for run in begun], waiting

    def jobs(self) -> list[Job]:
        """Return the requests at work or waiting."""
        return [run.job for run in (*self._active, *self._pending)]

    # On the language lane

    def turn(self) -> None:
        """Do the next thing."""
        self._is_posted = False
        if self.is_abandoned:
            return
        try:
            while did_something := self._turn():
                if self._lane.has_jobs or self.is_abandoned:
                    break
        except BaseException as error:  # a defect of ours; nobody must wait for ever
            for run in [*self._active, *self._pending]:
                self._fail(run, error)
            return
        if did_something:
            self.post()

    def adopt(self, other: Loop) -> None:
        """Wait for what the vision lane still does for a loop that was abandoned."""
        encoding = other._encoding
        if encoding is None or encoding.is_abandoned:
            return
        encoding.deliver = self._deliver
        if not encoding.is_over:
            self._encoding = encoding

    def pin(self, head: TextChunk, owned: Resident | None = None) -> None:
        """Prefill the text that prompts begin with, before any picture arrives.

        Args:
            head: the text.
            owned: the cache of a conversation that begins with it; None: every prompt does, and it is kept for good.
        """
        resident = Resident() if owned is None else owned
        if resident.has_cache or self.is_abandoned:
            return
        self._watch.note_work()
        try:
            resident.begin(self._language)
            usual_s = self._costs.prefill_s(head.num_tokens)
            self._watched("prefill", usual_s, lambda: self._language.prefill(resident.cache, [head], want_logits=False))
        except BaseException:  # the first request computes it then, and tells what is wrong
            resident.drop()
            return
        resident.note(entries_of([head]))
        if owned is None:
            self._pool.pin(resident)
        else:
            self._pool.know(resident)

    def close(self) -> None:
        """Give all caches back."""
        self._active.clear()
        self._pool.close()
        for cache in self._orphans:
            cache.close()

    def vision_is_lost(self, encoding: Encoding, error: EngineFault) -> None:
        """End the request whose unit hangs in the vision lane, and go on without waiting for it."""
        if self._encoding is encoding:
            self._encoding = None
            self._end(encoding.run, error, is_sound=True)
        self.post()

    def _turn(self) -> bool:
        self._collect()
        self._reap()
        if self._may_admit:
            self._admit()
        if not self._active:
            self._owed_s = 0.0
            return False
        self._watch.note_work()
        if self._encoding is not None and len(self._active) > 1 and self._encoding.run.mode != "overlapped":
            self._encoding.should_stop = True  # others want the device, too: after this unit it is decided anew
        step = self._step()
        if isinstance(step, Wait):
            return False
        run = next((run for run in self._active if run.number == step.run), None)
        if run is None:
            return False
        if isinstance(step, Encode):
            self._start_encoding(run, step.num_units)
        elif isinstance(step, Prefill):
            self._guarded(run, "prefill", self._prefill)
        else:
            self._guarded(run, "decode", self._decode)
        return True

    def _step(self) -> Step:
        """Ask the policy, and overrule it when it waits although something could be done."""
        state = self._state()
        step = self._policy(state)
        if not isinstance(step, Wait):
            self._idle_since_s = None
            return step
        smallest = smallest_step(state)
        if isinstance(smallest, Wait):
            self._idle_since_s = None
            return step
        now_s = time.monotonic()
        if self._idle_since_s is None:
            self._idle_since_s = now_s
        left_s = self._idle_since_s + self._limits.idle_s - now_s
        if left_s > 0:
            self._watch.wake_in(left_s, self.post)
            return step
        self._idle_since_s = None
        self.num_forced += 1
        self._run_of(smallest).request.trace.note_schedule(num_forced=self.num_forced)
        return smallest

    def _run_of(self, step: Step) -> Run:
        return next(run for run in self._active if not isinstance(step, Wait) and run.number == step.run)

    def _state(self) -> State:
        keys = frozenset() if self._encoding is None else self._encoding.keys
        views = tuple(run.view(self._accounts.used_s(run.account), keys) for run in self._active)
        return State(views, None if self._encoding is None else self._encoding.run.number, self._owed_s)

    # Coming and going

    def _collect(self) -> None:
        """Take new requests in, and what the vision lane has made."""
        while self._inbox:
            self._number += 1
            run = Run(self._inbox.popleft(), self._number)
            run.request.estimate = partial(self._progress, run)
            self._pending.append(run)
            self._may_admit = True
        while self._results:
            self._take(self._results.popleft())

    def _take(self, result: Encoded) -> None:
        encoding = result.encoding
        if encoding.is_abandoned:
            return
        run = encoding.run
        if result.chunk is None:
            if self._encoding is encoding:
                self._encoding = None
            if result.error is not None:
                self._fail(run, result.error, "encode")
            return
        chunk, embeds = result.chunk, result.embeds
        assert embeds is not None
        self._on_success("vision")
        self._embeds.keep(chunk.unit.key, embeds)
        self._book.note_encode(unit_shape(chunk), result.duration_s, is_corun=result.is_corun)
        run.num_encoded += 1
        for other in self._active:
            if any(missing.unit.key == chunk.unit.key for missing in other.missing):
                other.take_embeds(chunk.unit.key, embeds)
        self._charge(run, result.duration_s, is_beside=run.mode == "overlapped")
        if run.is_probe and run.missing:
            self._end_probe(run, encoding)

    def _reap(self) -> None:
        """Let go of requests whose outcome is decided."""
        for run in [*self._active, *self._pending]:
            try:
                run.request.check()
            except Settled:
                self._end(run, None, is_sound=True)

    def _admit(self) -> None:
        """Let waiting requests begin: the stream with least device time first."""
        self._may_admit = False
        for run in sorted(self._pending, key=lambda run: (self._accounts.used_s(run.account), run.number)):
            if self.is_abandoned or len(self._active) >= self._limits.max_active:
                return
            if self._is_held(run):
                continue
            try:
                self._begin(run)
            except Settled:
                self._end(run, None, is_sound=True)
            except CacheFull as error:
                if not self._active:
                    self._fail(run, error)
                    continue
                return  # whoever ends next makes room
            except BaseException as error:
                self._fail(run, error)

    def _is_held(self, run: Run) -> bool:
        """Say whether another request is about to compute what this one begins with; then it waits, and forks that."""
        for other in self._active:
            if other.rest and other.resident is not None:
                shared = num_common(run.entries, other.entries)
                done = other.resident.num_tokens
                if shared - done >= _MIN_SHARED_TOKENS and any(
                    isinstance(piece.chunk, ImageChunk) for piece in other.rest
                ):
                    return True
        return False

    def _begin(self, run: Run) -> None:
        """Give a request its cache and find out what is left to be computed."""
        request = run.request
        self._costs = self._book.snapshot()
        self._place(run)
        self._pending.remove(run)
        self._active.append(run)
        self._accounts.open(run.account)
        run.began_at_s = self._accounts.used_s(run.account)
        request.begin("queue")
        request.trace.leave_queue()
        if self._language.spec.notes:
            request.trace.note_schedule(engine_notes=list(self._language.spec.notes))
        plan, kept = run.plan, run.num_kept
        if kept and run.decoding is None:
            request.trace.add_reused("prefill", "kv", kept, f"{kept} of {plan.num_tokens}")
        self._find_embeds(run)
        self._choose_mode(run)
        run.max_text_tokens = chunk_tokens(
            self._costs,
            sequence_tokens=kept,
            image_tokens=max((chunk.num_tokens for chunk in plan.images), default=0),
            text_tokens=plan.num_tokens - plan.num_image_tokens,
            is_answering=False,
            max_stall_s=math.inf,
        )

    def _progress(self, run: Run) -> Progress:
        return run.progress(self._book.snapshot())

    def _place(self, run: Run) -> None:
        job = run.job
        allows_grafts = run.request.generation.reuse == "approximate"
        resident, kept = self._with_idle_room(
            lambda: self._pool.take(job.plan, run.entries, job.resident, allows_grafts=allows_grafts)
        )
        donor = None
        if allows_grafts and job.plan.rules.rollback == "any":
            donor = self._pool.donor(job.plan, run.entries, kept)
        run.place(resident, donor)
        run.num_kept = kept

    def _with_idle_room(self, call: Callable[[], Result]) -> Result:
        """Call; while caches are full, give back those that nobody uses."""
        while True:
            try:
                return call()
            except CacheFull:
                if not self._pool.drop_oldest():
                    raise

    def _find_embeds(self, run: Run) -> None:
        known = {chunk.unit.key for chunk in run.missing} | run.embeds.keys()
        for chunk in run.needed_chunks():
            if chunk.unit.key in known:
                continue
            found = self._embeds.find(chunk.unit.key)
            if found is None:
                run.missing.append(chunk)
            else:
                run.embeds[chunk.unit.key] = found
                run.request.trace.add_reused("encode", "embeds", chunk.num_tokens, unit_name(chunk))

    def _choose_mode(self, run: Run) -> None:
        """Choose how the lanes take turns, and say why in the trace."""
        asked = self._mode
        mode: Mode = "serial"
        numbers: dict[str, float] = {}
        if not run.missing:
            reason = "nothing is to be encoded"
        elif not run.may_split:
            reason = "this model's pictures must be whole before they are prefilled"
        elif asked == "auto":
            choice = choose_mode(self._costs, unit_shape(run.missing[0]), len(run.missing))
            mode, reason, numbers = choice.mode, choice.reason, dict(choice.numbers)
            run.is_probe = choice.is_probe
        else:
            mode, reason = asked, "asked for"
        run.mode = mode
        run.request.trace.note_schedule(mode=mode, reason=reason, numbers=numbers)

    def _end_probe(self, run: Run, encoding: Encoding) -> None:
        """Choose again as soon as enough is known; what is left is run in the mode that is faster."""
        choice = choose_mode(self._book.snapshot(), unit_shape(run.missing[0]), len(run.missing))
        if choice.is_probe:
            return
        run.is_probe = False
        run.request.trace.note_schedule(then=choice.mode, then_reason=choice.reason)
        if choice.mode != run.mode:
            run.mode = choice.mode
            encoding.should_stop = True

    def _end(self, run: Run, outcome: Answer | EdgeVLError | None, *, is_sound: bool) -> None:
        """Let a request go; its cache is kept for others if it is sound."""
        if self.is_abandoned:  # whoever abandoned it has settled everything
            return
        if run in self._active:
            self._active.remove(run)
            self._accounts.close(run.account)
        elif run in self._pending:
            self._pending.remove(run)
        else:
            return
        self._leave(run, is_sound=is_sound)
        if self._encoding is not None and self._encoding.run is run:
            self._encoding.should_stop = True
        if not any(one.is_answering for one in self._active):
            self._owed_s = 0.0
        self._may_admit = True
        self.post()
        job = run.job
        request = job.request
        request.estimate = None
        job.on_end()
        if isinstance(outcome, Answer):
            request.settle(outcome, before=partial(job.on_answer, outcome))
        elif outcome is not None:
            for error in (outcome, outcome.__cause__):
                if error is not None:  # whoever keeps the error must not keep pictures and caches with it
                    traceback.clear_frames(error.__traceback__)
            request.settle(outcome)

    def _leave(self, run: Run, *, is_sound: bool) -> None:
        resident, donor = run.leave()
        if resident is not None:
            if is_sound:
                self._pool.give_back(resident)
            else:
                self._pool.discard(resident)
        if donor is not None:
            self._pool.give_back(donor)

    def _fail(self, run: Run, error: BaseException, stage: Stage | None = None) -> None:
        """End a request with what went wrong; whatever is no error of ours is the engine's.

        Args:
            run: whose request.
            error: what was raised.
            stage: where; None: in the stage that the request has reached.
        """
        if self.is_abandoned:
            return
        stage = stage or run.request.stage
        lane: LaneKind = "vision" if stage == "encode" else "language"
        if isinstance(error, EdgeVLError):
            outcome = error
        else:
            fault = EngineFault(self._engine_of(lane), stage, f"{type(error).__name__}: {error}")
            fault.__cause__ = error
            outcome = fault
        self._end(run, outcome, is_sound=False)
        if isinstance(outcome, EngineFault):
            self._on_fault(lane)

    def _engine_of(self, lane: LaneKind) -> str:
        vision = self._lanes.vision
        return vision.spec.engine if lane == "vision" and vision is not None else self._language.spec.engine

    # Doing

    def _guarded(self, run: Run, stage: Stage, work: Callable[[Run], None]) -> None:
        """Work on a request; whatever is raised ends it, and only it."""
        try:
            work(run)
        except Settled:
            self._end(run, None, is_sound=True)
        except _NoRoom:
            pass
        except BaseException as error:
            self._fail(run, error, stage)

    def _start_encoding(self, run: Run, num_units: int | None) -> None:
        chunks = run.missing[:num_units]
        encoding = Encoding(
            run,
            chunks,
            self._language.spec.hidden_size,
            self._deliver,
            lambda: self._language_busy_s,
            self._hang_limit_s(self._costs.encode_s(unit_shape(chunks[0]))),
        )
        self._encoding = encoding
        lanes = self._lanes
        lane = lanes.vision_lane
        try:
            lane.post(lambda: encoding.work(lanes.encoder_on(lane)))
        except RuntimeError:
            self._encoding = None
            self._fail(run, EngineFault(self._engine_of("vision"), "encode", "the vision lane is closed"), "encode")

    def _deliver(self, result: Encoded) -> None:
        """Take what the vision lane has made. On its thread."""
        self._results.append(result)
        if result.chunk is None or result.encoding.run.mode == "overlapped":
            self.post()

    def _prefill(self, run: Run) -> None:
        resident = run.resident
        assert resident is not None
        others = any(one.is_answering for one in self._active)
        pieces, rest = run.next_pass(self._limits.slice_tokens if others else None)
        num_tokens = sum(piece.num_tokens for piece in pieces)
        run.request.begin("prefill")
        if pieces[0].is_graft:
            if self._graft(run, pieces[0]):
                run.rest = rest
            else:
                run.give_up_grafts()
                self._find_embeds(run)
            return
        items = run.items(pieces)
        encodes = self._encoding is not None
        usual_s = self._costs.prefill_s(num_tokens)
        began_s = time.monotonic()
        logits = self._call(
            run,
            "prefill",
            usual_s,
            lambda: self._language.prefill(resident.cache, items, want_logits=not rest),
        )
        duration_s = time.monotonic() - began_s
        run.request.trace.add("prefill", began_s, num_tokens=num_tokens, detail=run_name(pieces))
        run.note(num_tokens)
        run.rest = rest
        images = [piece.chunk for piece in pieces if isinstance(piece.chunk, ImageChunk)]
        is_whole = bool(images) and pieces[-1].num_tokens == images[-1].num_tokens
        shape = unit_shape(images[-1]) if is_whole else None
        self._book.note_prefill(num_tokens, duration_s, shape=shape, is_corun=encodes and self._encoding is not None)
        self._charge(run, duration_s)
        if rest:
            if images and run.missing:
                self._say_early(run)
            return
        self._check_complete(run)
        run.logits = logits
        self._may_admit = True
        donor, run.donor = run.donor, None
        if donor is not None:
            self._pool.give_back(donor)
        if run.decoding is None:
            run.decoding = Decoding(run.request, run.plan, self._language)
        self._choose(run)

    def _graft(self, run: Run, piece: Piece) -> bool:
        """Take entries from the donor instead of computing them; return whether that can be done."""
        resident, donor = run.resident, run.donor
        assert resident is not None
        assert donor is not None
        start = resident.num_tokens
        stop = start + piece.num_tokens
        if not np.array_equal(donor.entries[start:stop], run.entries[start:stop]):
            return False  # whoever it belongs to has changed or closed it meanwhile
        cache = resident.cache
        assert isinstance(cache, Graftable)
        try:
            cache.graft(donor.cache, start, stop)
        except ValueError:  # equal entries may stand at other positions there
            return False
        resident.note_graft()
        run.note(piece.num_tokens)
        run.num_grafted += piece.num_tokens
        run.request.trace.add_reused("prefill", "graft", piece.num_tokens, run_name([piece]))
        return True

    def _check_complete(self, run: Run) -> None:
        """Let nobody answer before every entry of the plan is in: the completeness gate.

        Raises:
            EngineFault: an entry is missing, or there is one too many.
        """
        assert run.resident is not None
        wanted, cache = len(run.entries), run.resident.cache
        if run.missing or cache.num_tokens != wanted or run.resident.num_tokens != wanted:
            raise EngineFault(
                self._language.spec.engine,
                "prefill",
                f"the cache has {cache.num_tokens} entries where the prompt has {wanted}",
            )

    def _say_early(self, run: Run) -> None:
        """Show what the model would say if the picture ended here: one token, on a fork that is dropped at once."""
        if run.num_early >= run.request.generation.early_tokens:
            return
        suffix = [piece for piece in run.rest if not isinstance(piece.chunk, ImageChunk)][-1:]
        if not suffix or run.resident is None:
            return
        began_s = time.monotonic()
        try:
            fork = run.resident.cache.fork()
            try:
                logits = self._watched(
                    "prefill", None, lambda: self._language.prefill(fork, [suffix[0].text], want_logits=True)
                )
            finally:
                fork.close()
        except CacheFull:  # nobody has to make room for a guess
            return
        token_id = int(np.argmax(check_logits(logits, self._language)))
        text = self._language.tokenizer.token_bytes(token_id).decode(errors="ignore")
        duration_s = time.monotonic() - began_s
        run.request.trace.add("early", began_s, num_tokens=suffix[0].num_tokens, detail=text)
        self._charge(run, duration_s)
        if text:
            run.request.add_tokens([Token(token_id, text, "early", run.num_early)])
            run.num_early += 1

    def _decode(self, run: Run) -> None:
        resident, decoding = run.resident, run.decoding
        assert resident is not None
        assert decoding is not None
        run.request.begin("decode")
        token_id = decoding.token_ids[-1]
        usual_s = self._costs.decode_s
        began_s = time.monotonic()
        run.logits = self._call(run, "decode", usual_s, lambda: self._language.decode(resident.cache, token_id))
        duration_s = time.monotonic() - began_s
        run.request.trace.add("decode", began_s, num_tokens=1)
        run.note_token(token_id)
        if self._encoding is None:
            self._book.note_decode(duration_s)
        run.device_s += duration_s
        self._accounts.charge(run.account, duration_s, run.request.generation.share)
        self._owed_s = max(self._owed_s - duration_s, -duration_s)
        self._choose(run)

    def _choose(self, run: Run) -> None:
        """Choose the next token; end the request when that was the last one."""
        decoding = run.decoding
        assert decoding is not None
        run.request.begin("decode")
        if not decoding.choose(run.logits):
            self._book.note_answer(len(decoding.token_ids))
            self._on_success("language")
            answer = make_answer(run, decoding, self._lanes, self._language.spec)
            log_answer(answer)
            self._end(run, answer, is_sound=True)

    def _call(
        self, run: Run, stage: Literal["prefill", "decode"], usual_s: float | None, call: Callable[[], Result]
    ) -> Result:
        """Call the language model under watch; while its caches are full, others make room, the youngest first."""
        while True:
            try:
                return self._watched(stage, usual_s, call)
            except CacheFull:
                if not self._pool.drop_oldest():
                    self._make_room(run)

    def _watched(
        self, stage: Literal["prefill", "decode"], usual_s: float | None, call: Callable[[], Result]
    ) -> Result:
        """Call the language model under watch.

        Raises:
            Settled: the call was given up before it came back.
        """
        began_s = time.monotonic()
        self._op = Op(stage, began_s, self._hang_limit_s(usual_s))
        try:
            return call()
        finally:
            with self._lock:  # from here on nobody gives it up
                self._op = None
            self._language_busy_s += time.monotonic() - began_s
            if self.is_abandoned:
                raise Settled

    def _make_room(self, run: Run) -> None:
        """Take the cache of the youngest request; it begins anew when there is room.

        Raises:
            CacheFull: there is only this one.
            _NoRoom: it is this one.
        """
        holding = [one for one in self._active if one.resident is not None]
        if len(holding) < 2:
            raise CacheFull(self._language.spec.engine, run.plan.num_tokens)
        victim = max(holding, key=lambda one: (not one.is_answering, one.number))
        self._leave(victim, is_sound=False)
        self._active.remove(victim)
        self._accounts.close(victim.account)
        victim.rest = []
        victim.missing = []
        self._pending.insert(0, victim)
        if victim is run:
            raise _NoRoom

    def _hang_limit_s(self, usual_s: float | None) -> float:
        limits = self._limits
        return limits.first_hang_s if usual_s is None else max(limits.min_hang_s, limits.hang_factor * usual_s)

    def _charge(self, run: Run, duration_s: float, *, is_beside: bool = False) -> None:
        """Charge device time of a request that is being prepared to its stream, and owe it to running answers."""
        run.device_s += duration_s
        self._accounts.charge(run.account, duration_s, run.request.generation.share)
        answering = [one for one in self._active if one.is_answering and one is not run]
        if answering and not is_beside:
            wanted = max(one.request.generation.share for one in answering)
            share = max(self._limits.answer_share, wanted / (wanted + run.request.generation.share))
            self._owed_s += duration_s * share / (1 - share)
