"""A camera at the gateway: asks about it, tells what it saw, and does what it is told to over MQTT."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING

import msgspec

from edge_vl.answer import Answer
from edge_vl.asking import AskOptions
from edge_vl.async_answer_stream import AsyncAnswerStream
from edge_vl.backoff import Backoff
from edge_vl.debounce import Debounce
from edge_vl.errors import Cancelled, DeadlineExceeded, EdgeVLError, QueueFull, RequestError, SourceError
from edge_vl.frame import Frame
from edge_vl.gateway.camera_commands import (
    COMMANDS,
    PRESS,
    Command,
    read_enabled,
    read_every_s,
    read_question,
    shown_every_s,
    shown_on_off,
    unknown_command,
)
from edge_vl.gateway.camera_reporter import CameraReporter
from edge_vl.gateway.camera_reports import Outcome
from edge_vl.gateway.camera_turns import CameraTurns, Turn
from edge_vl.gateway.camera_voice import CameraVoice, Outlet
from edge_vl.gateway.config import CameraConfig
from edge_vl.gateway.motion_look import MotionLook
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.node_messages import CameraStateMessage, CameraStats
from edge_vl.mqtt.packet import Inbound, Outbound
from edge_vl.mqtt.topics import NodeTopics
from edge_vl.rate_limited_log import RateLimitedLog
from edge_vl.sources.source import LiveSource
from edge_vl.yes_or_no import yes_or_no

if TYPE_CHECKING:
    from edge_vl.runtime import Runtime

__all__ = ["CameraDesk"]

_log = logging.getLogger(__name__)

POLL_S = 0.02
"""How long to wait for a frame that is due."""

IDLE_S = 0.2
"""How long to wait when nothing is due, and from one look at the camera's state to the next."""

WHEN_MAX_TOKENS = 16
"""Of the answer to a yes/no question: its first word is what counts."""

_BACKOFF = Backoff(first_s=0.5, cap_s=30.0)


class CameraDesk:
    """Watches one camera of a gateway.

    Everything runs on the event loop's thread; pictures are decoded, compared and encoded on helper threads. The desk
    works on one frame at a time: the camera's question and its yes/no questions are about the same frame, so that it is
    encoded once. What is sent is bounded: of answers and states only the newest waits, snapshots wait for each other.

    Commands that the broker had retained are ignored: nobody knows how old they are. After a restart the gateway file
    holds, not the last command.
    """

    def __init__(
        self, config: CameraConfig, topics: NodeTopics, runtime: Runtime, source: LiveSource, session: Outlet
    ) -> None:
        """Take over the questions about a camera; nothing happens before `run`.

        Args:
            config: its part of the gateway file.
            topics: of the gateway.
            runtime: answers.
            source: gives the frames; whoever opened it closes it.
            session: takes messages to the broker.
        """
        self._config = config
        self._runtime = runtime
        self._source = source
        self._voice = CameraVoice(config.name, topics, session)
        self._base = topics.camera(config.name, "")
        self._turns = CameraTurns(
            config.question,
            config.every_s,
            is_enabled=config.is_enabled,
            has_when=bool(config.when),
            on_motion=config.on_motion,
        )
        self._when = {when.name: Debounce(when.after) for when in config.when}
        self._rated_log = RateLimitedLog(_log)
        self._random = random.Random()
        self._stream: AsyncAnswerStream | None = None
        self._wake = asyncio.Event()
        self._closed = asyncio.Event()
        self._reporter = CameraReporter(config.name, source, is_enabled=config.is_enabled)
        self._answered_index: int | None = None
        self._num_answers = self._num_errors = self._num_dropped = self._num_failures = 0

    def handle(self, inbound: Inbound) -> bool:
        """Follow a command, sent to its topic `<command>/set`; False: it is not for this camera. Never raises."""
        what = inbound.topic.removeprefix(self._base)
        if what == inbound.topic or not what.endswith("/set"):
            return False
        command: Command | None = next((name for name in COMMANDS if what == f"{name}/set"), None)
        if command is None:
            error = RequestError(unknown_command(what.removesuffix("/set")), field="command")
            self._rated_log.warning("unknown", "camera %s: %s", self._config.name, error)
            if not inbound.is_retained:
                self._voice.tell_error(error)
        elif inbound.is_retained:
            self._rated_log.warning("retained", "camera %s: a retained command is ignored", self._config.name)
        else:
            try:
                self._follow(command, inbound.payload)
            except EdgeVLError as error:
                self._rated_log.warning(command, "camera %s: a command was refused: %s", self._config.name, error)
                self._voice.tell_error(error)
            self._post_command_state(command)
            self._wake.set()
        return True

    def states(self) -> Iterable[Outbound]:
        """Return the retained states, for a broker that may have forgotten them."""
        yield self._voice.message("state", encode(self._current_state()), is_retained=True)
        for command in COMMANDS:
            yield self._command_state(command)
        if self._voice.last_answer is not None:
            yield self._voice.last_answer

    def stats(self) -> CameraStats:
        """Return how it does."""
        state = self._current_state()
        return CameraStats(
            status=state.status,
            fps=state.fps,
            frames=state.frames,
            bad=state.bad,
            answers=self._num_answers,
            dropped=self._num_dropped,
            age_ms=state.age_ms,
        )

    async def run(self) -> None:
        """Watch until it is closed. Raises nothing but the cancellation of its task."""
        self._reporter.switch(self._turns.is_enabled)
        loops = [self._forever(self._take_turn), self._forever(self._report)]
        if self._config.on_motion:
            motion = MotionLook(
                self._source, self._config.max_silence_s, on_pass=self._passed, on_motion=self._tell_motion
            )
            loops.append(self._forever(motion.look))
        tasks = [asyncio.create_task(loop) for loop in loops]
        try:
            await self._closed.wait()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """End `run`, and give up the answer that is being made. On the event loop's thread; may be called twice."""
        self._closed.set()
        if self._stream is not None:
            self._stream.cancel()

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await step()
            except Exception as error:  # a fault of ours, or of a source; the camera's watch goes on
                self._rated_log.warning("fault", "camera %s: %r", self._config.name, error)
                self._voice.tell_error(error)
                await asyncio.sleep(1.0)

    async def _take_turn(self) -> None:
        """Answer what is due, or wait for a moment."""
        frame = self._source.latest()
        if self._turns.has_ask_without(frame):
            self._voice.tell_error(SourceError("the camera has no frame now; its state says why"))
            self._post_command_state("ask")
            return
        turn = self._turns.next(frame, time.monotonic())
        del frame
        if turn is None:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                is_due = self._turns.is_due(time.monotonic())
                await asyncio.wait_for(self._wake.wait(), POLL_S if is_due else IDLE_S)
            return
        try:
            await self._answer(turn)
        except QueueFull:
            self._turns.put_back(turn)
            await asyncio.sleep(POLL_S)
        finally:
            if turn.trigger == "ask":
                self._post_command_state("ask")

    async def _answer(self, turn: Turn) -> None:
        """Put a turn's questions, one after the other; tell what came of it."""
        config, outcome = self._config, Outcome(time.monotonic())
        try:
            if turn.question:
                outcome.answer = outcome.first = await self._ask(turn, turn.question, config.max_tokens)
            for when in config.when if turn.has_when else ():
                answer = await self._ask(turn, when.question, min(config.max_tokens, WHEN_MAX_TOKENS))
                if answer is None:
                    continue
                outcome.first = outcome.first or answer
                changed = self._when[when.name].update(yes_or_no(answer.text))
                if changed is not None:
                    self._voice.tell_event("when", name=when.name, value=changed, frame=turn.frame.index)
                    self._reporter.note_change()
        except Cancelled:
            return  # switched off, or closed
        except QueueFull:
            if outcome.first is None:
                raise
        except EdgeVLError as error:
            self._num_errors += 1
            self._num_failures += 1
            self._turns.pause(time.monotonic() + _BACKOFF.delay_s(self._num_failures, self._random))
            self._voice.tell_error(error)
        if outcome.first is not None:
            outcome.when = {name: debounce.state for name, debounce in self._when.items()}
            if self._answered_index is not None:
                outcome.num_dropped = max(0, turn.frame.index - self._answered_index - 1)
                self._num_dropped += outcome.num_dropped
            self._answered_index = turn.frame.index
            self._num_answers += 1
            self._voice.tell_answer(turn, outcome)
            if config.snapshot:
                await self._voice.tell_snapshot(turn.frame, config.snapshot_max_px)

    async def _ask(self, turn: Turn, question: str, max_tokens: int) -> Answer | None:
        """Put one question about the turn's frame; None: it was not answered in time, which is told."""
        config = self._config
        options: AskOptions = {"stream": config.name, "share": config.share, "max_tokens": max_tokens}
        options["reuse"] = config.reuse  # type: ignore[typeddict-item]  # checked with the gateway file
        if config.deadline_s is not None:
            options["deadline_s"] = config.deadline_s
        if config.max_frame_age_s is not None:
            options["max_frame_age_s"] = config.max_frame_age_s
        try:
            async with self._runtime.astream(turn.frame, question, **options) as stream:
                self._stream = stream
                if self._closed.is_set():
                    stream.cancel()
                answer = await stream.answer()
        except DeadlineExceeded as error:
            self._num_errors += 1
            self._voice.tell_error(error)
            return None
        finally:
            self._stream = None
        self._num_failures = 0
        return answer

    def _follow(self, command: Command, payload: bytes) -> None:
        if command == "enabled":
            self._switch(read_enabled(payload))
        elif command == "question":
            self._turns.question = read_question(payload)
        elif command == "every_s":
            self._turns.every_s = read_every_s(payload)
        else:
            self._turns.ask("" if payload == PRESS.encode() else read_question(payload, "ask"))
        self._reporter.note_change()

    def _switch(self, is_enabled: bool) -> None:
        self._turns.enable(is_enabled)
        self._reporter.switch(is_enabled)
        if not is_enabled and self._stream is not None:
            self._stream.cancel()

    def _passed(self, _frame: Frame) -> None:
        self._turns.moved()
        self._wake.set()

    def _tell_motion(self, has_begun: bool, index: int) -> None:
        self._voice.tell_event("motion", value=has_begun, frame=index)

    async def _report(self) -> None:
        """Tell how the camera is, if that has changed."""
        state = self._current_state()
        for type, reason in self._reporter.events(state):
            self._voice.tell_event(type, reason=reason)
        if self._reporter.is_due(state):
            self._voice.say("state", encode(state), "latest", is_retained=True)
        self._voice.tell_left_out_errors()
        await asyncio.sleep(IDLE_S)

    def _current_state(self) -> CameraStateMessage:
        every_s = self._turns.every_s
        return msgspec.structs.replace(
            self._reporter.look(),
            answers=self._num_answers,
            errors=self._num_errors,
            enabled=self._turns.is_enabled,
            question=self._turns.question,
            every_ms=None if every_s is None else round(every_s * 1000),
            when={name: debounce.state for name, debounce in self._when.items()},
        )

    def _post_command_state(self, command: Command) -> None:
        self._voice.post(self._command_state(command), "latest")

    def _command_state(self, command: Command) -> Outbound:
        turns = self._turns
        shown = {
            "enabled": shown_on_off(turns.is_enabled),
            "question": turns.question,
            "every_s": shown_every_s(turns.every_s),
            "ask": "waiting" if turns.num_asks else "idle",
        }[command]
        return self._voice.message(f"{command}/state", shown.encode(), is_retained=True, content_type="text/plain")
