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


def test_a_picture_that_is_wanted_does_not_grow_old_until_the_last_who_wants_it_lets_go() -> None:
    clock = Clock()
    shelf = shelf_of(clock)
    shelf.put("t", b"1")
    shelf.put("u", b"2")
    shelf.want("a", ["t"])
    shelf.want("b", ["t", "u"])
    shelf.release("b")
    shelf.release("b")
    clock.now_s = 100.0
    assert shelf.put("v", b"3")
    assert len(shelf) == 2
    taken = shelf.take("t")
    assert taken is not None
    assert taken.data == b"1"
    shelf.put("t", b"4")
    shelf.release("a")
    clock.now_s = 161.0
    assert shelf.take("t") is None
    assert (len(shelf), shelf.num_bytes) == (0, 0)


def test_a_picture_that_is_wanted_makes_no_room_for_new_ones() -> None:
    shelf = shelf_of(Clock())
    shelf.put("t", b"x" * 10)
    shelf.put("u", b"x" * 10)
    shelf.want("a", ["t"])
    assert shelf.put("v", b"x" * 10)
    assert shelf.take("u") is None
    shelf.want("b", ["v"])
    assert not shelf.put("w", b"x" * 6)
    assert shelf.put("w", b"x" * 5)
    assert shelf.put("t", b"y" * 10)
    assert shelf.num_bytes == 25
    shelf.release("b")
    assert shelf.put("z", b"x" * 6)
    assert shelf.take("v") is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 10), st.floats(0, 30), st.booleans())))
def test_whatever_is_wanted_it_never_holds_more_than_it_may_and_what_is_wanted_stays(
    puts: list[tuple[str, int, float, bool]],
) -> None:
    clock = Clock()
    shelf = shelf_of(clock)
    wanted: dict[str, int] = {}
    for topic, size, pause_s, is_wanted in puts:
        clock.now_s += pause_s
        room = 25 - sum(num_bytes for other, num_bytes in wanted.items() if other != topic)
        is_kept = shelf.put(topic, b"x" * size)
        assert is_kept == (size <= room)
        assert shelf.num_bytes <= 25
        if is_kept and (is_wanted or topic in wanted):
            shelf.want(topic, [topic])
            wanted[topic] = size
    for topic, size in wanted.items():
        taken = shelf.take(topic)
        assert taken is not None
        assert len(taken.data) == size


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
