from __future__ import annotations

import io
import threading
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from edge_vl.decoding_turns import DecodingTurns
from edge_vl.errors import Cancelled, ImageError
from edge_vl.picture_limits import PictureLimits
from edge_vl.pictures import load_picture
from tests.conftest import OpenFake


def nothing() -> None:
    """Let everybody wait."""


def bomb(side: int) -> bytes:
    """Return a picture of one bit for each pixel, which is small however large it is."""
    file = io.BytesIO()
    Image.new("1", (side, side)).save(file, "PNG", compress_level=9)
    return file.getvalue()


def wait_until(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(500):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it did not come about")


def test_no_more_pixels_are_decoded_at_once_than_may_be_and_who_comes_first_is_first() -> None:
    turns = DecodingTurns(100)
    order: list[int] = []
    most: list[int] = []
    threads = []

    def decode(number: int, num_pixels: int) -> None:
        with turns.turn(nothing) as wait:
            wait(num_pixels)
            order.append(number)
            most.append(turns.num_pixels)

    with turns.turn(nothing) as wait:
        wait(60)
        for number, num_pixels in enumerate((50, 10, 100)):
            threads.append(threading.Thread(target=decode, args=(number, num_pixels)))
            threads[-1].start()
            wait_until(lambda number=number: len(turns._line) == number + 1)  # type: ignore[misc]
        assert order == [], "10 would fit, but is behind 50"
    for thread in threads:
        thread.join(5)
    assert order == [0, 1, 2]
    assert max(most) <= 100
    assert turns.num_pixels == 0


def test_a_picture_larger_than_all_that_may_be_has_its_turn_alone() -> None:
    turns = DecodingTurns(10)
    with turns.turn(nothing) as wait:
        wait(1000)
    assert turns.num_pixels == 0


def test_who_is_told_to_end_leaves_the_line() -> None:
    turns = DecodingTurns(10)

    def end() -> None:
        raise KeyError("told")

    with turns.turn(nothing) as first:
        first(10)
        with pytest.raises(KeyError), turns.turn(end) as second:
            second(1)
    with turns.turn(nothing) as third:
        third(10)
    assert turns.num_pixels == 0


def test_a_picture_that_is_refused_by_its_header_has_no_turn() -> None:
    asked: list[int] = []
    limits = PictureLimits(max_pixels=99)
    with pytest.raises(ImageError, match="10x10 = 100 pixels"):
        load_picture(bomb(10), limits=limits, before_decoding=asked.append)
    assert asked == []
    load_picture(bomb(9), limits=limits, before_decoding=asked.append)
    assert asked == [81]


def test_a_runtime_has_limits_of_its_own_and_a_request_that_waits_for_its_turn_can_be_cancelled(
    open_fake: OpenFake,
) -> None:
    runtime, _ = open_fake(script="ok", picture_limits=PictureLimits(max_pixels=10_000, max_pixels_at_once=10_000))
    with pytest.raises(ImageError, match="at most 10000"):
        runtime.ask(bomb(101), "?")
    turns = runtime._preparation._turns
    stopped = threading.Event()
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            runtime.ask(bomb(100), "?", cancel=stopped)
        except Cancelled as error:
            raised.append(error)

    with turns.turn(nothing) as wait:
        wait(1)
        asking = threading.Thread(target=ask)
        asking.start()
        wait_until(lambda: len(turns._line) == 1)
        stopped.set()
        asking.join(5)
        assert raised
    assert runtime.ask(bomb(100), "?").text == "ok"


def test_the_pixels_of_a_picture_are_let_go_of_before_the_next_one_is_decoded(open_fake: OpenFake) -> None:
    runtime, _ = open_fake(script="ok", picture_limits=PictureLimits(max_pixels_at_once=10_000))
    assert runtime.ask([bomb(100), bomb(99), bomb(98)], "?").text == "ok"
    assert runtime._preparation._turns.num_pixels == 0


def test_the_bombs_of_these_tests_are_small() -> None:
    assert len(bomb(1000)) < 1000
    assert np.prod(load_picture(bomb(1000)).pixels.shape) == 3_000_000
