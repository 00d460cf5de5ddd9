"""Tests of device time by stream."""

from __future__ import annotations

from edge_vl.accounts import Accounts


def test_time_is_charged_by_weight() -> None:
    accounts = Accounts()
    accounts.open("door")
    accounts.charge("door", 3.0, share=2.0)
    assert accounts.used_s("door") == 1.5


def test_a_request_without_a_stream_starts_where_the_poorest_stands_and_is_forgotten() -> None:
    accounts = Accounts()
    accounts.open("door")
    accounts.charge("door", 3.0, 1.0)
    accounts.open("yard")
    accounts.charge("yard", 2.0, 1.0)
    accounts.open("#3")
    assert accounts.used_s("#3") == 3.0
    accounts.close("#3")
    accounts.charge("#3", 1.0, 1.0)  # a unit of it that came after its end
    assert accounts.used_s("#3") == 0.0


def test_a_stream_that_comes_back_is_behind_by_no_more_than_about_a_request() -> None:
    accounts = Accounts()
    for name in ("door", "yard"):
        accounts.open(name)
    accounts.charge("yard", 1.0, 1.0)
    accounts.close("yard")
    accounts.charge("door", 2.0, 1.0)
    accounts.close("door")
    accounts.open("door")
    accounts.open("yard")  # at once: it keeps its place
    assert accounts.used_s("yard") == 1.0
    accounts.close("yard")
    for _ in range(50):
        accounts.charge("door", 2.0, 1.0)
        accounts.close("door")
        accounts.open("door")
    accounts.open("yard")
    assert accounts.used_s("door") == 102.0
    assert accounts.used_s("yard") == 100.0


def test_the_time_of_many_streams_takes_no_more_room_than_that_of_a_few() -> None:
    accounts = Accounts()
    for number in range(2000):
        accounts.open(f"stream {number}")
        accounts.charge(f"stream {number}", 1.0, 1.0)
        accounts.close(f"stream {number}")
    assert sum(accounts.used_s(f"stream {number}") > 0 for number in range(2000)) <= 256
