"""Every JSON message of the MQTT contract, version 1, as a type. JSON schemas are made from these.

Durations are whole milliseconds on the wire; Python has seconds. Unknown fields are errors in what comes in.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from edge_vl.mqtt.topics import NAME

__all__ = [
    "AbortReason",
    "Aborted",
    "AnswerFrame",
    "Cancel",
    "Claim",
    "Delta",
    "End",
    "ErrorFacts",
    "ErrorMessage",
    "ErrorType",
    "ImageRef",
    "Request",
    "Start",
    "StreamMessage",
]

ErrorType = Literal[
    "invalid_request", "image", "context_length", "memory_budget", "deadline_exceeded", "overloaded", "engine"
]

AbortReason = Literal["cancelled", "shutdown", "restart", "worker_lost"]

Name = Annotated[str, Meta(pattern=f"^{NAME}$")]
Version = Literal[1]
Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Topic = Annotated[str, Meta(min_length=1, max_length=1024)]
BootId = Annotated[str, Meta(min_length=1, max_length=64)]


class ImageRef(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A picture of a request: exactly one of the four.

    Attributes:
        camera: name of one of the gateway's cameras; its newest frame.
        file: path under one of the gateway's folders.
        base64: the encoded picture itself.
        topic: where the raw bytes of a picture were sent before the request: `<prefix>/<node>/image/<client>/<id>`.
    """

    camera: Name | None = None
    file: Annotated[str, Meta(min_length=1, max_length=4096)] | None = None
    base64: Annotated[str, Meta(min_length=1)] | None = None
    topic: Topic | None = None

    def __post_init__(self) -> None:
        """See that it is exactly one; `msgspec` turns the error into one that has the path."""
        given = [name for name in ("camera", "file", "base64", "topic") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"an image has exactly one of camera, file, base64 and topic, not {len(given)} of them")


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A question. `client` and `id` name the topic of the answer unless `reply_to` does.

    Attributes:
        v: version of the contract.
        id: chosen by the client, another one for each request; the same one again is not answered twice.
        question: what to ask.
        client: who asks; limits count by it.
        images: what the question is about, in this order.
        conversation: a name of the client's own; requests with the same one continue it.
        stream: whether text is sent while it is made; else all of it at the end.
        max_tokens: most tokens of the answer.
        temperature: 0 takes the most likely token; larger is freer.
        seed: with a temperature: equal seeds give equal answers.
        schema: for structured answers, which are not there yet.
        deadline_ms: from the request's arrival until the whole answer must be there.
        max_frame_age_ms: from the moment the picture was taken until the whole answer must be there.
        reply_to: topic of the answer, below one that the gateway allows.
    """

    v: Version = 1
    id: Name
    question: Annotated[str, Meta(min_length=1, max_length=16_384)]
    client: Name = "anonymous"
    images: Annotated[list[ImageRef], Meta(max_length=16)] = []
    conversation: Name | None = None
    stream: bool = True
    max_tokens: Annotated[int, Meta(ge=1, le=32_768)] = 256
    temperature: Annotated[float, Meta(ge=0, le=100)] = 0.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    schema: dict[str, Any] | None = None
    deadline_ms: Milliseconds | None = None
    max_frame_age_ms: Milliseconds | None = None
    reply_to: Topic | None = None


class Cancel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wish to end a request.

    Attributes:
        id: of the request.
        v: version of the contract.
        client: whose request it is; None: every request with this id, whoever asked.
    """

    id: Name
    v: Version = 1
    client: Name | None = None


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker has taken from its group, or, with `released`, has ended. Others' later fields are ignored."""

    v: Version = 1
    id: Name
    node: Name
    boot_id: BootId
    reply_to: Topic
    deadline_ms: int | None = None
    released: bool = False


class AnswerFrame(msgspec.Struct, frozen=True, kw_only=True):
    """The frame that an answer is about.

    Attributes:
        source: the camera's name, or what the picture was.
        index: counts the frames of the camera.
        captured_at: wall time in ISO 8601, UTC.
        age_ms: from capture to the end of the answer.
        dropped: frames passed over since the last answer of the same watch.
    """

    source: str
    index: int
    captured_at: str
    age_ms: int
    dropped: int = 0


class ErrorFacts(msgspec.Struct, frozen=True):
    """What was wrong: its kind, words for a person, and the field it is about."""

    type: ErrorType
    message: str
    param: str | None = None


class _Streamed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every message of a stream has.

    Attributes:
        id: of the request.
        seq: counts the messages of the stream from 0; None in `aborted` by another worker, who does not know it.
        t_ms: since the gateway had the request.
    """

    id: str
    seq: int | None
    t_ms: int
    v: Version = 1


class Start(_Streamed, frozen=True, kw_only=True, tag="start"):
    """The request was taken."""

    node: str
    boot_id: str
    model: str


class Delta(_Streamed, frozen=True, kw_only=True, tag="delta"):
    """More text of the answer; `tokens` of them made it."""

    text: str
    tokens: int = 1


class End(_Streamed, frozen=True, kw_only=True, tag="end"):
    """The answer is complete: its whole text, once more."""

    text: str
    finish_reason: Literal["stop", "length"]
    usage: dict[str, int]
    timings: dict[str, Any]
    degraded: list[str] = []
    frame: AnswerFrame | None = None


class ErrorMessage(_Streamed, frozen=True, kw_only=True, tag="error"):
    """There will be no answer, because of an error."""

    error: ErrorFacts
    text: str = ""


class Aborted(_Streamed, frozen=True, kw_only=True, tag="aborted"):
    """There will be no answer, because somebody gave the request up."""

    reason: AbortReason
    text: str = ""


StreamMessage = Start | Delta | End | ErrorMessage | Aborted
