from __future__ import annotations

from edge_vl.mqtt.take_overs import TakeOvers
from edge_vl.mqtt.transport import Loss

TOLD = Loss("taken over", is_by_broker=True, is_taken_over=True)
CLOSED = Loss("the broker closed the connection", is_by_broker=True)
SILENT = Loss("nothing came from the broker any more")


def test_three_take_overs_within_a_minute_are_too_many() -> None:
    take_overs = TakeOvers(may_be_shared=True)
    assert [take_overs.judge(TOLD, 30.0, now_s) for now_s in (0.0, 20.0, 59.0)] == ["no", "no", "yes"]


def test_a_take_over_now_and_then_is_borne() -> None:
    take_overs = TakeOvers(may_be_shared=True)
    assert {take_overs.judge(TOLD, 30.0, 31.0 * number) for number in range(10)} == {"no"}


def test_three_connections_that_the_broker_closes_soon_are_a_suspicion() -> None:
    take_overs = TakeOvers(may_be_shared=True)
    assert [take_overs.judge(CLOSED, 0.2, now_s) for now_s in (0.0, 1.0, 3.0)] == ["no", "no", "perhaps"]
    assert take_overs.judge(CLOSED, 0.2, 4.0) == "no"


def test_an_id_that_was_made_up_is_nobody_elses_unless_the_broker_says_so() -> None:
    take_overs = TakeOvers(may_be_shared=False)
    assert {take_overs.judge(CLOSED, 0.2, number / 10) for number in range(10)} == {"no"}
    assert [take_overs.judge(TOLD, 0.2, now_s) for now_s in (2.0, 3.0, 4.0)] == ["no", "no", "yes"]


def test_a_connection_that_lived_long_or_fell_silent_is_no_suspicion() -> None:
    take_overs = TakeOvers(may_be_shared=True)
    assert {take_overs.judge(CLOSED, 11.0, float(number)) for number in range(10)} == {"no"}
    assert {take_overs.judge(SILENT, 0.2, float(number)) for number in range(10)} == {"no"}
