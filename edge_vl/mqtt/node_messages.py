"""What a gateway says of its own accord, as types: what it is, how it does, what its cameras see.

Later versions may add fields: readers ignore what they do not know.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edge_vl.mqtt.messages import AnswerFrame, BootId, ErrorFacts, Name, Version
from edge_vl.sources.camera_state import CameraStatus

__all__ = [
    "MAX_SHORT",
    "CameraAnswer",
    "CameraEvent",
    "CameraEventType",
    "CameraStateMessage",
    "CameraStats",
    "Info",
    "InfoLimits",
    "LinkStats",
    "Stats",
    "short_text",
]

MAX_SHORT = 255
"""Characters of a state that Home Assistant keeps."""

Count = Annotated[int, Meta(ge=0)]
Amount = Annotated[float, Meta(ge=0)]
CameraEventType = Literal["online", "offline", "disabled", "motion", "when", "error"]


def short_text(text: str) -> str:
    """Return the first line of a text, cut at a word to what fits into a state: at most 255 characters."""
    line = " ".join(text.strip().partition("\n")[0].split())
    if len(line) <= MAX_SHORT:
        return line
    words, space, _ = line[: MAX_SHORT - 1].rpartition(" ")
    return (words if space and len(words) > MAX_SHORT // 2 else line[: MAX_SHORT - 1]).rstrip() + "…"


class InfoLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway takes on. Sizes are in bytes, durations in milliseconds."""

    max_active: Count
    max_waiting: Count
    max_per_client: Count
    max_request_bytes: Count
    max_image_bytes: Count
    max_tokens: Count
    default_deadline_ms: Count


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What a gateway is; retained.

    Attributes:
        version: of edge-vl.
        boot_id: another one each time that it starts.
        started_at: wall time in ISO 8601, UTC.
        protocol: of MQTT, as the broker has agreed to.
        vision_engine: empty where the model has no eyes.
        dtypes: precision by lane.
        cameras: names, by their order in the gateway file.
        notes: what is not as the device profile wants it.
    """

    v: Version = 1
    node: str
    version: str
    boot_id: BootId
    started_at: str
    protocol: Literal["3.1.1", "5"]
    group: Name | None = None
    model: str
    profile: str
    vision_engine: str
    language_engine: str
    dtypes: dict[str, str] = {}
    context_length: Count | None = None
    cameras: list[str] = []
    limits: InfoLimits
    notes: list[str] = []


class LinkStats(msgspec.Struct, frozen=True, kw_only=True):
    """How the way to the broker is.

    Attributes:
        connections: times that it was connected.
        rtt_ms: measured round trip of a small message to the broker; None: not known yet.
        window_ms: how long text is gathered before it is sent.
        outbox_bytes: what waits to be sent.
        num_dropped: messages that were given up since it started, because the outbox was full.
    """

    connections: Count
    rtt_ms: Amount | None = None
    window_ms: Amount = 0
    outbox_bytes: Count = 0
    num_dropped: Count = 0


class CameraStats(msgspec.Struct, frozen=True, kw_only=True):
    """How a camera does. Counts are since the gateway started.

    Attributes:
        fps: frames per second that it gives now.
        frames: that it gave.
        bad: of them that could not be decoded.
        answers: of its watch.
        dropped: frames passed over between answers.
        age_ms: of the newest frame; None: there is none.
    """

    status: CameraStatus
    fps: Amount = 0
    frames: Count = 0
    bad: Count = 0
    answers: Count = 0
    dropped: Count = 0
    age_ms: Count | None = None


class Stats(msgspec.Struct, frozen=True, kw_only=True):
    """How a gateway does. Counts are since it started.

    Attributes:
        uptime_ms: since it started.
        active: requests that are worked on.
        waiting: requests behind those.
        answered: ended with `end`.
        failed: ended with `error`.
        aborted: ended with `aborted`.
        repeated: deliveries of a request that was there before.
        bad_payloads: messages that could not be used.
        first_token_ms: from a request's arrival to its first token, median of the last answers; None: there was none.
        first_token_p95_ms: which 95 % of them did not exceed.
        tokens_per_s: median of the last answers.
        tokens: of all answers.
        memory_bytes: resident memory of the process; None: not known.
        link: how the way to the broker is.
        cameras: by name.
    """

    v: Version = 1
    node: str
    boot_id: str
    uptime_ms: Count
    active: Count = 0
    waiting: Count = 0
    conversations: Count = 0
    answered: Count = 0
    failed: Count = 0
    aborted: Count = 0
    repeated: Count = 0
    bad_payloads: Count = 0
    first_token_ms: Amount | None = None
    first_token_p95_ms: Amount | None = None
    tokens_per_s: Amount | None = None
    tokens: Count = 0
    memory_bytes: Count | None = None
    link: LinkStats | None = None
    cameras: dict[str, CameraStats] = {}


class CameraStateMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What a camera does at this moment; retained.

    Attributes:
        status: as of `edge_vl.sources.camera_state.CameraState`.
        reason: why it is not online; empty when it is.
        since: wall time when it came into this status, in ISO 8601, UTC.
        at: wall time of this message, likewise.
        t_ms: monotonic clock: to be compared within one run of the gateway, and never set back.
        fps: frames per second that it gives.
        width: in pixels; 0: not known yet.
        height: likewise.
        age_ms: of the newest frame; None: there is none.
        frames: that it gave since the gateway started; so are the next ones.
        bad: of them that could not be decoded.
        connections: times that it came online.
        answers: of its watch.
        errors: answers that failed.
        question: of its watch; empty: none.
        every_ms: least time between two answers; None: as fast as it goes.
        when: what each yes/no question says by now; None: nothing yet.
    """

    v: Version = 1
    camera: str
    status: CameraStatus
    reason: str = ""
    since: str
    at: str
    t_ms: Count
    fps: Amount = 0
    width: Count = 0
    height: Count = 0
    age_ms: Count | None = None
    frames: Count = 0
    bad: Count = 0
    connections: Count = 0
    answers: Count = 0
    errors: Count = 0
    enabled: bool = True
    question: str = ""
    every_ms: Count | None = None
    when: dict[str, bool | None] = {}


class CameraEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something happened to a camera.

    Attributes:
        type: `online`, `offline`, `disabled`: its status; `motion`: something has begun to move in
            its picture, or nothing does any more; `when`: a
            yes/no question has another answer; `error`: an answer failed.
        at: wall time in ISO 8601, UTC.
        t_ms: monotonic clock: to be compared within one run of the gateway, and never set back.
        reason: of a status, for a person to read.
        name: of `when`: which question.
        value: of `when`: what it says now; of `motion`: true where it begins, false where it has ended.
        frame: index of the frame that it is about.
        suppressed: events of the same kind that were not sent since the last one, because there were too many.
        error: of `error`.
    """

    v: Version = 1
    camera: str
    type: CameraEventType
    at: str
    t_ms: Count
    reason: str = ""
    name: str | None = None
    value: bool | None = None
    frame: int | None = None
    suppressed: Count = 0
    error: ErrorFacts | None = None


class CameraAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer about a camera's newest frame; the last one is retained.

    Attributes:
        text: the whole answer.
        state: its beginning, as a state that Home Assistant keeps.
        at: wall time when the answer was complete, in ISO 8601, UTC.
        t_ms: monotonic clock: to be compared within one run of the gateway, and never set back.
        trigger: why it was asked: it was time, something moved, or somebody wanted to know.
        question: that was asked; empty: only the yes/no questions were.
        finish_reason: None: only the yes/no questions were asked.
        frame: what it is about; `frame.age_ms` counts from its capture to the end of the answer.
        first_token_ms: from the question to the first token; None: there was none.
        total_ms: from the question to the end of the answer.
        tokens_per_s: of the tokens after the first; None: fewer than two.
        when: what each yes/no question says by now.
        degraded: what was done less well than asked for, and why.
    """

    v: Version = 1
    camera: str
    question: str
    text: str
    state: Annotated[str, Meta(max_length=MAX_SHORT)]
    at: str
    t_ms: Count
    trigger: Literal["interval", "motion", "ask"]
    finish_reason: Literal["stop", "length"] | None = None
    model: str
    frame: AnswerFrame
    first_token_ms: Amount | None = None
    total_ms: Amount
    tokens_per_s: Amount | None = None
    usage: dict[str, int] = {}
    when: dict[str, bool | None] = {}
    degraded: list[str] = []
