"""The sandbox that chat templates run in: they come with a model and are not trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["compile_template"]

_MAX_CHARACTERS = 1 << 20


def compile_template(source: str) -> Callable[[Mapping[str, Any]], str]:
    """Compile a chat template in the environment that transformers gives it.

    Returns:
        A function from the template's variables to the rendered text. It raises whatever the template makes Jinja
        raise, and OverflowError where the text would be longer than a million characters.

    Raises:
        jinja2.TemplateError: the template is not valid.

    Source:
        `_cached_compile_jinja_template` of transformers, utils/chat_template_utils.py. Differs: the text and the
        numbers that a template computes are bounded; `generation` blocks are rendered and not tracked.
    """
    environment = _BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.pop("lipsum", None)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["namespace"] = _Namespace
    template = environment.from_string(source)

    def render(variables: Mapping[str, Any]) -> str:
        pieces: list[str] = []
        num_characters = 0
        for piece in template.generate(variables):
            num_characters += len(piece)
            if num_characters > _MAX_CHARACTERS:
                raise OverflowError(f"it renders more than {_MAX_CHARACTERS} characters")
            pieces.append(piece)
        return "".join(pieces)

    return render


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Refuses the operators that make something huge out of something small."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` unless the result could be huge."""
        if operator == "*":
            for sequence, factor in ((left, right), (right, left)):
                if isinstance(sequence, (str, list, tuple)) and isinstance(factor, int):
                    self._check(len(sequence) * factor)
        elif operator == "**":
            self._check(abs(left) if isinstance(left, int) else 0)
            self._check(right * 1024 if isinstance(right, int) else 0)
        elif isinstance(left, str) and re.search(r"\d{5}|\*", left):  # a width
            raise OverflowError("it formats something too wide")
        return super().call_binop(context, operator, left, right)

    @staticmethod
    def _check(size: int) -> None:
        if size > _MAX_CHARACTERS:
            raise OverflowError("it computes something too large")


class _GenerationBlock(jinja2.ext.Extension):
    """Renders `{% generation %}...{% endgeneration %}`, which marks what training counts, as if it were not there."""

    tags = {"generation"}  # noqa: RUF012  (Jinja declares it so)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """Replace the block by its body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no `self`: a name may be called so
        instance, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(instance, values)

    def __setitem__(self, name: str, value: Any) -> None:
        """Set one name."""
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the template stores {name!r} in a namespace")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:  # its public name in templates
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
