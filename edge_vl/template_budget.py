"""What a chat template may spend: steps, and the sizes of the values it makes."""

from __future__ import annotations

import re
from collections.abc import ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

from jinja2.utils import Namespace

__all__ = ["MAX_SIZE", "Budget", "formatted_size", "result_size"]

MAX_SIZE = 1 << 20
"""Characters of a text, or of a value's text form."""

_MAX_DEPTH = 64
_MAX_BITS = 1 << 14
_SIZE_OF_A_STEP = 256
_CONTAINERS: tuple[type, ...] = (
    list,
    tuple,
    set,
    frozenset,
    KeysView,
    ValuesView,
    ItemsView,
    type({}.keys()),
    type({}.values()),
)


class Budget:
    """What is left of one rendering. Not for several threads.

    A step is an iteration, a call or an operation; one on something large counts as many. What a template makes of
    values it cannot change afterwards, so the size of a list is computed once, however often it stands in others.
    """

    def __init__(self, num_steps: int) -> None:
        """Begin with so many steps."""
        self._left = num_steps
        self._sizes: dict[int, tuple[object, int]] = {}  # with the object, so that nobody else gets its id

    def step(self, num_steps: int = 1) -> bool:
        """Take steps; true, so that it can stand in a condition.

        Raises:
            OverflowError: none are left.
        """
        self._left -= num_steps
        if self._left < 0:
            raise OverflowError("it takes too many steps")
        return True

    def charge(self, value: Any) -> Any:
        """Take the steps for working on a value once, and return it.

        Raises:
            OverflowError: the value is too large, or no steps are left.
        """
        self.step(1 + self.size(value) // _SIZE_OF_A_STEP)
        return value

    def check(self, size: int) -> None:
        """Take the steps for a result of this size that is about to be made.

        Raises:
            OverflowError: it is too large, or no steps are left.
        """
        if size > MAX_SIZE:
            raise OverflowError("it makes something too large")
        self.step(1 + max(size, 0) // _SIZE_OF_A_STEP)

    def check_bits(self, num_bits: int) -> None:
        """Refuse a whole number of so many bits.

        Raises:
            OverflowError: it is too large.
        """
        if num_bits > _MAX_BITS:
            raise OverflowError("it computes too large a number")

    def counted(self, values: Iterator[Any]) -> Iterator[Any]:
        """Take a step for each value."""
        for value in values:
            self.step()
            yield value

    def size(self, value: Any) -> int:
        """Return at least the length of a value's text, everything in it counted as often as it stands there.

        Raises:
            OverflowError: it is too large, too deep, or no steps are left.
        """
        return self._measure(value, 0)[0]

    def _measure(self, value: Any, depth: int) -> tuple[int, bool]:
        """Return the size, and whether it stays so: what holds a namespace can grow."""
        if isinstance(value, str):
            return _limited(len(value) + 4), True
        if isinstance(value, int):
            self.check_bits(value.bit_length())
            return 8 + value.bit_length() // 3, True
        if isinstance(value, range):
            return 32 + len(value), True
        if isinstance(value, (bytes, bytearray, memoryview)):
            raise OverflowError("it uses bytes, which templates have no use for")
        is_namespace = isinstance(value, Namespace)
        if not is_namespace and not isinstance(value, (dict, *_CONTAINERS)):
            return 32, True
        if found := self._sizes.get(id(value)):
            return found[1], True
        if depth > _MAX_DEPTH:
            raise OverflowError(f"it nests values more than {_MAX_DEPTH} deep")
        self.step()
        size, is_stable = 16, not is_namespace
        for item in _items(value):
            item_size, item_is_stable = self._measure(item, depth + 1)
            size = _limited(size + item_size + 2)
            is_stable &= item_is_stable
        self.step(len(value) // 8 if not is_namespace else 1)
        if is_stable:
            self._sizes[id(value)] = value, size
        return size, is_stable


def _items(value: Any) -> Iterator[Any]:
    if isinstance(value, Namespace):
        value = object.__getattribute__(value, "_Namespace__attrs")
    if isinstance(value, dict):
        yield from value
        yield from value.values()
    else:
        yield from value


def _limited(size: int) -> int:
    if size > MAX_SIZE:
        raise OverflowError("it makes something too large")
    return size


def formatted_size(budget: Budget, template: str, arguments: object) -> int:
    """Return at least the length of what `template % arguments` or `template.format(arguments)` gives.

    Raises:
        OverflowError: a width is not written in the template.
    """
    if re.search(r"\*|\{[^{}]*\{", template.replace("{{", "")):
        raise OverflowError("it formats with a width that it computes")
    widths = sum(int(digits[:9]) for digits in re.findall(r"\d+", template))
    num_fields = template.count("%") + template.count("{")
    return len(template) + widths + num_fields * budget.size(arguments)


def result_size(budget: Budget, name: str, value: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> int:
    """Return at least the size of what a filter or a method of texts makes, where it can be far more than it was given.

    Args:
        budget: measures values.
        name: of the filter or method.
        value: what it works on.
        arguments: further arguments.
        named: arguments by name.
    """
    further = [*arguments, *named.values()]
    size = sum(abs(argument) for argument in further if isinstance(argument, int))
    if name in {"format", "format_map"}:
        return size + formatted_size(budget, str(value), further)
    if name in {"indent", "expandtabs"}:
        num_places = 1 + len(re.findall(r"[\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029]", str(value)))
        return budget.size(value) + num_places * (size + 8 + budget.size(further))
    if name == "replace" and further:
        old, new = named.get("old", further[0]), named.get("new", further[-1])
        num_places = value.count(old) if isinstance(value, str) and isinstance(old, str) else budget.size(value)
        return budget.size(value) + num_places * max(budget.size(new), *map(budget.size, arguments[1:2] or (0,)))
    if name == "join":
        return _joined_size(budget, value, further)
    if name == "translate":
        return budget.size(value) * budget.size(further)
    if name == "tojson":
        return budget.size(value) * (1 + size + budget.size(further) // 16)
    return size


def _joined_size(budget: Budget, value: Any, further: Sequence[Any]) -> int:
    """Return the size for `text.join(values)` and `values | join(text)` alike."""
    num_items = max((len(item) for item in (value, *further) if hasattr(item, "__len__")), default=0)
    texts = [item for item in (value, *further) if isinstance(item, str)]
    return budget.size(value) + budget.size(further) + num_items * max(map(len, texts), default=0)
