"""A simulator of both lanes with a clock of its own, to try policies with."""

from __future__ import annotations

from dataclasses import dataclass, field

from edge_vl.accounts import Accounts
from edge_vl.mode_choice import Mode
from edge_vl.policy import Decode, Encode, Policy, Prefill, RunView, State, Step, Wait, next_step

ANSWER_SHARE = 0.52


@dataclass(eq=False)
class SimRun:
    """A request: each unit is encoded, then prefilled in a pass of its own; then come the last text and the answer."""

    number: int
    arrives_s: float = 0.0
    mode: Mode = "serial"
    num_units: int = 3
    encode_s: float = 0.2
    prefill_s: float = 0.1
    text_s: float = 0.1
    num_tokens: int = 1
    decode_s: float = 0.01
    stream: str = ""
    share: float = 1.0
    num_encoded: int = 0
    num_prefilled: int = 0
    num_said: int = 0
    device_s: float = 0.0
    began_at_s: float = 0.0
    first_token_s: float | None = None
    ended_s: float | None = None

    @property
    def account(self) -> str:
        return self.stream or f"#{self.number}"

    @property
    def is_answering(self) -> bool:
        return self.num_prefilled > self.num_units

    @property
    def can_prefill(self) -> bool:
        return self.num_prefilled < self.num_encoded or self.num_prefilled == self.num_units

    def view(self, account_s: float, num_encoding: int) -> RunView:
        missing = self.num_units - self.num_encoded
        return RunView(
            number=self.number,
            mode=self.mode,
            is_answering=self.is_answering,
            can_encode=missing > num_encoding,
            can_prefill=not self.is_answering and self.can_prefill,
            num_missing=missing,
            account_s=account_s if self.is_answering else self.began_at_s,
        )


@dataclass(eq=False)
class Simulator:
    """Does what a policy says. Decoding one token takes as long as the request says; nothing slows anything down."""

    runs: list[SimRun]
    policy: Policy = next_step
    now_s: float = 0.0
    owed_s: float = 0.0
    steps: list[tuple[float, Step]] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.accounts = Accounts()
        self._opened: set[int] = set()
        self._encoding: SimRun | None = None
        self._unit_ends_s: list[float] = []

    @property
    def active(self) -> list[SimRun]:
        return [run for run in self.runs if run.arrives_s <= self.now_s and run.ended_s is None]

    def run(self, until_s: float = float("inf")) -> Simulator:
        """Go on until all requests have ended or the time is over."""
        while self.now_s < until_s and any(run.ended_s is None for run in self.runs):
            self.turn()
        return self

    def turn(self) -> None:
        self._collect()
        for run in self.active:
            if run.number not in self._opened:
                self._opened.add(run.number)
                self.accounts.open(run.account)
                run.began_at_s = self.accounts.used_s(run.account)
        encoding = self._encoding
        if encoding is not None and len(self.active) > 1 and encoding.mode != "overlapped":
            del self._unit_ends_s[1:]  # after the unit that runs it is decided anew
        state = State(
            tuple(
                run.view(self.accounts.used_s(run.account), len(self._unit_ends_s) if run is encoding else 0)
                for run in self.active
            ),
            None if encoding is None else encoding.number,
            self.owed_s,
        )
        step = self.policy(state)
        self.states.append(state)
        self.steps.append((self.now_s, step))
        if isinstance(step, Wait):
            later = [run.arrives_s for run in self.runs if run.arrives_s > self.now_s] + self._unit_ends_s[:1]
            if not later:
                raise AssertionError(f"the policy waits for ever in {state}")
            self.now_s = min(later)
            return
        run = next(run for run in self.active if run.number == step.run)
        if isinstance(step, Encode):
            assert self._encoding is None
            count = step.num_units or run.num_units - run.num_encoded
            self._encoding = run
            self._unit_ends_s = [self.now_s + run.encode_s * (place + 1) for place in range(count)]
        elif isinstance(step, Prefill):
            assert run.can_prefill
            self._work(run, run.prefill_s if run.num_prefilled < run.num_units else run.text_s, is_new=True)
            run.num_prefilled += 1
            if run.is_answering:
                self._say(run)
        else:
            self._work(run, run.decode_s, is_new=False)
            self.owed_s = max(self.owed_s - run.decode_s, -run.decode_s)
            self._say(run)

    def _say(self, run: SimRun) -> None:
        run.num_said += 1
        if run.first_token_s is None:
            run.first_token_s = self.now_s
        if run.num_said >= run.num_tokens:
            run.ended_s = self.now_s
            self.accounts.close(run.account)
            if not any(one.is_answering for one in self.active):
                self.owed_s = 0.0

    def _collect(self) -> None:
        while self._unit_ends_s and self._unit_ends_s[0] <= self.now_s:
            del self._unit_ends_s[0]
            run = self._encoding
            assert run is not None
            run.num_encoded += 1
            self._charge(run, run.encode_s, is_beside=run.mode == "overlapped")
        if not self._unit_ends_s:
            self._encoding = None

    def _work(self, run: SimRun, duration_s: float, *, is_new: bool) -> None:
        self.now_s += duration_s
        if is_new:
            self._charge(run, duration_s, is_beside=False)
        else:
            run.device_s += duration_s
            self.accounts.charge(run.account, duration_s, run.share)

    def _charge(self, run: SimRun, duration_s: float, *, is_beside: bool) -> None:
        run.device_s += duration_s
        self.accounts.charge(run.account, duration_s, run.share)
        answering = [one for one in self.active if one.is_answering and one is not run]
        if answering and not is_beside:
            wanted = max(one.share for one in answering)
            share = max(ANSWER_SHARE, wanted / (wanted + run.share))
            self.owed_s += duration_s * share / (1 - share)

    def decoded_s(self, number: int, begin_s: float, end_s: float) -> float:
        """Return how long tokens of a request were decoded in an interval."""
        run = next(run for run in self.runs if run.number == number)
        return sum(
            run.decode_s for at_s, step in self.steps if step == Decode(number) and begin_s <= at_s < end_s - 1e-12
        )


def names(simulator: Simulator) -> str:
    """Return what was done as letters: E, P, D with the number of units or the request behind it."""
    found = []
    for _, step in simulator.steps:
        if isinstance(step, Encode):
            found.append(f"E{step.run}" + ("*" if step.num_units is None else ""))
        elif not isinstance(step, Wait):
            found.append(f"{'P' if isinstance(step, Prefill) else 'D'}{step.run}")
    return " ".join(found)
