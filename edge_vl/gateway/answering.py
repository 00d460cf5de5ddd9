"""Works on one request: its pictures, its answer, and exactly one end, whatever happens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from edge_vl.answer import Answer
from edge_vl.asking import AskOptions
from edge_vl.async_answer_stream import AsyncAnswerStream
from edge_vl.errors import Cancelled, DeadlineExceeded, EdgeVLError, Interrupted, QueueFull
from edge_vl.gateway.active import ActiveRequest
from edge_vl.gateway.conversations import Conversations
from edge_vl.gateway.error_facts import error_facts, late
from edge_vl.gateway.request_images import RequestImage, RequestImages
from edge_vl.mqtt.messages import AnswerFrame, End
from edge_vl.rate_limited_log import RateLimitedLog
from edge_vl.runtime import Runtime

__all__ = ["Answering"]

_log = logging.getLogger(__name__)

_AGAIN_S = 0.05
"""How soon the runtime is asked again that has no room."""


class Answering:
    """Answers requests, each in a task of its own. What one of them raises reaches no other."""

    def __init__(
        self,
        runtime: Runtime,
        images: RequestImages,
        conversations: Conversations,
        *,
        broker_rtt_s: Callable[[], float | None],
        on_answer: Callable[[Answer], object] = lambda answer: None,
    ) -> None:
        """Keep what it answers with.

        Args:
            runtime: answers.
            images: fetches pictures.
            conversations: keeps turns.
            broker_rtt_s: says what the round trip to the broker takes by now.
            on_answer: told of each complete answer.
        """
        self._runtime = runtime
        self._images = images
        self._conversations = conversations
        self._broker_rtt_s = broker_rtt_s
        self._on_answer = on_answer
        self._rated_log = RateLimitedLog(_log)

    async def work(self, active: ActiveRequest) -> None:
        """Answer a request whose turn has come, and write its end."""
        active.begun_s = time.monotonic()
        try:
            await self._answer(active)
        except DeadlineExceeded as error:
            active.writer.error(self._late(active, error), error.text)
        except Cancelled as error:
            active.writer.abort(active.abort_reason or "cancelled", error.text)
        except Interrupted as error:
            active.writer.error(error_facts(error), error.text)
        except EdgeVLError as error:
            active.writer.error(error_facts(error))
        except TimeoutError:
            active.writer.error(late(active.deadline_ms, "fetching its pictures"))
        except asyncio.CancelledError:
            active.writer.abort(active.abort_reason or "shutdown")
            raise
        except Exception as error:  # a defect, here or in an engine, must end this request only
            self._rated_log.warning("defect", "a request failed with %s: %s", type(error).__name__, error)
            _log.debug("the traceback", exc_info=error)
            active.writer.error(error_facts(error))

    async def _answer(self, active: ActiveRequest) -> None:
        request = active.request
        async with asyncio.timeout(active.limit_s - time.monotonic()):
            images = await self._images.of(request)
        fetched_s = time.monotonic()
        key = None if request.conversation is None else (request.client, request.conversation)
        if active.abort_reason is not None:  # meanwhile
            raise Cancelled(stage="picture")
        pictures = [image.picture for image in images]
        if key is None:

            def ask() -> AsyncAnswerStream:
                return self._runtime.astream(pictures, request.question, **_options(active))

            await self._pass_on(active, ask, images, fetched_s, [])
            return
        conversation, was_ended = self._conversations.begin_turn(key)

        def go_on() -> AsyncAnswerStream:
            return conversation.astream(request.question, pictures, **_options(active))

        try:
            notes = ["the conversation had been ended to make room for others; it begins anew"] if was_ended else []
            await self._pass_on(active, go_on, images, fetched_s, notes)
        finally:
            self._conversations.end_turn(key)

    async def _pass_on(
        self,
        active: ActiveRequest,
        ask: Callable[[], AsyncAnswerStream],
        images: Sequence[RequestImage],
        fetched_s: float,
        notes: list[str],
    ) -> None:
        while True:
            try:
                answer = await self._read(active, ask())
                break
            except QueueFull:  # it was taken, and who asks knows that; others who use the runtime are before it
                if active.limit_s - time.monotonic() <= _AGAIN_S:
                    raise DeadlineExceeded(active.deadline_ms / 1000, stage="queue") from None
            await asyncio.sleep(_AGAIN_S)
            if active.abort_reason is not None:
                raise Cancelled(stage="queue")
        degraded = [*answer.degraded, *notes]
        usage = {
            "prompt_tokens": answer.usage.prompt_tokens,
            "image_tokens": answer.usage.image_tokens,
            "completion_tokens": answer.usage.completion_tokens,
        }
        timings = self._timings(active, answer, images, fetched_s)
        frame = _frame(images)
        self._on_answer(answer)
        active.writer.end(
            lambda seq, t_ms: End(
                id=active.request.id,
                seq=seq,
                t_ms=t_ms,
                text=answer.text,
                finish_reason=answer.finish_reason,
                usage=usage,
                timings=timings,
                degraded=degraded,
                frame=frame,
            )
        )

    @staticmethod
    async def _read(active: ActiveRequest, stream: AsyncAnswerStream) -> Answer:
        """Pass the text of an answer on while it comes."""
        active.stream = stream
        add = active.writer.add if active.request.stream else None
        async with stream:
            async for token in stream:
                if token.kind == "text" and add is not None:
                    add(token.text)
            return await stream.answer()

    def _timings(
        self, active: ActiveRequest, answer: Answer, images: Sequence[RequestImage], fetched_s: float
    ) -> dict[str, Any]:
        """Say where the time between the request's arrival and the answer's end went, in milliseconds."""
        timings = answer.timings
        begun_s = fetched_s if active.begun_s is None else active.begun_s
        parts: dict[str, float | None] = {
            "wait": begun_s - active.received_s,
            "image": fetched_s - begun_s + timings.stage_s("picture"),
            "tile": timings.stage_s("tile"),
            "layout": timings.stage_s("layout"),
            "queue": timings.stage_s("queue"),
            "encode": timings.stage_s("encode"),
            "prefill": timings.stage_s("prefill"),
            "decode": timings.stage_s("decode"),
            "first_token": None
            if timings.first_token_s is None
            else fetched_s - active.received_s + timings.first_token_s,
            "publish": active.writer.publish_s,
            "broker_rtt": self._broker_rtt_s(),
            "frame_age": min((image.captured_s for image in images), default=None),
            "total": time.monotonic() - active.received_s,
        }
        if parts["frame_age"] is not None:
            parts["frame_age"] = time.monotonic() - parts["frame_age"]
        facts: dict[str, Any] = {name: None if part is None else round(part * 1000, 3) for name, part in parts.items()}
        rate = timings.tokens_per_s
        facts["tokens_per_s"] = None if rate is None else round(rate, 3)
        facts["reuse_rate"] = round(timings.reuse_rate, 4)
        facts["mode"] = timings.schedule.get("mode")
        return facts

    @staticmethod
    def _late(active: ActiveRequest, error: DeadlineExceeded) -> Any:
        """Tell a late answer by the client's own limit: the runtime knows only what was left of it."""
        if time.monotonic() >= active.limit_s - 0.001 or active.request.max_frame_age_ms is None:
            return late(active.deadline_ms, error.stage)
        facts = error_facts(error)
        return type(facts)(facts.type, facts.message, "max_frame_age_ms")


def _options(active: ActiveRequest) -> AskOptions:
    request = active.request
    options: AskOptions = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "deadline_s": max(0.001, active.limit_s - time.monotonic()),
    }
    if request.max_frame_age_ms is not None and request.images:
        options["max_frame_age_s"] = request.max_frame_age_ms / 1000
    return options


def _frame(images: Sequence[RequestImage]) -> AnswerFrame | None:
    """Say what the answer is about: its oldest picture."""
    if not images:
        return None
    oldest = min(images, key=lambda image: image.captured_s)
    return AnswerFrame(
        source=oldest.source,
        index=oldest.index,
        captured_at=datetime.fromtimestamp(oldest.captured_wall_s, UTC).isoformat(timespec="milliseconds"),
        age_ms=max(0, round((time.monotonic() - oldest.captured_s) * 1000)),
    )
