"""The resolution ladder: smaller settings of a picture, and which of them keeps a deadline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edge_vl.costs import Costs, UnitCost

__all__ = ["Rung", "RungChoice", "margin_of", "pick_rung"]

_MAX_MARGIN = 0.4  # costs of single units scatter more than their sum does


@dataclass(frozen=True, slots=True)
class Rung:
    """One setting that a picture can be cut with.

    Attributes:
        longest_edge: what `Family.tile` takes for it; None: the model's own setting.
        num_units: units that the picture becomes.
        num_image_tokens: image tokens that they become.
        shape: of the units, as `edge_vl.costs.unit_shape` names it; of the first one where they differ.
    """

    longest_edge: int | None
    num_units: int
    num_image_tokens: int
    shape: str


@dataclass(frozen=True, slots=True)
class RungChoice:
    """Which setting a picture is cut with, and why.

    Attributes:
        rung: the setting.
        reason: for the trace and the answer.
        predicted_s: time until the whole answer is there, margin included; None: it is not known.
        is_in_time: whether that is soon enough; True where nothing is known.
    """

    rung: Rung
    reason: str
    predicted_s: float | None = None
    is_in_time: bool = True


def pick_rung(
    rungs: Sequence[Rung],
    costs: Costs,
    *,
    text_tokens: int,
    answer_tokens: float | None = None,
    remaining_s: float | None = None,
    queue_s: float = 0.0,
) -> RungChoice:
    """Choose the best setting whose answer comes in time.

    Args:
        rungs: of one picture, best first, at least one.
        costs: measured so far.
        text_tokens: text that is to be prefilled.
        answer_tokens: tokens of the answer; None: as many as usual.
        remaining_s: until the answer has to be there; None: it has all the time.
        queue_s: predicted work before it, other pictures of the prompt included.

    Returns:
        The best rung as long as its cost is not known: it is measured by running it. The smallest one where none is
        soon enough.
    """
    best = rungs[0]
    if remaining_s is None:
        return RungChoice(best, "there is no deadline")
    margin = margin_of(costs)
    predicted_s = whole_s = 0.0
    for rung in rungs:
        cost_s = _request_s(rung, rungs, costs, text_tokens, answer_tokens)
        if cost_s is None:
            return RungChoice(best, "what it costs is not known yet")
        predicted_s = (queue_s + cost_s) * (1 + margin)
        if rung is best:
            whole_s = predicted_s
        if predicted_s <= remaining_s:
            return RungChoice(rung, _reason(rung, best, predicted_s, whole_s, remaining_s), predicted_s)
    last = rungs[-1]
    return RungChoice(last, _reason(last, best, predicted_s, whole_s, remaining_s), predicted_s, is_in_time=False)


def margin_of(costs: Costs) -> float:
    """Return the share by which a request may take longer than predicted."""
    return min(costs.max_relative_error, _MAX_MARGIN)


def _reason(rung: Rung, best: Rung, predicted_s: float, whole_s: float, remaining_s: float) -> str:
    """Say in seconds, margin included, what was predicted and what there is."""
    left = f"{max(remaining_s, 0.0):.3g} s are left"
    if rung is best:
        return f"it takes {whole_s:.3g} s and {left}"
    less = f"{_size(rung)} in {predicted_s:.3g} s instead of {_size(best)} in {whole_s:.3g} s, as {left}"
    return less if predicted_s <= remaining_s else f"{less}; there is nothing smaller"


def _request_s(
    rung: Rung, rungs: Sequence[Rung], costs: Costs, text_tokens: int, answer_tokens: float | None
) -> float | None:
    """Predict a whole request, its units of work one after the other; None if that is not known."""
    encode_s = _encode_s(rung, rungs, costs)
    if encode_s is None:
        return None
    costs = replace(costs, units={rung.shape: UnitCost(encode_s=encode_s)})
    return costs.request_s(rung.shape, rung.num_units, text_tokens + rung.num_image_tokens, answer_tokens)


def _encode_s(rung: Rung, rungs: Sequence[Rung], costs: Costs) -> float | None:
    """Return what encoding a unit costs, worked out from another rung where this one has never run.

    Encoding costs between as much per token as elsewhere and, where attention rules, more in proportion to the number
    of tokens: scaling down takes the one, scaling up the other, so that both err on the slow side.
    """
    known_s = costs.encode_s(rung.shape)
    if known_s is not None:
        return known_s
    index = rungs.index(rung)
    tokens = rung.num_image_tokens / rung.num_units
    for other in (*reversed(rungs[:index]), *rungs[index + 1 :]):
        other_s = costs.encode_s(other.shape)
        if other_s is not None:
            ratio = tokens * other.num_units / other.num_image_tokens
            return other_s * (ratio if ratio <= 1 else ratio * ratio)
    return None


def _size(rung: Rung) -> str:
    units = "1 unit" if rung.num_units == 1 else f"{rung.num_units} units"
    return f"{units} with {rung.num_image_tokens} image tokens"
