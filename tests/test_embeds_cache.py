"""Tests of the cache of image embeds."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.embeds_cache import EmbedsCache
from edge_vl.engine import ImageEmbeds


def embeds(key: str, num_tokens: int = 1) -> ImageEmbeds:
    """Make embeds of 100 bytes a token."""
    return ImageEmbeds(np.zeros((num_tokens, 25), np.float32), key)


def test_what_is_kept_is_found_and_both_outcomes_are_counted() -> None:
    cache = EmbedsCache(1000)
    kept = embeds("a")
    assert cache.find("a") is None
    cache.keep("a", kept)
    assert cache.find("a") is kept
    assert (cache.num_hits, cache.num_misses, cache.nbytes, len(cache)) == (1, 1, 100, 1)


def test_asking_whether_embeds_are_there_does_not_count_and_does_not_keep_them_longer() -> None:
    cache = EmbedsCache(200)
    cache.keep("a", embeds("a"))
    cache.keep("b", embeds("b"))
    assert "a" in cache
    assert "c" not in cache
    cache.keep("c", embeds("c"))
    assert "a" not in cache
    assert (cache.num_hits, cache.num_misses) == (0, 0)


def test_those_not_used_for_longest_make_room() -> None:
    cache = EmbedsCache(300)
    for key in "abc":
        cache.keep(key, embeds(key))
    cache.find("a")
    cache.keep("d", embeds("d", 2))
    assert [key for key in "abcd" if key in cache] == ["a", "d"]
    assert (cache.num_evicted, cache.nbytes) == (2, 300)


def test_embeds_kept_again_count_once() -> None:
    cache = EmbedsCache(1000)
    cache.keep("a", embeds("a", 3))
    again = embeds("a", 2)
    cache.keep("a", again)
    assert cache.find("a") is again
    assert (len(cache), cache.nbytes, cache.num_evicted) == (1, 200, 0)


def test_embeds_larger_than_all_the_room_are_not_kept_and_push_nothing_out() -> None:
    cache = EmbedsCache(250)
    cache.keep("a", embeds("a"))
    cache.keep("b", embeds("b", 3))
    assert "a" in cache
    assert "b" not in cache
    assert cache.num_evicted == 0


def test_without_room_nothing_is_kept() -> None:
    cache = EmbedsCache(0)
    cache.keep("a", embeds("a"))
    assert (len(cache), cache.nbytes) == (0, 0)
    assert cache.find("a") is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 5), st.booleans()), max_size=40))
def test_bytes_and_order_are_those_of_a_plain_list(steps: list[tuple[str, int, bool]]) -> None:
    cache = EmbedsCache(700)
    model: list[tuple[str, int]] = []
    for key, num_tokens, is_find in steps:
        known = dict(model)
        if is_find:
            assert (cache.find(key) is not None) == (key in known)
            size = known.get(key)
        else:
            cache.keep(key, embeds(key, num_tokens))
            size = 100 * num_tokens
        if size is not None:
            model = [*(entry for entry in model if entry[0] != key), (key, size)]
        while sum(size for _, size in model) > 700:
            model.pop(0)
        assert {key for key in "abcdef" if key in cache} == {key for key, _ in model}
        assert cache.nbytes == sum(size for _, size in model) <= 700
