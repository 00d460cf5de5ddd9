from __future__ import annotations

from edge_vl.mqtt.coalescer import Coalescer, Piece


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def stream(window_s: float) -> tuple[Coalescer, Clock]:
    clock = Clock()
    return Coalescer(lambda: window_s, clock), clock


def test_the_first_piece_never_waits() -> None:
    coalescer, _ = stream(0.5)
    assert coalescer.add("a") == Piece("a", 1)


def test_on_a_fast_link_no_piece_waits_although_none_is_confirmed_yet() -> None:
    coalescer, clock = stream(0.0)
    for text in "abc":
        assert coalescer.add(text) == Piece(text, 1)
        clock.now_s += 0.01


def test_a_fast_link_that_stalls_gets_one_message_when_it_goes_on() -> None:
    coalescer, clock = stream(0.0)
    coalescer.add("a")
    clock.now_s += 0.06
    assert coalescer.add("b") is None
    assert coalescer.due_in_s() is None
    assert coalescer.add("c", 2) is None
    assert coalescer.acknowledged() == Piece("bc", 3)


def test_on_a_slow_link_text_is_joined_until_the_window_has_passed_and_the_last_message_is_confirmed() -> None:
    coalescer, clock = stream(0.2)
    coalescer.add("a")
    assert coalescer.add("b") is None
    clock.now_s += 0.1
    assert coalescer.acknowledged() is None
    due_s = coalescer.due_in_s()
    assert due_s is not None
    assert abs(due_s - 0.1) < 1e-9
    assert coalescer.add("c") is None
    clock.now_s += due_s + 1e-9
    assert coalescer.poll() == Piece("bc", 2)
    assert coalescer.poll() is None


def test_a_confirmation_after_the_window_sends_what_was_joined() -> None:
    coalescer, clock = stream(0.2)
    coalescer.add("a")
    coalescer.add("b")
    clock.now_s += 0.5
    assert coalescer.poll() is None
    assert coalescer.due_in_s() is None
    assert coalescer.acknowledged() == Piece("b", 1)


def test_a_slow_link_gets_about_one_message_for_each_round_trip() -> None:
    rtt_s, step_s = 0.2, 0.02
    coalescer, clock = stream((rtt_s - 0.012) * 0.85)
    confirmed_at: list[float] = []
    pieces: list[Piece] = []

    def sent(piece: Piece | None) -> None:
        if piece is not None:
            pieces.append(piece)
            confirmed_at.append(clock.now_s + rtt_s)

    for number in range(100):
        clock.now_s += step_s
        while confirmed_at and confirmed_at[0] <= clock.now_s:
            confirmed_at.pop(0)
            sent(coalescer.acknowledged())
        sent(coalescer.add(f"{number} "))
    sent(coalescer.flush())
    assert "".join(piece.text for piece in pieces) == "".join(f"{number} " for number in range(100))
    assert sum(piece.num_tokens for piece in pieces) == 100
    assert 9 <= len(pieces) <= 12


def test_the_rest_comes_at_the_end_and_only_once() -> None:
    coalescer, _ = stream(0.2)
    coalescer.add("a")
    coalescer.add("b")
    assert coalescer.flush() == Piece("b", 1)
    assert coalescer.flush() is None
    assert coalescer.due_in_s() is None


def test_a_confirmation_too_many_does_no_harm() -> None:
    coalescer, _ = stream(0.2)
    assert coalescer.acknowledged() is None
    assert coalescer.add("a") == Piece("a", 1)


def test_a_window_that_opens_again_lets_text_go() -> None:
    clock, window = Clock(), [0.3]
    coalescer = Coalescer(lambda: window[0], clock)
    coalescer.add("a")
    coalescer.acknowledged()
    assert coalescer.add("b") is None
    window[0] = 0.0
    assert coalescer.poll() == Piece("b", 1)
