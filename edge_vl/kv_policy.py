"""The KV policy: in what precision keys and values are kept, by kind of token and by layer.

A policy is a name (`auto`, `f32`, `f16`, `int8`, `int4`, `k8v4`) or says its parts: `text=int8,image=int4`. `auto` is
the engine's own precision and never compresses. `int8` and `int4` are approximate: answers may change.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Literal, get_args

from edge_vl.errors import RequestError

__all__ = [
    "MAX_LOGIT_ERROR",
    "KVPolicy",
    "KVPrecision",
    "LayerGuard",
    "Precision",
    "TokenKind",
    "guarded_layers",
    "parse_kv_policy",
]

Precision = Literal["f32", "f16", "int8", "int4"]
"""From the finest to the coarsest."""

TokenKind = Literal["text", "image"]

MAX_LOGIT_ERROR = 0.5
"""Root mean square error of a layer's attention logits from which on `auto` guards the layer.

Logits are the scaled products of queries and keys, before softmax; an error of 0.5 in one of them changes its weight by
a factor of e**0.5 = 1.65. With 4 bits the layers of two trained models are between 0.06 and 0.48, and answers of one of
them began to change between 1.3 and 2.6 in its last layer.
"""

_PRECISIONS: tuple[Precision, ...] = get_args(Precision)
_BITS: dict[Precision, int] = {"f32": 32, "f16": 16, "int8": 8, "int4": 4}
_OF_BITS = {str(bits): precision for precision, bits in _BITS.items()}
_WORDS: dict[str, Precision] = {
    **{precision: precision for precision in _PRECISIONS},
    **{"fp32": "f32", "fp16": "f16", "q8_0": "int8", "q4_0": "int4"},
}
_SPLIT = re.compile(r"k(32|16|8|4)v(32|16|8|4)")
_GUARD = re.compile(r"(.+?)(?:x([0-9]{1,3}))?", re.IGNORECASE)
_EXAMPLE = "text=int8,image=int4,first_layers=int8,last_layers=int8"
_EXPECTED = f"auto, {', '.join(_PRECISIONS)}, k8v4, or parts such as {_EXAMPLE}"


@dataclass(frozen=True, slots=True)
class KVPrecision:
    """Precision of keys and of values."""

    keys: Precision
    values: Precision

    def __post_init__(self) -> None:
        """Check both.

        Raises:
            RequestError: one is none.
        """
        for side in (self.keys, self.values):
            if side not in _PRECISIONS:
                raise RequestError(
                    f"keys and values of a KV cache are kept in {', '.join(_PRECISIONS)}, not {side!r:.40}", field="kv"
                )

    @property
    def name(self) -> str:
        """Short name, such as `int8`, or `k8v4` where keys and values differ."""
        if self.keys == self.values:
            return self.keys
        return f"k{_BITS[self.keys]}v{_BITS[self.values]}"

    def finer_of(self, other: KVPrecision) -> KVPrecision:
        """Return the finer of both keys and the finer of both values."""
        return KVPrecision(_finer(self.keys, other.keys), _finer(self.values, other.values))


_AUTO_GUARD = KVPrecision("int8", "int8")


@dataclass(frozen=True, slots=True)
class LayerGuard:
    """Precision of the layers at one end of the model, instead of that of the others.

    Attributes:
        precision: of these layers, for tokens of every kind.
        num_layers: how many, at least 1.
    """

    precision: KVPrecision
    num_layers: int = 1

    def __post_init__(self) -> None:
        """Check precision and number.

        Raises:
            RequestError: the one is none, or the other is no number or less than 1.
        """
        precision: object = self.precision
        number: object = self.num_layers
        if not isinstance(precision, KVPrecision):
            raise _no_part("the precision of a layer guard", "a KVPrecision", precision)
        if isinstance(number, bool) or not isinstance(number, Integral):
            raise _no_part("the number of layers of a guard", "a whole number", number)
        if self.num_layers < 1:
            raise RequestError(f"a layer guard covers at least 1 layer, not {self.num_layers}", field="kv")

    @property
    def name(self) -> str:
        """Short name, such as `int8`, or `int8x2` for two layers."""
        return self.precision.name if self.num_layers == 1 else f"{self.precision.name}x{self.num_layers}"


@dataclass(frozen=True, slots=True)
class KVPolicy:
    """In what precision a KV cache keeps keys and values.

    Attributes:
        text: of text tokens; None: the engine's own.
        image: of image tokens; None: as text.
        first_layers: what guards the first layers; None: nothing; `auto`: where the keys of a layer would have 4 bits,
            the engine measures what that does to its attention, and keeps the layer in int8 if it is too much.
        last_layers: likewise. Where only one end is `auto`, its half of the layers may be guarded.
    """

    text: KVPrecision | None = None
    image: KVPrecision | None = None
    first_layers: LayerGuard | Literal["auto"] | None = "auto"
    last_layers: LayerGuard | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        """Check the parts.

        Raises:
            RequestError: one is of another type; `parse_kv_policy` is what reads text.
        """
        for key, side in (("text", self.text), ("image", self.image)):
            if side is not None and not isinstance(side, KVPrecision):
                raise _no_part(key, "a KVPrecision or None", side)
        for key, guard in (("first_layers", self.first_layers), ("last_layers", self.last_layers)):
            if guard is not None and guard != "auto" and not isinstance(guard, LayerGuard):
                raise _no_part(key, "a LayerGuard, 'auto' or None", guard)

    @property
    def name(self) -> str:
        """Short name, which `parse_kv_policy` reads back to a policy that does the same."""
        parts = list(self._parts())
        if not parts:
            return "auto"
        return (
            parts[0][1] if [key for key, _ in parts] == ["text"] else ",".join(f"{key}={name}" for key, name in parts)
        )

    @property
    def is_auto(self) -> bool:
        """Whether it leaves everything to the engine."""
        return self.name == "auto"

    @property
    def precisions(self) -> frozenset[Precision]:
        """Every precision that it names."""
        parts = (self.text, self.image, self.first_layers, self.last_layers)
        named = [part.precision if isinstance(part, LayerGuard) else part for part in parts]
        return frozenset(side for one in named if isinstance(one, KVPrecision) for side in (one.keys, one.values))

    @property
    def is_compressed(self) -> bool:
        """Whether anything is quantised, so that answers may change."""
        return bool({"int8", "int4"} & self.precisions)

    @property
    def differs_by_kind(self) -> bool:
        """Whether image tokens are kept in another precision than text."""
        return self.image is not None and self.image != self.text

    @property
    def has_guards(self) -> bool:
        """Whether layers at an end have a precision of their own, not counting `auto`."""
        return any(isinstance(guard, LayerGuard) for guard in (self.first_layers, self.last_layers))

    @property
    def wants_errors(self) -> bool:
        """Whether layers are to be guarded as measured errors ask for; see `guarded_layers`."""
        is_coarse = any(side is not None and side.keys == "int4" for side in (self.text, self.image))
        return is_coarse and "auto" in (self.first_layers, self.last_layers)

    def layers(
        self,
        num_layers: int,
        kind: TokenKind = "text",
        *,
        own: Precision = "f32",
        guarded: Collection[int] = (),
    ) -> tuple[KVPrecision, ...]:
        """Return the precision of every layer.

        Args:
            num_layers: decoder layers of the model.
            kind: of the tokens.
            own: the engine's own precision, where the policy leaves it to the engine.
            guarded: layers that `guarded_layers` names; those at an end that is not `auto` are passed over.

        Returns:
            One precision for each layer. A layer that both ends guard gets the finer one.
        """
        text = self.text or KVPrecision(own, own)
        base = text if kind == "text" else self.image or text
        return tuple(self._layer(index, num_layers, base, guarded) for index in range(num_layers))

    def _layer(self, index: int, num_layers: int, base: KVPrecision, guarded: Collection[int]) -> KVPrecision:
        found: KVPrecision | None = None
        for guard, place in ((self.first_layers, index), (self.last_layers, num_layers - 1 - index)):
            if isinstance(guard, LayerGuard) and place < guard.num_layers:
                found = guard.precision if found is None else found.finer_of(guard.precision)
        if found is not None or base.keys != "int4" or index not in guarded:
            return found or base
        ends = (self.first_layers, self.last_layers)
        places = (index, num_layers - 1 - index)
        is_auto = any(end == "auto" and 2 * place < num_layers for end, place in zip(ends, places, strict=True))
        return base.finer_of(_AUTO_GUARD) if is_auto else base

    def _parts(self) -> Iterator[tuple[str, str]]:
        """Yield what has to be said, by key."""
        if self.text is not None:
            yield "text", self.text.name
        if self.differs_by_kind and self.image is not None:
            yield "image", self.image.name
        is_coarse = any(side is not None and side.keys == "int4" for side in (self.text, self.image))
        for key, guard in (("first_layers", self.first_layers), ("last_layers", self.last_layers)):
            if isinstance(guard, LayerGuard):
                yield key, guard.name
            elif guard is None and is_coarse:
                yield key, "none"


def guarded_layers(
    errors: Sequence[float], *, guarded_errors: Sequence[float] | None = None, max_error: float = MAX_LOGIT_ERROR
) -> tuple[int, ...]:
    """Name the layers whose keys must not have 4 bits, for `KVPolicy.layers`.

    Args:
        errors: for each layer, the root mean square over queries, heads and entries of what quantising the keys to 4
            bits changes in the attention logits, each query's mean over its entries left out: softmax does not see it.
        guarded_errors: the same with 8 bits; a layer that these do not help is not named. None: they help every layer.
        max_error: the largest error that is let through.

    Returns:
        Indexes, ascending. An error that is no number counts as too large.
    """
    found = [index for index, error in enumerate(errors) if not error <= max_error]
    if guarded_errors is None:
        return tuple(found)
    return tuple(index for index in found if not guarded_errors[index] >= errors[index])


def parse_kv_policy(value: str | Mapping[str, Any] | KVPolicy, field: str = "kv") -> KVPolicy:
    """Read a policy.

    Args:
        value: a name; parts such as `text=int8,image=int4,first_layers=int8x2,last_layers=none`; the same as a mapping;
            or a policy, which is returned.
        field: what it is called in errors.

    Raises:
        RequestError: it is none; the message says what would be.
    """
    if isinstance(value, KVPolicy):
        return value
    if isinstance(value, str):
        value = _split(value, field) if "=" in value else {"text": value}
    if not isinstance(value, Mapping):
        raise RequestError(f"{field} must be {_EXPECTED}, not a {type(value).__name__}", field=field)
    known = [part.name for part in fields(KVPolicy)]
    parts: dict[str, Any] = {}
    for key, said in value.items():
        if key not in known:
            hint = _nearest(str(key), known) or f"known: {', '.join(known)}"
            raise RequestError(f"{field} has no part {key!r:.40}; {hint}", field=field)
        if not isinstance(said, str):
            raise RequestError(f"{field}.{key} must be text such as 'int8', not a {type(said).__name__}", field=field)
        parts[key] = _guard(said, f"{field}.{key}") if key.endswith("_layers") else _of_kind(said, field, key)
    return KVPolicy(**parts)


def _split(text: str, field: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.split(","):
        key, sign, said = (word.strip() for word in part.partition("="))
        if not sign:
            raise RequestError(f"{field}: {part.strip()!r:.40} is no part; write {_EXAMPLE}", field=field)
        if key in parts:
            raise RequestError(f"{field} says {key!r:.40} twice", field=field)
        parts[key] = said
    return parts


def _of_kind(said: str, field: str, key: str) -> KVPrecision | None:
    """Read the precision of one kind of token; None for `auto`."""
    if key == "text":
        return None if said.strip().lower() == "auto" else _precision(said, field)
    if said.strip().lower() == "auto":
        raise RequestError(f"{field}.image: leave it out for image tokens to be kept as text is", field="kv")
    return _precision(said, f"{field}.image")


def _guard(said: str, field: str) -> LayerGuard | Literal["auto"] | None:
    word = said.strip()
    if word.lower() in ("auto", "none"):
        return "auto" if word.lower() == "auto" else None
    match = _GUARD.fullmatch(word)
    precision, number = match.groups() if match else (word, None)
    if number is not None and not int(number):
        raise RequestError(f"{field}: a layer guard covers at least 1 layer; 'none' is for no guard", field="kv")
    return LayerGuard(
        _precision(precision, field, "; with a number of layers: int8x2; or none, or auto"), int(number or 1)
    )


def _precision(said: str, field: str, more: str = "") -> KVPrecision:
    word = said.strip().lower()
    if match := _SPLIT.fullmatch(word):
        return KVPrecision(_OF_BITS[match[1]], _OF_BITS[match[2]])
    sides = [_WORDS.get(side.strip()) for side in word.split("/")]
    keys, values = sides[0], sides[-1]
    if len(sides) <= 2 and keys is not None and values is not None:
        return KVPrecision(keys, values)
    hint = _nearest(word, [*_WORDS, "auto", "k8v4"])
    raise RequestError(f"{field} is {said!r:.60}; {hint + '; ' if hint else ''}expected {_EXPECTED}{more}", field="kv")


def _no_part(what: str, expected: str, found: object) -> RequestError:
    """Say what an object was built from in its place."""
    return RequestError(
        f"{what} must be {expected}, not {found!r:.40}; parse_kv_policy reads text such as 'int8'", field="kv"
    )


def _nearest(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def _finer(one: Precision, other: Precision) -> Precision:
    return min(one, other, key=_PRECISIONS.index)
