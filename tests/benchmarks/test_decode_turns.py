"""How decoders take turns and are compared."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.decode_turns import Times, check_equal, ratio, take_turns


class Scripted:
    """A decoder that notes what it is asked."""

    def __init__(self, name: str, log: list[str], logits: float = 1.0) -> None:
        self.name = name
        self._log = log
        self._logits = np.full(4, logits, np.float32)

    def fill(self, num_entries: int) -> None:
        self._log.append(f"{self.name} fill {num_entries}")

    def step(self) -> NDArray[np.float32]:
        self._log.append(self.name)
        return self._logits

    def close(self) -> None:
        self._log.append(f"{self.name} close")


def test_each_gets_a_few_tokens_and_then_the_next_one() -> None:
    log: list[str] = []

    times = take_turns(
        [Scripted("a", log), Scripted("b", log)], 7, num_rounds=2, num_steps=3, max_errors={"a": 0.0, "b": 0.0}
    )

    assert log[:4] == ["a fill 7", "b fill 7", "a", "b"]
    assert log[8:] == ["a"] * 3 + ["b"] * 3 + ["a"] * 3 + ["b"] * 3
    assert [len(times["b"].of_rounds), len(times["b"].of_steps)] == [2, 6]


def test_an_empty_cache_is_emptied_before_every_turn() -> None:
    log: list[str] = []

    take_turns([Scripted("a", log)], 0, num_rounds=2, num_steps=1, max_errors={})

    assert log[-4:] == ["a fill 0", "a", "a fill 0", "a"]


def test_ratios_are_taken_round_by_round() -> None:
    slow_day, quiet_day = Times([2.0, 20.0, 2.2]), Times([1.0, 10.0, 1.0])

    assert ratio(slow_day, quiet_day) == 2.0


def test_logits_that_differ_too_much_are_refused() -> None:
    log: list[str] = []
    decoders = [Scripted("a", log), Scripted("b", log, logits=1.1)]

    with pytest.raises(RuntimeError, match=r"logits of b are off by 0\.1 of those of a"):
        take_turns(decoders, 0, num_rounds=1, num_steps=1, max_errors={"b": 0.05})


def test_logits_that_are_not_numbers_are_refused() -> None:
    one, other = np.ones(2, np.float32), np.full(2, np.nan, np.float32)

    with pytest.raises(RuntimeError, match="off by nan"):
        check_equal({"a": one, "b": other}, {"b": 1.0})
