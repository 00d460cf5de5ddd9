"""The runtime: the SDK object that owns both lanes."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, get_args

from edge_vl.answer import Answer
from edge_vl.answer_stream import AnswerStream
from edge_vl.asking import AskOptions, generation_of
from edge_vl.co_scheduler import CoScheduler
from edge_vl.cost_store import CostKey, CostStore
from edge_vl.costs import CostBook
from edge_vl.engine import Engine, LanguageSpec, VisionSpec
from edge_vl.entries import Entries, entries_of
from edge_vl.errors import ContextLengthError, EdgeVLError, QueueFull, RequestError
from edge_vl.families import Family, family_of
from edge_vl.kv_policy import KVPolicy, parse_kv_policy
from edge_vl.lanes import Lanes
from edge_vl.loading import load_lanes, native_family
from edge_vl.memory_plan import check_memory
from edge_vl.message import Message
from edge_vl.mode_choice import Mode
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.option_checks import require_text, require_whole_number
from edge_vl.picture_limits import PictureLimits
from edge_vl.pictures import DEFAULT_LIMITS, Picture
from edge_vl.plan import Plan
from edge_vl.plan_check import check_plan
from edge_vl.preparation import Preparation
from edge_vl.profile_choice import decide
from edge_vl.request import Request, Settled
from edge_vl.resident import Resident
from edge_vl.run import Job
from edge_vl.scheduler_limits import SchedulerLimits, usual_keep_bytes
from edge_vl.text_head import text_head

if TYPE_CHECKING:
    from edge_vl.async_answer_stream import AsyncAnswerStream
    from edge_vl.async_watch import AsyncWatch
    from edge_vl.conversation import Conversation
    from edge_vl.frame_feed import FrameGate
    from edge_vl.watch import Watch
    from edge_vl.watch_events import WatchEvent

__all__ = ["Runtime"]

_log = logging.getLogger(__name__)

_MODES = (*get_args(Mode), "auto", "profile")

MAX_WAITING = 16
"""Requests that may wait; each holds its pictures."""

EXIT_TIMEOUT_S = 5.0
"""How long the end of the program waits for a unit of work in a runtime that nobody closed."""


class Runtime:
    """Answers questions about pictures with one model. All methods may be called from any thread.

    Several requests may run at once: while one answers, the next is prepared, in small steps.

    Example:
        >>> with Runtime.open() as runtime:
        ...     print(runtime.ask("door.jpg", "What is at the top left?").text)
    """

    def __init__(
        self,
        model: ModelSpec,
        family: Family,
        lanes: Lanes,
        *,
        max_waiting: int = MAX_WAITING,
        mode: Mode | Literal["auto"] = "auto",
        limits: SchedulerLimits | None = None,
        picture_limits: PictureLimits = DEFAULT_LIMITS,
        book: CostBook | None = None,
        keep_costs: Callable[[CostBook], object] | None = None,
    ) -> None:
        """Take over loaded lanes. `Runtime.open` is what most callers want.

        Args:
            model: what is run.
            family: how pictures are cut and turns laid out.
            lanes: what sees and speaks.
            max_waiting: requests that may wait or run.
            mode: how the lanes take turns.
            limits: bounds of the scheduler.
            picture_limits: the largest pictures that are taken, and how much of them is decoded at once.
            book: what units cost, from before.
            keep_costs: called in the end with what units cost.
        """
        self._model = model
        self._family = family
        self._lanes = lanes
        self._scheduler = CoScheduler(lanes, mode=mode, book=book, limits=limits)
        self._keep_costs = keep_costs
        self._preparation = Preparation(model.name, family, lanes.language.tokenizer, self._scheduler, picture_limits)
        self._max_waiting = max_waiting
        self._lock = threading.RLock()  # a request that is refused at once leaves while it comes
        self._running: set[Request] = set()
        self._conversations: weakref.WeakSet[Conversation] = weakref.WeakSet()
        self._watches: weakref.WeakSet[Watch] = weakref.WeakSet()
        self._is_closed = False
        self._ended = threading.Event()
        self._process_id = os.getpid()
        # A lane that is still in native code while Python shuts down takes the process with it.
        self._at_exit = partial(_close_at_exit, weakref.ref(self))
        atexit.register(self._at_exit)
        head = text_head(family, lanes.language.tokenizer, has_vision=lanes.vision is not None)
        if head is not None:
            self._scheduler.pin(head)

    @classmethod
    def open(
        cls,
        model: str | Path = "bundled",
        *,
        profile: str | Path = "auto",
        vision_engine: str | Engine = "auto",
        language_engine: str | Engine = "auto",
        vision_dtype: str = "auto",
        language_dtype: str = "auto",
        kv: str | Mapping[str, str] | KVPolicy = "auto",
        device: str = "auto",
        threads: int | None = None,
        context_length: int | None = None,
        memory_budget_mib: int | None = None,
        max_waiting: int = MAX_WAITING,
        mode: Mode | Literal["auto", "profile"] = "profile",
        keep_mib: int | None = None,
        picture_limits: PictureLimits = DEFAULT_LIMITS,
    ) -> Runtime:
        """Load a model.

        Args:
            model: a short name (`edge-vl models list`), a folder in the Hugging Face layout, or a GGUF file.
            profile: device profile: `auto` finds the one of this machine; or its id, or the path of a `.toml` file.
                What the other arguments say comes before what it says.
            vision_engine: engine of the vision lane by name, or itself, or `auto`.
            language_engine: engine of the language lane, likewise.
            vision_dtype: precision of the vision encoder: `auto`, `fp32`, `fp16`, `int8`, ...
            language_dtype: precision of the language model, likewise.
            kv: in what precision the KV cache is kept: `auto`, `f32`, `f16`, `int8`, `int4`, `k8v4` (keys in 8 bits,
                values in 4), or parts, as in `{"text": "int8", "image": "int4"}` or `text=int8,image=int4`. From
                `int8` on, answers may change.
            device: `auto`, `cpu`, or what `edge-vl doctor` lists.
            threads: CPU threads of a lane; None: the cores that this process may use.
            context_length: most tokens of prompt and answer together; None: what the profile and the model allow.
            memory_budget_mib: memory that both lanes together may take; None: what the profile allows and is free.
            max_waiting: requests that may wait or run at once before `QueueFull`.
            mode: how the lanes take turns: `serial`, `interleaved`, `overlapped`; `auto`: learns what is fastest;
                `profile`: what the device profile says.
            keep_mib: memory for what may be needed again: KV caches that nobody uses, image embeds, cut pictures;
                None: a sixteenth of what is free, 16 to 256.
            picture_limits: the largest pictures that are taken, and how much of them is decoded at once.

        Raises:
            RequestError: an argument makes no sense.
            ModelError: the model is unknown or its files do not fit together.
            EngineNotFound: no such engine.
            EngineUnavailable: an engine's backend is missing; the message says how to install it.
            ProfileError: there is no such profile, or it says something that cannot be used.
            MemoryBudgetError: it would take more memory than it may; the message has the largest setting that fits.
        """
        for field, text in (
            ("vision_dtype", vision_dtype),
            ("language_dtype", language_dtype),
            ("device", device),
        ):
            require_text(text, field)
        for field, number in (
            ("threads", threads),
            ("context_length", context_length),
            ("memory_budget_mib", memory_budget_mib),
        ):
            if number is not None:
                require_whole_number(number, field, 1)
        require_whole_number(max_waiting, "max_waiting", 1)
        if keep_mib is not None:
            require_whole_number(keep_mib, "keep_mib", 0)
        if mode not in _MODES:
            raise RequestError(f"mode is {', '.join(_MODES)}, not {mode!r:.60}", field="mode")
        policy = parse_kv_policy(kv)
        spec = find_model(model)
        family = family_of(spec)
        decision = decide(
            spec,
            profile=profile,
            vision_engine=vision_engine,
            language_engine=language_engine,
            vision_dtype=vision_dtype,
            language_dtype=language_dtype,
            device=device,
            threads=threads,
            context_length=context_length,
            kv=policy,
        )
        for note in decision.notes:
            _log.info("%s: %s", spec.name, note)
        check_memory(spec, decision, memory_budget_mib)
        lanes = load_lanes(spec, decision)
        try:
            family = family or native_family(spec, lanes)
            family.check_lanes(None if lanes.vision is None else lanes.vision.spec, lanes.language.tokenizer)
        except BaseException:
            lanes.finish()
            lanes.wait()
            raise
        store = CostStore()
        key = CostKey.of(spec, decision, None if lanes.vision is None else lanes.vision.spec, lanes.language.spec)
        costs = store.load(key)
        book = CostBook()
        if costs is not None:
            book.load(costs)
        kept = usual_keep_bytes(decision.machine.memory_available_bytes) if keep_mib is None else keep_mib << 20
        return cls(
            spec,
            family,
            lanes,
            max_waiting=max_waiting,
            mode=decision.profile.schedule_mode if mode == "profile" else mode,
            limits=SchedulerLimits.keeping(kept),
            picture_limits=picture_limits,
            book=book,
            keep_costs=lambda book: store.save(key, book.snapshot()),
        )

    @property
    def model(self) -> ModelSpec:
        """What it runs."""
        return self._model

    @property
    def profile(self) -> str:
        """Id of the device profile that chose the engines; empty where none did."""
        return self._lanes.profile

    @property
    def notes(self) -> tuple[str, ...]:
        """What is not as the device profile wants it, such as an engine that is missing and what runs instead."""
        return self._lanes.notes

    @property
    def vision_spec(self) -> VisionSpec | None:
        """What sees; None for a model that reads text only."""
        return None if self._lanes.vision is None else self._lanes.vision.spec

    @property
    def language_spec(self) -> LanguageSpec:
        """What speaks."""
        return self._lanes.language.spec

    def stream(
        self, pictures: Picture | Sequence[Picture] | None, question: str, **options: Unpack[AskOptions]
    ) -> AnswerStream:
        """Ask about pictures and stream the answer.

        Args:
            pictures: a path, encoded bytes, a NumPy array (uint8 RGB, or BGR with `bgr=True`), a Pillow image, a
                `Frame`; several of them in a list; an empty list: the question alone. None is an error unless the
                model reads text only, because a camera that has no frame gives it.
            question: what to ask; never taken for markers or control tokens.
            **options: see `AskOptions`.

        Raises:
            ImageError: a picture cannot be used.
            ContextLengthError: pictures and question do not fit.
            RequestError: an option makes no sense.
            QueueFull: too many requests wait.
        """
        return AnswerStream(generation_of(options), self._start(pictures, question, options))

    def astream(
        self, pictures: Picture | Sequence[Picture] | None, question: str, **options: Unpack[AskOptions]
    ) -> AsyncAnswerStream:
        """Return the asynchronous twin of `stream`; errors of the input are raised when iteration begins."""
        from edge_vl.async_answer_stream import AsyncAnswerStream  # late: it imports asyncio

        return AsyncAnswerStream(generation_of(options), self._start(pictures, question, options))

    def ask(self, pictures: Picture | Sequence[Picture] | None, question: str, **options: Unpack[AskOptions]) -> Answer:
        """Ask about pictures and wait for the answer; takes and raises what `stream` does, and what iterating does."""
        return self.stream(pictures, question, **options).answer

    def watch(
        self,
        source: Iterable[Picture],
        question: str,
        *,
        every_s: float | None = None,
        every_frame: bool | None = None,
        patience_s: float | None = None,
        gate: FrameGate | None = None,
        on_event: Callable[[WatchEvent], object] | None = None,
        **options: Unpack[AskOptions],
    ) -> Watch:
        """Answer a question about the newest frame of a source, again and again.

        Args:
            source: gives pictures or frames, such as `open_source` returns; it is not closed in the end.
            question: asked about each frame.
            every_s: least seconds from the start of one answer to the start of the next; None: as fast as it goes.
            every_frame: answer every frame instead of the newest one, as for a recording. None: where the source is one
                of `open_source` and not live.
            patience_s: how much longer an answer may take when a newer frame is there before it is given up for that;
                None: as long as it will be in time.
            gate: says which frames are worth an answer, such as a `MotionGate`; None: all are.
            on_event: told what becomes of each answer while it is made, token by token (`edge_vl.watch_events`), on the
                thread that waits for the answer.
            **options: see `AskOptions`.

        Returns:
            An iterator of answers; use it in a `with` block.

        Raises:
            RequestError: an argument makes no sense.
            ImageError: the model cannot see.
        """
        from edge_vl.watch import Watch

        watch = Watch(
            self,
            source,
            question,
            every_s=every_s,
            every_frame=every_frame,
            patience_s=patience_s,
            gate=gate,
            on_event=on_event,
            **options,
        )
        self._watches.add(watch)
        return watch

    def awatch(self, source: Iterable[Picture], question: str, **options: Any) -> AsyncWatch:
        """Return the asynchronous twin of `watch`, an asynchronous iterator; takes and raises what that does."""
        from edge_vl.async_watch import AsyncWatch

        return AsyncWatch(self.watch(source, question, **options))

    def conversation(self, *, system: str | None = None) -> Conversation:
        """Begin a conversation: several turns about the same or new pictures.

        Args:
            system: instructions before the first turn, for models whose template knows them.
        """
        from edge_vl.conversation import Conversation

        if system is not None:
            require_text(system, "system")
        conversation = Conversation(self, system=system)
        self._conversations.add(conversation)
        if system is not None:
            head = text_head(
                self._family, self._lanes.language.tokenizer, has_vision=self._lanes.vision is not None, system=system
            )
            if head is not None and head.num_tokens < self._lanes.language.spec.context_length:
                self._scheduler.pin(head, conversation.resident)
        return conversation

    def close(self, timeout_s: float | None = None) -> None:
        """Cancel what is running, close conversations, end both lanes and give all memory back. May be called twice.

        Args:
            timeout_s: seconds to wait for a unit of work that is still running, per lane; None waits for its end.
        """
        self._end_lanes()
        if self._ended.wait(timeout_s):  # another thread may be closing it
            self._scheduler.wait(timeout_s)

    def _end_lanes(self) -> None:
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
            running = list(self._running)
        if was_closed:
            return
        try:
            self._end_all(running)
        finally:
            self._ended.set()

    def _end_all(self, running: Sequence[Request]) -> None:
        atexit.unregister(self._at_exit)
        for watch in list(self._watches):
            watch.close(timeout_s=0)
        for request in running:
            request.cancel()
        for conversation in list(self._conversations):
            conversation.close()
        self._scheduler.finish()
        self._preparation.close()
        if self._keep_costs is not None:
            self._keep_costs(self._scheduler.book)

    def __del__(self) -> None:
        """Close a forgotten runtime, without waiting for it."""
        if hasattr(self, "_running") and not self._is_closed:
            warnings.warn(
                f"unclosed {type(self).__name__}; use `with` or close()", ResourceWarning, source=self, stacklevel=1
            )
            self._end_lanes()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def _start(
        self, pictures: Picture | Sequence[Picture] | None, question: str, options: AskOptions
    ) -> Callable[[Request], None]:
        def start(request: Request) -> None:
            def messages() -> list[Message]:
                return [self.user_message(request, pictures, question, bgr=options.get("bgr", False))]

            self.submit(request, messages, None)

        return start

    def user_message(
        self,
        request: Request,
        pictures: Picture | Sequence[Picture] | None,
        question: str,
        *,
        bgr: bool,
    ) -> Message:
        """Decode and cut the pictures of one turn, on the caller's thread. For `Conversation`."""
        return self._preparation.message(
            request, pictures, question, bgr=bgr, has_vision=self._lanes.vision is not None
        )

    def submit(
        self,
        request: Request,
        messages: Callable[[], Sequence[Message]],
        resident: Resident | None,
        *,
        on_answer: Callable[[Answer], None] = lambda answer: None,
    ) -> None:
        """Plan a request on the caller's thread and queue it. For `Conversation`.

        Args:
            request: the request; too late or cancelled already, it is settled and nothing more happens.
            messages: makes the conversation up to the question.
            resident: the cache that the language lane is to use; None: any.
            on_answer: called on the language lane with the answer, before anybody sees it.
        """
        self._admit(request)
        is_queued = False
        try:
            plan, entries = self._plan(request, messages())
            job = Job(request, plan, entries, resident, on_answer, partial(self._leave, request))
            request.begin("queue")
            request.trace.enter_queue()
            with self._lock:
                if self._is_closed:
                    raise EdgeVLError("the runtime is closed")
                self._scheduler.submit(job)
            is_queued = True
        except Settled:
            pass
        finally:
            if not is_queued:
                self._leave(request)

    def on_language_lane(self, job: Callable[[], None]) -> None:
        """Run a job behind everything that the language lane has to do; at once when the lane is closed."""
        self._scheduler.on_language_lane(job)

    def _plan(self, request: Request, messages: Sequence[Message]) -> tuple[Plan, Entries]:
        language = self._lanes.language
        request.begin("layout")
        with request.trace.span("layout"):
            plan = self._family.layout(messages, language.tokenizer)
            check_plan(plan, file=str(self._model.path))
            entries = entries_of(plan.chunks)
        if plan.num_tokens >= language.spec.context_length:
            raise ContextLengthError(plan.num_tokens, language.spec.context_length)
        return plan, entries

    def _admit(self, request: Request) -> None:
        if os.getpid() != self._process_id:
            raise EdgeVLError("the runtime belongs to the process that opened it; open one in each process")
        with self._lock:
            if self._is_closed:
                raise EdgeVLError("the runtime is closed")
            if len(self._running) >= self._max_waiting:
                raise QueueFull(len(self._running), self._max_waiting)
            self._running.add(request)

    def _leave(self, request: Request) -> None:
        with self._lock:
            self._running.discard(request)
        request.leave()


def _close_at_exit(reference: weakref.ref[Runtime]) -> None:
    runtime = reference()
    if runtime is not None:
        runtime.close(EXIT_TIMEOUT_S)
