"""Tests of which question about a camera is due."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edge_vl import QueueFull, RequestError
from edge_vl.frame import Frame
from edge_vl.gateway.camera_turns import MAX_ASKS, CameraTurns


def frame(index: int) -> Frame:
    return Frame(np.zeros((2, 2, 3), np.uint8), 0.0, 0.0, "door", index)


def turns(question: str = "What?", every_s: float | None = None, **more: Any) -> CameraTurns:
    return CameraTurns(question, every_s, **{"is_enabled": True, "has_when": False, "on_motion": False, **more})


def test_each_newer_frame_gets_its_turn_and_no_frame_gets_two() -> None:
    camera = turns()
    assert camera.next(None, 0.0) is None
    first = camera.next(frame(3), 0.0)
    assert first is not None
    assert (first.question, first.trigger, first.frame.index) == ("What?", "interval", 3)
    assert camera.next(frame(3), 1.0) is None
    assert camera.next(frame(4), 1.0) is not None


def test_the_pause_counts_from_begin_to_begin() -> None:
    camera = turns(every_s=2.0)
    assert camera.next(frame(0), 10.0) is not None
    assert camera.next(frame(1), 11.9) is None
    assert not camera.is_due(11.9)
    assert camera.next(frame(2), 12.0) is not None


def test_without_any_question_nothing_is_due_but_what_somebody_asks() -> None:
    camera = turns(question="")
    assert camera.next(frame(0), 0.0) is None
    with pytest.raises(RequestError, match="no question"):
        camera.ask("")
    camera.ask("Is it raining?")
    turn = camera.next(frame(0), 0.0)
    assert turn is not None
    assert (turn.question, turn.trigger, turn.has_when) == ("Is it raining?", "ask", False)


def test_yes_no_questions_alone_are_a_reason_for_a_turn() -> None:
    turn = turns(question="", has_when=True).next(frame(0), 0.0)
    assert turn is not None
    assert turn.question == ""
    assert turn.has_when


def test_with_motion_each_movement_is_worth_one_turn_about_a_newer_frame() -> None:
    camera = turns(on_motion=True)
    assert camera.next(frame(0), 0.0) is None
    camera.moved()
    turn = camera.next(frame(1), 0.0)
    assert turn is not None
    assert turn.trigger == "motion"
    assert camera.next(frame(2), 1.0) is None


def test_who_asks_comes_first_and_gets_the_newest_frame_also_in_a_pause() -> None:
    camera = turns(every_s=60.0, has_when=True)
    camera.next(frame(0), 0.0)
    camera.ask("")
    turn = camera.next(frame(0), 0.1)
    assert turn is not None
    assert (turn.question, turn.trigger, turn.has_when) == ("What?", "ask", True)
    camera.pause(1000.0)
    camera.ask("Who?")
    assert camera.next(frame(1), 0.2) is not None
    assert not camera.is_due(999.0)


def test_a_switched_off_camera_takes_no_question_and_forgets_those_that_wait() -> None:
    camera = turns()
    camera.ask("Who?")
    camera.enable(False)
    assert camera.num_asks == 0
    assert camera.next(frame(0), 0.0) is None
    with pytest.raises(RequestError, match="switched off"):
        camera.ask("Who?")
    camera.enable(True)
    assert camera.next(frame(0), 0.0) is not None


def test_only_a_few_questions_may_wait() -> None:
    camera = turns()
    for _ in range(MAX_ASKS):
        camera.ask("Who?")
    with pytest.raises(QueueFull):
        camera.ask("Who?")


def test_a_question_for_which_there_is_no_frame_is_taken_off() -> None:
    camera = turns()
    assert not camera.has_ask_without(None)
    camera.ask("Who?")
    assert not camera.has_ask_without(frame(0))
    assert camera.has_ask_without(None)
    assert camera.num_asks == 0


@pytest.mark.parametrize("asked", ["", "Who?"])
def test_a_turn_that_was_put_back_is_due_again(asked: str) -> None:
    camera = turns(has_when=True, every_s=60.0)
    camera.ask(asked)
    turn = camera.next(frame(0), 0.0)
    assert turn is not None
    camera.put_back(turn)
    again = camera.next(frame(0), 0.0)
    assert again is not None
    assert (again.question, again.has_when) == (turn.question, turn.has_when)

    slow = turns(every_s=60.0, on_motion=True)
    slow.moved()
    turn = slow.next(frame(0), 5.0)
    assert turn is not None
    slow.put_back(turn)
    assert slow.next(frame(1), 5.1) is not None
