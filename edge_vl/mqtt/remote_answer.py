"""A complete answer of a gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from edge_vl.mqtt.messages import AnswerFrame, End, Start

__all__ = ["RemoteAnswer"]


@dataclass(frozen=True, slots=True)
class RemoteAnswer:
    """A complete answer of a gateway.

    Attributes:
        id: of the request.
        text: the whole answer, as the gateway's last message has it.
        finish_reason: `stop`, or `length` where `max_tokens` or the context ended it.
        usage: token counts: `prompt_tokens`, `image_tokens`, `completion_tokens`.
        timings: what the gateway measured, durations in whole milliseconds as its message has them.
        node: the gateway that answered; empty where its first message was lost.
        model: what it runs; likewise.
        frame: of which frame the answer is; None without a picture.
        degraded: what was done less well than asked for; empty: nothing.
        is_consistent: False: `text` does not begin with the text that was streamed before; `text` is the one to go by.
        upload_s: seconds on this side until the broker had all raw pictures; None: none were sent.
        first_text_s: seconds on this side from asking to the first text; None: an empty answer.
        total_s: seconds on this side from asking to the end.
    """

    id: str
    text: str
    finish_reason: Literal["stop", "length"]
    usage: Mapping[str, int]
    timings: Mapping[str, Any]
    node: str = ""
    model: str = ""
    frame: AnswerFrame | None = None
    degraded: tuple[str, ...] = field(default=())
    is_consistent: bool = True
    upload_s: float | None = None
    first_text_s: float | None = None
    total_s: float = 0.0

    @classmethod
    def of(
        cls,
        start: Start | None,
        end: End,
        *,
        is_consistent: bool,
        upload_s: float | None,
        first_text_s: float | None,
        total_s: float,
    ) -> RemoteAnswer:
        """Put together what the first and the last message say."""
        return cls(
            id=end.id,
            text=end.text,
            finish_reason=end.finish_reason,
            usage=end.usage,
            timings=end.timings,
            node=start.node if start is not None else "",
            model=start.model if start is not None else "",
            frame=end.frame,
            degraded=tuple(end.degraded),
            is_consistent=is_consistent,
            upload_s=upload_s,
            first_text_s=first_text_s,
            total_s=total_s,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON-ready form."""
        return {
            "id": self.id,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "node": self.node,
            "model": self.model,
            "usage": dict(self.usage),
            "timings": dict(self.timings),
            "frame": None if self.frame is None else msgspec.to_builtins(self.frame),
            "degraded": list(self.degraded),
            "is_consistent": self.is_consistent,
            "upload_s": None if self.upload_s is None else round(self.upload_s, 6),
            "first_text_s": None if self.first_text_s is None else round(self.first_text_s, 6),
            "total_s": round(self.total_s, 6),
        }
