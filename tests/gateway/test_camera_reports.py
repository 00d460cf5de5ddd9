"""Tests of what is told about a camera."""

from __future__ import annotations

import numpy as np
import pytest

from edge_vl.answer import Answer, Usage
from edge_vl.frame import Frame
from edge_vl.gateway.camera_reports import (
    ERRORS_AT_ONCE,
    MAX_TEXT_BYTES,
    ErrorReports,
    Moment,
    Outcome,
    answer_message,
    wall_time,
)
from edge_vl.gateway.camera_turns import Turn
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.messages import ErrorFacts
from edge_vl.mqtt.node_messages import MAX_SHORT
from edge_vl.trace import Timings

FRAME = Frame(np.zeros((2, 2, 3), np.uint8), 10.0, 1_000_000_000.25, "rtsp://secret@host", 7)


def answer_of(text: str) -> Answer:
    timings = Timings((), 0.5, 2.0, (0.5, 1.0, 1.5))
    return Answer(text, "", "stop", "bundled", "fake", "fake", {}, Usage(20, 10, 3), timings, {})


def test_an_answer_is_told_with_its_frame_and_its_times() -> None:
    answer = answer_of("A dog.\nIt sleeps.")
    outcome = Outcome(11.0, answer=answer, first=answer, when={"dog": True}, num_dropped=4)
    message = answer_message("door", Turn(FRAME, "What?", True, "motion"), outcome, Moment("now", 13_000))
    assert (message.text, message.state, message.question, message.trigger) == (
        "A dog.\nIt sleeps.",
        "A dog.",
        "What?",
        "motion",
    )
    assert (message.first_token_ms, message.total_ms, message.tokens_per_s) == (500.0, 2000.0, 2.0)
    frame = message.frame
    assert (frame.source, frame.index, frame.age_ms, frame.dropped) == ("door", 7, 3000, 4)
    assert frame.captured_at == "2001-09-09T01:46:40.250+00:00"
    assert b"secret" not in encode(message)
    assert message.usage == {"prompt_tokens": 20, "image_tokens": 10, "completion_tokens": 3}


def test_yes_no_questions_alone_have_no_text_but_times() -> None:
    outcome = Outcome(11.0, first=answer_of("yes"), when={"dog": None})
    message = answer_message("door", Turn(FRAME, "", True, "interval"), outcome, Moment("now", 13_000))
    assert (message.text, message.state, message.question, message.finish_reason) == ("", "", "", None)
    assert message.first_token_ms == 500.0
    with pytest.raises(ValueError, match="without an answer"):
        answer_message("door", Turn(FRAME, "", True, "interval"), Outcome(11.0), Moment("now", 13_000))


@pytest.mark.parametrize(
    "text", ["é" * 200_000, "\udcff" * 200_000, "word " * 50_000, "\x01" * 100_000, "a" * 95_000 + "\x01" * 50_000]
)
def test_an_answer_beyond_measure_still_fits_into_a_message(text: str) -> None:
    answer = answer_of(text)
    outcome = Outcome(11.0, answer=answer, first=answer)
    message = answer_message("door", Turn(FRAME, "What?", False, "ask"), outcome, Moment("now", 13_000))
    assert 0.3 * MAX_TEXT_BYTES < len(encode(message)) < 128_000
    assert len(message.state) <= MAX_SHORT


def test_a_few_errors_of_a_kind_are_told_at_once_then_one_in_ten_seconds() -> None:
    reports = ErrorReports()
    engine, late = ErrorFacts("engine", "broken"), ErrorFacts("deadline_exceeded", "late")

    def suppressed(facts: ErrorFacts, t_ms: int) -> int | None:
        event = reports.event("door", facts, Moment("now", t_ms))
        return None if event is None else event.suppressed

    assert [suppressed(engine, 0) for _ in range(ERRORS_AT_ONCE)] == [0] * ERRORS_AT_ONCE
    assert [suppressed(engine, t_ms) for t_ms in (1, 5000, 9999)] == [None] * 3
    assert suppressed(late, 6000) == 0
    assert suppressed(engine, 10_000) == 3
    assert suppressed(engine, 20_000) == 0
    assert suppressed(engine, 20_001) is None


def test_an_error_about_another_field_is_another_kind() -> None:
    reports = ErrorReports()
    every_s, enabled = (ErrorFacts("invalid_request", "wrong", param) for param in ("every_s", "enabled"))
    for t_ms in range(20):
        reports.event("door", every_s, Moment("now", t_ms))
    event = reports.event("door", enabled, Moment("now", 20))
    assert event is not None
    assert event.error == enabled


def test_what_was_left_out_last_is_told_when_its_time_comes() -> None:
    reports = ErrorReports()
    for number in range(ERRORS_AT_ONCE + 3):
        reports.event("door", ErrorFacts("engine", f"broken {number}"), Moment("now", 0))
    assert reports.left_out(Moment("now", 9999)) == []
    (event,) = reports.left_out(Moment("now", 10_000))
    assert event.error == ErrorFacts("engine", f"broken {ERRORS_AT_ONCE + 2}")
    assert (event.camera, event.suppressed) == ("door", 2)
    assert reports.left_out(Moment("now", 60_000)) == []


def test_kinds_of_errors_are_not_remembered_without_end() -> None:
    reports = ErrorReports()
    for number in range(1000):
        assert reports.event("door", ErrorFacts("engine", "x", f"field {number}"), Moment("now", 0)) is not None
    assert len(reports._kinds) <= 64


def test_wall_time_is_utc_to_the_millisecond() -> None:
    assert wall_time(0.0015) == "1970-01-01T00:00:00.001+00:00"
