"""What units of work cost on this device, learned while it works."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from edge_vl.chunk_policy import ChunkCost

if TYPE_CHECKING:
    from edge_vl.plan import ImageChunk

__all__ = ["LEAST_S", "UNKNOWN_RELATIVE_ERROR", "CostBook", "Costs", "UnitCost", "unit_shape"]

UNKNOWN_RELATIVE_ERROR = 0.5
"""How wrong a prediction may be, as long as too few were compared with what happened."""

_MAX_SHAPES = 64
LEAST_S = 1e-9
_MOST_S = 1e6
_MIN_ERRORS = 8
_NUM_ERRORS = 64
_NEW_SHARE = 0.2  # of the newest measure in a mean
_MAX_JUMP = 4.0  # a measure beyond this many times the mean counts as that: one hiccup must not ruin it
_MAX_WEIGHT = 8  # measures of one size that count in the fit
_FORGETTING = 0.8  # per pass, of sizes that were not seen again
_SEED_TOKENS = (16, 64, 256)  # sizes that stand for a loaded fit until real passes replace them


def unit_shape(chunk: ImageChunk) -> str:
    """Return the shape that costs of an image unit are kept under: `512x512/64` for rows x columns / image tokens."""
    height, width = chunk.unit.pixels.shape[:2]
    return f"{height}x{width}/{chunk.num_tokens}"


@dataclass(frozen=True, slots=True)
class UnitCost:
    """What image units of one shape cost. Moving means, in seconds; None: not seen yet.

    Attributes:
        encode_s: encoding one while the language lane rests.
        prefill_s: its prefill pass, with the markers before it, while the vision lane rests.
        corun_encode_s: encoding one while the language lane works, too.
        corun_prefill_s: its pass while the vision lane works, too.
        num_encodes: encodings behind `encode_s`.
        num_prefills: passes behind `prefill_s`.
        num_coruns: units that were measured with both lanes at work: the more of encodings and passes.
    """

    encode_s: float | None = None
    prefill_s: float | None = None
    corun_encode_s: float | None = None
    corun_prefill_s: float | None = None
    num_encodes: int = 0
    num_prefills: int = 0
    num_coruns: int = 0


@dataclass(frozen=True, slots=True)
class Costs:
    """What is known about costs at one moment. None: not known.

    Attributes:
        units: by shape, see `unit_shape`.
        prefill_base_s: what a prefill pass costs however short it is.
        prefill_token_s: what each token of a pass adds.
        decode_s: one decoded token.
        answer_tokens: usual length of an answer.
        max_relative_error: 95 of 100 single units took no more than this share longer or shorter than was predicted.
        chunk_table: what passes of various sizes cost, as `edge-vl tune` measured it; empty: it never ran.
    """

    units: Mapping[str, UnitCost] = field(default_factory=dict)
    prefill_base_s: float | None = None
    prefill_token_s: float | None = None
    decode_s: float | None = None
    answer_tokens: float | None = None
    max_relative_error: float = UNKNOWN_RELATIVE_ERROR
    chunk_table: tuple[ChunkCost, ...] = ()

    def encode_s(self, shape: str) -> float | None:
        """Return what encoding one unit of a shape costs; None if that is not known."""
        unit = self.units.get(shape)
        return None if unit is None else unit.encode_s

    def prefill_s(self, num_tokens: int) -> float | None:
        """Return what one prefill pass costs; None if that is not known."""
        if self.prefill_base_s is None or self.prefill_token_s is None:
            return None
        return self.prefill_base_s + self.prefill_token_s * num_tokens

    def request_s(
        self, shape: str, num_units: int, num_tokens: int, answer_tokens: float | None = None
    ) -> float | None:
        """Predict a whole request, its units of work one after the other.

        Args:
            shape: of its image units.
            num_units: that are to be encoded.
            num_tokens: that are to be prefilled: each unit in a pass with the text before it, the last text in one.
            answer_tokens: tokens of the answer, the first one included; None: as many as usual.

        Returns:
            Seconds; None if something that it takes is not known.
        """
        answer_tokens = self.answer_tokens if answer_tokens is None else answer_tokens
        if answer_tokens is None or self.prefill_base_s is None or self.prefill_token_s is None:
            return None
        total_s = 0.0
        if num_units:
            encode_s = self.encode_s(shape)
            if encode_s is None:
                return None
            total_s += num_units * encode_s
        if num_tokens:
            total_s += (num_units + 1) * self.prefill_base_s + num_tokens * self.prefill_token_s
        if answer_tokens > 1:  # the first token comes out of the prefill
            if self.decode_s is None:
                return None
            total_s += (answer_tokens - 1) * self.decode_s
        return total_s


class CostBook:
    """Learns costs from every unit of work. All methods may be called from any thread.

    A measure that no clock can have given (0, not a number, days) is passed over.
    """

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._lock = threading.Lock()
        self._clear()

    def _clear(self) -> None:
        self._units: dict[str, _Unit] = {}
        self._sizes: dict[int, _Size] = {}
        self._num_passes = 0
        self._decode = _Mean()
        self._answer_tokens: float | None = None
        self._errors: deque[float] = deque(maxlen=_NUM_ERRORS)
        self._known_error = UNKNOWN_RELATIVE_ERROR
        self._chunk_table: tuple[ChunkCost, ...] = ()
        self._fit: tuple[float, float] | None = None
        self._snapshot: Costs | None = None

    def note_encode(self, shape: str, duration_s: float, *, is_corun: bool = False) -> None:
        """Note that one unit was encoded.

        Args:
            shape: of the unit.
            duration_s: what it took.
            is_corun: the language lane worked meanwhile.
        """
        if not LEAST_S <= duration_s <= _MOST_S:
            return
        with self._lock:
            unit = self._unit(shape)
            if is_corun:
                unit.corun_encode.add(duration_s)
            else:
                self._note_error(unit.encode.value, duration_s)
                unit.encode.add(duration_s)
            self._snapshot = None

    def note_prefill(
        self, num_tokens: int, duration_s: float, *, shape: str | None = None, is_corun: bool = False
    ) -> None:
        """Note that one prefill pass was made.

        Args:
            num_tokens: of the whole pass.
            duration_s: what it took.
            shape: of the image unit in it; None: there was none.
            is_corun: the vision lane worked meanwhile.
        """
        if not LEAST_S <= duration_s <= _MOST_S or num_tokens < 1:
            return
        with self._lock:
            if shape is not None:
                unit = self._unit(shape)
                (unit.corun_prefill if is_corun else unit.prefill).add(duration_s)
            if not is_corun:
                if self._fit is not None:
                    self._note_error(self._fit[0] + self._fit[1] * num_tokens, duration_s)
                self._num_passes += 1
                size = self._sizes.get(num_tokens.bit_length())
                if size is None:
                    size = self._sizes[num_tokens.bit_length()] = _Size()
                size.add(num_tokens, duration_s, self._num_passes)
            self._snapshot = None

    def note_decode(self, duration_s: float) -> None:
        """Note that one token was decoded."""
        if not LEAST_S <= duration_s <= _MOST_S:
            return
        with self._lock:
            self._note_error(self._decode.value, duration_s)
            self._decode.add(duration_s)
            self._snapshot = None

    def note_answer(self, num_tokens: int) -> None:
        """Note how long a complete answer was, in tokens."""
        with self._lock:
            known = self._answer_tokens
            self._answer_tokens = float(num_tokens) if known is None else known + _NEW_SHARE * (num_tokens - known)
            self._snapshot = None

    def snapshot(self) -> Costs:
        """Return what is known now; the same object until something is noted."""
        with self._lock:
            if self._snapshot is None:
                self._fit = _fit(self._sizes.values(), self._num_passes)
                base_s, token_s = self._fit or (None, None)
                self._snapshot = Costs(
                    units={shape: unit.cost() for shape, unit in self._units.items()},
                    prefill_base_s=base_s,
                    prefill_token_s=token_s,
                    decode_s=self._decode.value,
                    answer_tokens=self._answer_tokens,
                    max_relative_error=self._max_error(),
                    chunk_table=self._chunk_table,
                )
            return self._snapshot

    def load(self, costs: Costs) -> None:
        """Begin anew with what was known before, such as from a `CostStore`."""
        with self._lock:
            self._clear()
            for shape, cost in costs.units.items():
                self._units[shape] = _Unit.of(cost)
            if costs.prefill_base_s is not None and costs.prefill_token_s is not None:
                self._fit = costs.prefill_base_s, costs.prefill_token_s
                for num_tokens in _SEED_TOKENS:
                    size = self._sizes[num_tokens.bit_length()] = _Size()
                    size.add(num_tokens, costs.prefill_base_s + costs.prefill_token_s * num_tokens, 0)
            self._decode = _Mean(costs.decode_s, 0 if costs.decode_s is None else _MAX_WEIGHT)
            self._answer_tokens = costs.answer_tokens
            self._known_error = costs.max_relative_error
            self._chunk_table = costs.chunk_table

    def _unit(self, shape: str) -> _Unit:
        """Return the entry of a shape; a new one takes the place of the oldest where there are too many."""
        unit = self._units.get(shape)
        if unit is None:
            if len(self._units) >= _MAX_SHAPES:
                del self._units[next(iter(self._units))]
            unit = self._units[shape] = _Unit()
        return unit

    def _note_error(self, predicted_s: float | None, duration_s: float) -> None:
        if predicted_s:
            self._errors.append(abs(duration_s / predicted_s - 1))

    def _max_error(self) -> float:
        if len(self._errors) < _MIN_ERRORS:
            return self._known_error
        return sorted(self._errors)[math.ceil(0.95 * len(self._errors)) - 1]


class _Mean:
    """A moving mean of durations, in seconds."""

    __slots__ = ("count", "value")

    def __init__(self, value: float | None = None, count: int = 0) -> None:
        self.value = value
        self.count = count

    def add(self, duration_s: float) -> None:
        self.count += 1
        if self.value is None:
            self.value = duration_s
        elif self.count == 2 and duration_s < self.value:
            self.value = duration_s  # the first of its kind pays for warming up
        else:
            share = max(1 / self.count, _NEW_SHARE)
            self.value += share * (min(duration_s, _MAX_JUMP * self.value) - self.value)


class _Unit:
    """What is known of one shape."""

    __slots__ = ("corun_encode", "corun_prefill", "encode", "prefill")

    def __init__(self) -> None:
        self.encode, self.prefill, self.corun_encode, self.corun_prefill = _Mean(), _Mean(), _Mean(), _Mean()

    @staticmethod
    def of(cost: UnitCost) -> _Unit:
        unit = _Unit()
        unit.encode = _Mean(cost.encode_s, cost.num_encodes)
        unit.prefill = _Mean(cost.prefill_s, cost.num_prefills)
        unit.corun_encode = _Mean(cost.corun_encode_s, 0 if cost.corun_encode_s is None else cost.num_coruns)
        unit.corun_prefill = _Mean(cost.corun_prefill_s, 0 if cost.corun_prefill_s is None else cost.num_coruns)
        return unit

    def cost(self) -> UnitCost:
        return UnitCost(
            encode_s=self.encode.value,
            prefill_s=self.prefill.value,
            corun_encode_s=self.corun_encode.value,
            corun_prefill_s=self.corun_prefill.value,
            num_encodes=self.encode.count,
            num_prefills=self.prefill.count,
            num_coruns=max(self.corun_encode.count, self.corun_prefill.count),
        )


class _Size:
    """Moving means of passes with about the same number of tokens: within a power of two."""

    __slots__ = ("count", "duration_s", "last_pass", "num_tokens")

    def __init__(self) -> None:
        self.num_tokens = 0.0
        self.duration_s = 0.0
        self.count = 0
        self.last_pass = 0

    def add(self, num_tokens: int, duration_s: float, number: int) -> None:
        self.count += 1
        self.last_pass = number
        if self.count == 1 or (self.count == 2 and duration_s * self.num_tokens < self.duration_s * num_tokens):
            self.num_tokens, self.duration_s = num_tokens, duration_s  # the first one pays for warming up
            return
        share = max(1 / self.count, _NEW_SHARE)
        most_s = _MAX_JUMP * self.duration_s * num_tokens / self.num_tokens
        self.num_tokens += share * (num_tokens - self.num_tokens)
        self.duration_s += share * (min(duration_s, most_s) - self.duration_s)


def _fit(sizes: Iterable[_Size], num_passes: int) -> tuple[float, float] | None:
    """Fit duration = base + tokens * token, neither below 0, so that the relative errors are least.

    Returns:
        base and token, in seconds; None without passes.
    """
    weight = weight_n = weight_nn = weight_d = weight_nd = 0.0
    for size in sizes:
        w = min(size.count, _MAX_WEIGHT) * _FORGETTING ** (num_passes - size.last_pass) / size.duration_s**2
        n, d = size.num_tokens, size.duration_s
        weight, weight_n, weight_nn = weight + w, weight_n + w * n, weight_nn + w * n * n
        weight_d, weight_nd = weight_d + w * d, weight_nd + w * n * d
    if not weight_nn:
        return None
    spread = weight * weight_nn - weight_n**2
    if spread <= 1e-9 * weight * weight_nn:  # one size only: what a pass costs by itself cannot be told
        return 0.0, weight_nd / weight_nn
    token_s = (weight * weight_nd - weight_n * weight_d) / spread
    base_s = (weight_d - token_s * weight_n) / weight
    if base_s < 0:
        return 0.0, weight_nd / weight_nn
    if token_s < 0:
        return weight_d / weight, 0.0
    return base_s, token_s
