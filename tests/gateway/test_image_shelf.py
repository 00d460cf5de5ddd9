from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edge_vl.gateway.image_shelf import ImageShelf


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def shelf_of(clock: Clock, *, max_image: int = 10, most: int = 25) -> ImageShelf:
    return ImageShelf(max_image_bytes=max_image, max_bytes=most, max_wait_s=60, clock=clock)


def test_a_picture_is_taken_once() -> None:
    shelf = shelf_of(Clock())
    assert shelf.put("t", b"12345")
    taken = shelf.take("t")
    assert taken is not None
    assert taken.data == b"12345"
    assert shelf.take("t") is None
    assert shelf.num_bytes == 0


def test_a_picture_that_waited_too_long_is_gone() -> None:
    clock = Clock()
    shelf = shelf_of(clock)
    shelf.put("t", b"1")
    clock.now_s = 60.1
    assert shelf.take("t") is None
    assert len(shelf) == 0


def test_what_is_empty_or_too_large_is_not_kept_and_throws_nothing_out() -> None:
    shelf = shelf_of(Clock())
    shelf.put("t", b"old")
    assert not shelf.put("t", b"")
    assert not shelf.put("u", b"x" * 11)
    taken = shelf.take("t")
    assert taken is not None
    assert taken.data == b"old"


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 12), st.floats(0, 30))))
def test_it_never_holds_more_than_it_may_and_always_the_newest(puts: list[tuple[str, int, float]]) -> None:
    clock = Clock()
    shelf = shelf_of(clock)
    for topic, size, pause_s in puts:
        clock.now_s += pause_s
        is_kept = shelf.put(topic, b"x" * size)
        assert is_kept == (0 < size <= 10)
        assert shelf.num_bytes <= 25
    if puts and 0 < puts[-1][1] <= 10:
        assert shelf.take(puts[-1][0]) is not None
