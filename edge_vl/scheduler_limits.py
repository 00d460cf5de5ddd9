"""Bounds of the co-scheduler."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerLimits", "usual_keep_bytes"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What the co-scheduler must not exceed.

    Attributes:
        max_active: requests at work at the same time; the others wait.
        max_idle_caches: KV caches that are kept although nobody uses them.
        max_idle_bytes: memory that these may hold together.
        max_embeds_bytes: memory that kept image embeds may hold.
        max_grids_bytes: memory that pictures kept in cut form may hold.
        answer_share: share of the device that running answers keep while new requests are prepared.
        slice_tokens: most tokens of a prefill pass while an answer runs.
        idle_s: how long work that could be done may wait before the smallest unit of it is forced.
        hang_factor: a unit that takes so many times its usual time counts as hung ...
        min_hang_s: ... but not before this ...
        first_hang_s: ... nor before this where no usual time is known.
        max_faults_in_row: failures of a lane, one after the other, after which it counts as dead.
    """

    max_active: int = 4
    max_idle_caches: int = 4
    max_idle_bytes: int = 128 * _MIB
    max_embeds_bytes: int = 64 * _MIB
    max_grids_bytes: int = 64 * _MIB
    answer_share: float = 0.52
    slice_tokens: int = 64
    idle_s: float = 0.05
    hang_factor: float = 10.0
    min_hang_s: float = 60.0
    first_hang_s: float = 900.0
    max_faults_in_row: int = 3

    @staticmethod
    def keeping(keep_bytes: int) -> SchedulerLimits:
        """Return bounds that keep so much in all for requests to come: half of it KV caches.

        Args:
            keep_bytes: 0 keeps nothing.
        """
        return SchedulerLimits(
            max_idle_caches=4 if keep_bytes else 0,
            max_idle_bytes=keep_bytes // 2,
            max_embeds_bytes=keep_bytes // 4,
            max_grids_bytes=keep_bytes // 4,
        )


def usual_keep_bytes(available_bytes: int | None) -> int:
    """Return how much is kept where nobody says: a sixteenth of the memory that is free, 16 to 256 MiB."""
    return 64 * _MIB if available_bytes is None else min(max(available_bytes // 16, 16 * _MIB), 256 * _MIB)
