"""Tests of when motion begins and has ended."""

from __future__ import annotations

from edge_vl.gateway.motion_spell import MotionSpell


def test_motion_that_goes_on_begins_once_and_ends_once_when_it_was_quiet_for_long_enough() -> None:
    spell = MotionSpell(quiet_s=3.0)
    assert spell.look(False, 0.0) is None
    assert spell.look(True, 10.0) is True
    looks = [spell.look(number % 10 == 0, 10.0 + number / 5) for number in range(1, 500)]  # at most 2 s quiet
    assert set(looks) == {None}
    assert spell.look(True, 110.0) is None
    assert spell.look(False, 112.9) is None
    assert spell.look(False, 113.0) is False
    assert spell.look(False, 120.0) is None
    assert spell.look(True, 121.0) is True
