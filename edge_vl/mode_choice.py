"""Which mode brings the first token soonest: a pure choice from measured costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from edge_vl.costs import Costs, UnitCost

__all__ = ["MIN_GAIN", "NUM_LEARNED_UNITS", "Mode", "ModeChoice", "choose_mode"]

Mode = Literal["serial", "interleaved", "overlapped"]
"""`serial`: all units encoded, then prefilled. `interleaved`: one encoded, then prefilled, then the next.
`overlapped`: units are prefilled while later ones are encoded."""

NUM_LEARNED_UNITS = 3
"""Units of a shape that are measured before a choice, alone and with both lanes at work."""

MIN_GAIN = 0.03
"""Share of the serial time that another mode must save to be taken."""


@dataclass(frozen=True, slots=True)
class ModeChoice:
    """A mode, and why.

    Attributes:
        mode: how the units of a request are to be run.
        reason: one sentence for people.
        numbers: what it was chosen from, for the trace: seconds, counts and shares, by name.
        is_probe: it is tried to learn what it costs, and to be asked again after `NUM_LEARNED_UNITS` units.
    """

    mode: Mode
    reason: str
    numbers: Mapping[str, float]
    is_probe: bool = False


def choose_mode(costs: Costs, shape: str, num_units: int) -> ModeChoice:
    """Choose how to run the image units of a request.

    Compared is the time from the first encoding to the end of the last unit's prefill; text is the same in every mode.
    `interleaved` makes the same passes as `serial` in another order, so that its first token comes at the same time; it
    is there for those who ask for it.

    Args:
        costs: what was measured.
        shape: of the units.
        num_units: that are to be encoded.

    Source:
        The pipeline model n * (E + P) against E + (n - 1) * max(aE * E, aP * P) + P, with the measured aE * E and
        aP * P; its ideal gain is (n - 1) / n * min(E, P) / (E + P).
    """
    numbers: dict[str, float] = {"num_units": num_units}
    if num_units < 2:
        return ModeChoice("serial", "fewer than two units are to be encoded, so nothing can overlap", numbers)
    unit = costs.units.get(shape, UnitCost())
    encode_s, prefill_s = unit.encode_s, unit.prefill_s
    numbers |= {"num_encodes": unit.num_encodes, "num_prefills": unit.num_prefills, "num_coruns": unit.num_coruns}
    numbers |= _known(encode_s=encode_s, prefill_s=prefill_s)
    num_learned = min(unit.num_encodes, unit.num_prefills)
    if encode_s is None or prefill_s is None or num_learned < NUM_LEARNED_UNITS:
        learned = f"{num_learned} of {NUM_LEARNED_UNITS} units"
        return ModeChoice("serial", f"the costs of {shape} are being learned: {learned}", numbers)
    serial_s = num_units * (encode_s + prefill_s)
    ideal_gain = (num_units - 1) * min(encode_s, prefill_s) / serial_s
    numbers |= {"serial_s": serial_s, "interleaved_s": serial_s, "ideal_gain": ideal_gain}
    if ideal_gain < MIN_GAIN:
        return ModeChoice(
            "serial",
            f"even ideal overlap of {num_units} units would save only {ideal_gain:.1%}, so it is never tried",
            numbers,
        )
    if unit.num_coruns < NUM_LEARNED_UNITS:
        learned = f"{unit.num_coruns} of {NUM_LEARNED_UNITS} units"
        reason = f"what both lanes at once cost is being learned: {learned}; ideal overlap would save {ideal_gain:.1%}"
        return ModeChoice("overlapped", reason, numbers, is_probe=True)
    corun_encode_s, corun_prefill_s = _corun(unit, encode_s, prefill_s)
    overlapped_s = encode_s + (num_units - 1) * max(corun_encode_s, corun_prefill_s) + prefill_s
    gain = 1 - overlapped_s / serial_s
    numbers |= {"corun_encode_s": corun_encode_s, "corun_prefill_s": corun_prefill_s}
    numbers |= {"overlapped_s": overlapped_s, "gain": gain}
    if gain >= MIN_GAIN:
        return ModeChoice("overlapped", f"overlap saves {gain:.1%} of {serial_s:.3g} s", numbers)
    verdict = f"saves only {gain:.1%}" if gain > 0 else f"takes {-gain:.1%} longer"
    return ModeChoice("serial", f"overlap {verdict}; one lane at a time takes {serial_s:.3g} s", numbers)


def _corun(unit: UnitCost, encode_s: float, prefill_s: float) -> tuple[float, float]:
    """Return what a unit costs on each lane with both at work; one that was not seen is slowed down as the other."""
    corun_encode_s, corun_prefill_s = unit.corun_encode_s, unit.corun_prefill_s
    if corun_encode_s is None:
        corun_encode_s = encode_s if corun_prefill_s is None else encode_s * max(1.0, corun_prefill_s / prefill_s)
    if corun_prefill_s is None:
        corun_prefill_s = prefill_s * max(1.0, corun_encode_s / encode_s)
    return corun_encode_s, corun_prefill_s


def _known(**numbers: float | None) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if number is not None}
