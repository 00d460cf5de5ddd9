"""How the first-token benchmark compares what it measured."""

from __future__ import annotations

from benchmarks.peers import Reply
from benchmarks.ttft import CLIP, COLD, MTMD, OURS, XLLAMACPP, Measured


def measured(case: str, ours: list[float], theirs: list[float]) -> Measured:
    found = Measured()
    for way, times_s in ((OURS, ours), (MTMD, theirs), (XLLAMACPP, [2 * time_s for time_s in theirs])):
        for time_s in times_s:
            found.add(case, way, Reply(time_s, "x", 100, 10))
    return found


def test_medians_are_compared_where_every_time_is_of_the_same_kind() -> None:
    found = measured(COLD, [1.0, 2.0, 9.0], [4.0, 5.0, 5.0])

    assert (found.typical_s(COLD, OURS), found.typical_s(COLD, MTMD)) == (2.0, 5.0)
    row = found.table()[0]
    assert (row["of_mtmd_f16"], row["of_xllamacpp_f16"], row["times"], row["p95_s"]) == (0.4, 0.2, 3, None)


def test_slow_frames_of_a_clip_count_in_its_mean() -> None:
    found = measured(CLIP, [1.0] * 38 + [11.0, 11.0], [4.0, 5.0, 5.0])

    assert found.typical_s(CLIP, OURS) == 1.5
    assert found.typical_s(CLIP, MTMD) == 5.0
    row = found.table()[0]
    assert (row["median_s"], row["mean_s"], row["of_mtmd_f16"]) == (1.0, 1.5, 0.3)
    assert row["p95_s"] is not None
