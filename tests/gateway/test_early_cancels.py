from __future__ import annotations

from edge_vl.gateway.early_cancels import KEPT_S, MAX_CANCELS, EarlyCancels


def test_a_cancel_ends_one_request_of_its_client_within_its_time() -> None:
    now_s = 5.0
    cancels = EarlyCancels(lambda: now_s)
    cancels.add("alice", "q")
    assert not cancels.take("bob", "q")
    assert cancels.take("alice", "q")
    assert not cancels.take("alice", "q")
    cancels.add(None, "r")
    assert cancels.take("bob", "r")
    cancels.add("alice", "late")
    now_s += KEPT_S
    assert not cancels.take("alice", "late")


def test_no_more_are_remembered_than_may_be() -> None:
    cancels = EarlyCancels(lambda: 0.0)
    for number in range(3 * MAX_CANCELS):
        cancels.add(None, f"q{number}")
    assert len(cancels) == MAX_CANCELS
    assert not cancels.take("a", "q0")
    assert cancels.take("a", f"q{3 * MAX_CANCELS - 1}")
