"""What is done next: a pure function from the state of all requests. No clock, no thread, no device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edge_vl.mode_choice import Mode

__all__ = [
    "Decode",
    "Encode",
    "Policy",
    "Prefill",
    "RunView",
    "State",
    "Step",
    "Wait",
    "dispatchable",
    "next_step",
    "smallest_step",
]


@dataclass(frozen=True, slots=True)
class RunView:
    """A request, as far as it matters for what is done next.

    Attributes:
        number: which; smaller came earlier.
        mode: how its lanes take turns.
        is_answering: its prompt is in, and tokens are chosen one by one.
        can_encode: a unit is missing that nobody encodes yet.
        can_prefill: its next pass has all it needs.
        num_missing: units whose embeds are not there yet.
        account_s: weighted device time that its stream has had; while the prompt is not in, what it had had when this
            request began, so that a request that has begun goes on before its equals.
        due_s: seconds until its deadline; None: it has none.
    """

    number: int
    mode: Mode = "serial"
    is_answering: bool = False
    can_encode: bool = False
    can_prefill: bool = False
    num_missing: int = 0
    account_s: float = 0.0
    due_s: float | None = None


@dataclass(frozen=True, slots=True)
class State:
    """All that is decided from.

    Attributes:
        runs: the requests at work.
        encoding: number of the request whose unit the vision lane encodes now; None: that lane is free.
        owed_s: device time that running answers have given up to new requests and get back first.
    """

    runs: tuple[RunView, ...]
    encoding: int | None = None
    owed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Encode:
    """Encode units of a request.

    Attributes:
        run: whose.
        num_units: the next so many; None: all that are missing.
    """

    run: int
    num_units: int | None = 1


@dataclass(frozen=True, slots=True)
class Prefill:
    """Run the next pass of a request's prompt.

    Attributes:
        run: whose.
    """

    run: int


@dataclass(frozen=True, slots=True)
class Decode:
    """Append the last token of an answer and choose the next.

    Attributes:
        run: whose.
    """

    run: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Do nothing until something happens."""


Step = Encode | Prefill | Decode | Wait
Policy = Callable[[State], Step]


def next_step(state: State) -> Step:
    """Decide what is done next.

    - A request in overlapped mode keeps the vision lane busy beside the language lane; in the other modes the lanes
      pass a baton: while one works, the other waits.
    - Running answers get their share of the device first: as long as they are owed time, they are served.
    - Among requests whose prompt is not in yet, the one goes on whose stream had had least weighted device time when it
      began, then the one with the nearest deadline, then the earliest: start-time fair queueing.
    - A serial request encodes all units before it prefills; the others prefill what is ready first.

    The completeness gate is in `can_prefill` and `is_answering`: a request answers only when its whole plan is in.
    """
    starting = sorted((run for run in state.runs if not run.is_answering), key=_turn)
    answering = sorted((run for run in state.runs if run.is_answering), key=_turn)
    vision_is_free = state.encoding is None
    if vision_is_free:
        for run in starting:
            if run.mode == "overlapped" and run.can_encode:
                return Encode(run.number, None if len(state.runs) == 1 else 1)
    if not _language_is_free(state):
        return Wait()
    if answering and (state.owed_s > 0 or not any(map(_is_ready, starting))):
        return Decode(answering[0].number)
    for run in starting:
        if _may_prefill(run):
            return Prefill(run.number)
        if run.can_encode and vision_is_free:
            is_alone = len(state.runs) == 1 and run.mode == "serial"
            return Encode(run.number, None if is_alone else 1)
    return Decode(answering[0].number) if answering else Wait()


def smallest_step(state: State) -> Step:
    """Return the smallest thing that can be done, in order; what a policy that waits for too long is overruled with."""
    vision_is_free = state.encoding is None
    for run in sorted(state.runs, key=lambda run: run.number):
        if run.is_answering and _language_is_free(state):
            return Decode(run.number)
        if run.can_prefill and _language_is_free(state):
            return Prefill(run.number)
        if run.can_encode and vision_is_free:
            return Encode(run.number)
    return Wait()


def dispatchable(state: State) -> bool:
    """Say whether something could be done now."""
    return not isinstance(smallest_step(state), Wait)


def _language_is_free(state: State) -> bool:
    """Say whether the language lane may work: it waits for units of requests whose lanes take turns."""
    if state.encoding is None:
        return True
    modes = {run.number: run.mode for run in state.runs}
    return modes.get(state.encoding) == "overlapped"


def _may_prefill(run: RunView) -> bool:
    return run.can_prefill and (run.mode != "serial" or not run.num_missing)


def _is_ready(run: RunView) -> bool:
    return run.can_encode or _may_prefill(run)


def _turn(run: RunView) -> tuple[float, float, int]:
    return (run.account_s, float("inf") if run.due_s is None else run.due_s, run.number)


def order_of(runs: Iterable[RunView]) -> list[int]:
    """Return the numbers of requests in the order in which they are served."""
    return [run.number for run in sorted(runs, key=_turn)]
