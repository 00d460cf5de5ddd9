from __future__ import annotations

from edge_vl.gateway.announcements import Announcements


def test_a_few_are_said_at_once_and_then_one_in_a_while() -> None:
    now_s = 100.0
    announcements = Announcements(every_s=2.0, burst=3, clock=lambda: now_s)
    assert [announcements.wait_s() for _ in range(4)] == [0.0, 0.0, 0.0, 2.0]
    now_s += 0.5
    assert announcements.wait_s() == 1.5
    now_s += 1.5
    assert announcements.wait_s() == 0.0
    assert announcements.wait_s() > 0
    now_s += 1000
    assert [announcements.wait_s() for _ in range(4)] == [0.0, 0.0, 0.0, 2.0]
