"""Tests of what is told about a camera."""

from __future__ import annotations

import numpy as np
import pytest

from edge_vl.answer import Answer, Usage
from edge_vl.frame import Frame
from edge_vl.gateway.camera_reports import MAX_TEXT_BYTES, ErrorReports, Moment, Outcome, answer_message, wall_time
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


def test_one_error_of_a_kind_is_told_in_ten_seconds_and_the_next_says_how_many_were_not() -> None:
    reports = ErrorReports("door")
    engine, late = ErrorFacts("engine", "broken"), ErrorFacts("deadline_exceeded", "late")

    def suppressed(facts: ErrorFacts, t_ms: int) -> int | None:
        event = reports.event(facts, Moment("now", t_ms))
        return None if event is None else event.suppressed

    assert suppressed(engine, 0) == 0
    assert [suppressed(engine, t_ms) for t_ms in (1, 5000, 9999)] == [None] * 3
    assert suppressed(late, 6000) == 0
    assert suppressed(engine, 10_000) == 3
    assert suppressed(engine, 20_000) == 0


def test_wall_time_is_utc_to_the_millisecond() -> None:
    assert wall_time(0.0015) == "1970-01-01T00:00:00.001+00:00"
