"""Tests of the debounced yes/no state."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl import RequestError
from edge_vl.debounce import Debounce


def test_a_single_other_answer_changes_nothing() -> None:
    state = Debounce(2)
    assert [state.update(value) for value in (True, True, False, True, False, False)] == [
        None,
        True,
        None,
        None,
        None,
        False,
    ]
    assert state.state is False


def test_after_one_every_change_is_followed_and_an_equal_answer_is_no_change() -> None:
    state = Debounce(1)
    assert [state.update(value) for value in (False, False, True, True)] == [False, None, True, None]


def test_unclear_answers_change_nothing_and_do_not_interrupt_a_row() -> None:
    state = Debounce(2)
    assert [state.update(value) for value in (None, True, None, True, None)] == [None, None, None, True, None]
    assert state.state is True


@pytest.mark.parametrize("after", [0, -1, 1.5, True, "2"])
def test_a_number_of_answers_that_makes_no_sense_is_refused(after: object) -> None:
    with pytest.raises(RequestError, match="after"):
        Debounce(after)  # type: ignore[arg-type]


@given(st.integers(1, 5), st.lists(st.sampled_from([True, False, None]), max_size=60))
def test_a_state_is_always_what_the_last_clear_answers_said_when_it_changed(
    after: int, answers: list[bool | None]
) -> None:
    state = Debounce(after)
    clear: list[bool] = []
    before: bool | None = None
    for answer in answers:
        changed = state.update(answer)
        if answer is not None:
            clear.append(answer)
        row = clear[-after:]
        must_change = answer is not None and len(row) == after and set(row) == {answer} and before is not answer
        assert (changed is not None) == must_change
        if changed is not None:
            assert changed is answer
            before = changed
        assert state.state is before
