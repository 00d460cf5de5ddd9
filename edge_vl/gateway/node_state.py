"""What a gateway says about itself: what it is, and how it does."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from edge_vl import __version__
from edge_vl.answer import Answer
from edge_vl.gateway.config import GatewayConfig
from edge_vl.mqtt.messages import Aborted, End, ErrorMessage, StreamMessage
from edge_vl.mqtt.node_messages import CameraStats, Info, InfoLimits, LinkStats, Stats
from edge_vl.runtime import Runtime

__all__ = ["NodeState", "resident_bytes"]

_NUM_RECENT = 128
"""Answers that medians are taken of."""


class NodeState:
    """Counts what happens, and makes `info` and `stats` of it."""

    def __init__(self, config: GatewayConfig, runtime: Runtime, boot_id: str) -> None:
        """Begin to count.

        Args:
            config: of the gateway.
            runtime: what it answers with.
            boot_id: of this run of it.
        """
        self._config = config
        self._runtime = runtime
        self._boot_id = boot_id
        self._started_s = time.monotonic()
        self._started_at = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._first_token_s: deque[float] = deque(maxlen=_NUM_RECENT)
        self._tokens_per_s: deque[float] = deque(maxlen=_NUM_RECENT)
        self.num_answered = 0
        self.num_failed = 0
        self.num_aborted = 0
        self.num_repeated = 0
        self.num_bad = 0
        self.num_tokens = 0

    @property
    def boot_id(self) -> str:
        """Of this run."""
        return self._boot_id

    @property
    def started_at(self) -> str:
        """Wall time when it started, in ISO 8601, UTC."""
        return self._started_at

    def note_end(self, message: StreamMessage) -> None:
        """Count the last message of a request."""
        if isinstance(message, End):
            self.num_answered += 1
            self.num_tokens += message.usage.get("completion_tokens", 0)
            first_ms = message.timings.get("first_token")
            if first_ms is not None:
                self._first_token_s.append(first_ms / 1000)
        elif isinstance(message, ErrorMessage):
            self.num_failed += 1
        elif isinstance(message, Aborted):
            self.num_aborted += 1

    def note_answer(self, answer: Answer) -> None:
        """Look at how fast an answer was."""
        if answer.timings.tokens_per_s is not None:
            self._tokens_per_s.append(answer.timings.tokens_per_s)

    def info(self, protocol: Literal["3.1.1", "5"]) -> Info:
        """Say what it is.

        Args:
            protocol: that the broker has agreed to.
        """
        config, runtime, limits = self._config, self._runtime, self._config.limits
        vision, language = runtime.vision_spec, runtime.language_spec
        dtypes = {"language": language.dtype}
        if vision is not None:
            dtypes["vision"] = vision.dtype
        return Info(
            node=config.node,
            version=__version__,
            boot_id=self._boot_id,
            started_at=self._started_at,
            protocol=protocol,
            group=config.group,
            model=runtime.model.name,
            profile=runtime.profile,
            vision_engine="" if vision is None else vision.engine,
            language_engine=language.engine,
            dtypes=dtypes,
            context_length=language.context_length,
            cameras=[camera.name for camera in config.cameras],
            limits=InfoLimits(
                max_active=limits.max_active,
                max_waiting=limits.max_waiting,
                max_per_client=limits.max_per_client,
                max_request_bytes=limits.max_request_bytes,
                max_image_bytes=limits.max_image_bytes,
                max_tokens=limits.max_tokens,
                default_deadline_ms=round(limits.default_deadline_s * 1000),
            ),
            notes=list(runtime.notes),
        )

    def stats(
        self,
        *,
        num_active: int,
        num_waiting: int,
        num_conversations: int,
        link: LinkStats,
        cameras: Mapping[str, CameraStats],
    ) -> Stats:
        """Say how it does.

        Args:
            num_active: requests that run.
            num_waiting: requests that wait.
            num_conversations: that are kept.
            link: how the way to the broker is.
            cameras: by name.
        """
        return Stats(
            node=self._config.node,
            boot_id=self._boot_id,
            uptime_ms=round((time.monotonic() - self._started_s) * 1000),
            active=num_active,
            waiting=num_waiting,
            conversations=num_conversations,
            answered=self.num_answered,
            failed=self.num_failed,
            aborted=self.num_aborted,
            repeated=self.num_repeated,
            bad_payloads=self.num_bad,
            tokens=self.num_tokens,
            first_token_ms=_ms(_quantile(self._first_token_s, 0.5)),
            first_token_p95_ms=_ms(_quantile(self._first_token_s, 0.95)),
            tokens_per_s=round(statistics.median(self._tokens_per_s), 2) if self._tokens_per_s else None,
            memory_bytes=resident_bytes(),
            link=link,
            cameras=dict(cameras),
        )


def resident_bytes(status: Path = Path("/proc/self/status")) -> int | None:
    """Return the resident memory of this process; None: not known."""
    try:
        for line in status.read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return None


def _quantile(values: deque[float], share: float) -> float | None:
    """Return the value that this share of them does not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 2)
