"""The sandbox that chat templates run in: they come with a model and are not trusted."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import CodeType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.filters
import jinja2.nodes
import jinja2.parser
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from edge_vl.template_budget import MAX_SIZE, Budget, formatted_size, result_size

__all__ = ["compile_template"]

_MAX_SOURCE = 1 << 18
_NUM_STEPS = 100_000
_NUM_STEPS_PER_MESSAGE = 500
_CHARGE, _STEP = " charge", " step"  # filters whose names no template can write
_REMOVED_FILTERS = ("pprint", "random", "urlize", "wordwrap", "xmlattr")
_LIGHT = frozenset({"attr", "count", "d", "default", "first", "items", "last", "length", "safe"})
"""Filters that do not look into what they are given."""


def compile_template(source: str) -> Callable[[Mapping[str, Any]], str]:
    """Compile a chat template in the environment that transformers gives it.

    Returns:
        A function from the template's variables to the rendered text. It raises whatever the template makes Jinja
        raise, and OverflowError where the text would be longer than a million characters, or where the template takes
        too many steps or makes too large a value on the way.

    Raises:
        jinja2.TemplateError: the template is not valid.
        OverflowError: it is longer than any chat template.

    Source:
        `_cached_compile_jinja_template` of transformers, utils/chat_template_utils.py. Differs: the text, the steps
        and the values that a template computes are bounded; `generation` blocks are rendered and not tracked; filters
        and functions for web pages (`urlize`, `lipsum`, ...) are not there.
    """
    if len(source) > _MAX_SOURCE:
        raise OverflowError(f"it is longer than {_MAX_SOURCE} characters")
    environment = _BoundedEnvironment(_NUM_STEPS)
    code: CodeType = environment.compile(_Metered().visit(environment.parse(source)))

    def render(variables: Mapping[str, Any]) -> str:
        num_messages = len(variables.get("messages") or ())
        own = _BoundedEnvironment(_NUM_STEPS + _NUM_STEPS_PER_MESSAGE * num_messages)  # each rendering has its budget
        template = own.template_class.from_code(own, code, own.make_globals(None))
        pieces: list[str] = []
        num_characters = 0
        for piece in template.generate(variables):
            num_characters += len(piece)
            if num_characters > MAX_SIZE:
                raise OverflowError(f"it renders more than {MAX_SIZE} characters")
            pieces.append(piece)
        return "".join(pieces)

    return render


class _Metered(NodeTransformer):
    """Makes a template pay: what can run more than once by its length, what looks into a value by the value's size."""

    def visit_For(self, node: jinja2.nodes.For) -> jinja2.nodes.Node:
        """Count iterations, those that a condition leaves out as well."""
        self._with_step(node)
        if node.test is not None:
            node.test = jinja2.nodes.And(_step(1), node.test)
        return node

    def _with_step(self, node: Any) -> jinja2.nodes.Node:
        num_nodes = sum(1 for _ in node.find_all(jinja2.nodes.Node))
        num_characters = sum(len(data.data) for data in node.find_all(jinja2.nodes.TemplateData))
        self.generic_visit(node)
        node.body.insert(0, jinja2.nodes.ExprStmt(_step(1 + num_nodes // 64 + num_characters // 256)))
        return node  # type: ignore[no-any-return]

    visit_Macro = visit_CallBlock = visit_Block = visit_FilterBlock = _with_step

    def visit_Compare(self, node: jinja2.nodes.Compare) -> jinja2.nodes.Node:
        """Charge for both sides, unless it is a test for equality with something written in the template."""
        self.generic_visit(node)
        sides = [node.expr, *(operand.expr for operand in node.ops)]
        is_simple = all(operand.op in {"eq", "ne"} for operand in node.ops)
        if not (is_simple and any(isinstance(side, jinja2.nodes.Const) for side in sides)):
            node.expr = _charged(node.expr)
            for operand in node.ops:
                operand.expr = _charged(operand.expr)
        return node

    def visit_Concat(self, node: jinja2.nodes.Concat) -> jinja2.nodes.Node:
        """Charge for the parts and the whole."""
        self.generic_visit(node)
        node.nodes = [_charged(part) for part in node.nodes]
        return _charged(node)

    def visit_Getitem(self, node: jinja2.nodes.Getitem) -> jinja2.nodes.Node:
        """Charge for slices, which are copies."""
        self.generic_visit(node)
        return _charged(node) if isinstance(node.arg, jinja2.nodes.Slice) else node

    def visit_Pair(self, node: jinja2.nodes.Pair) -> jinja2.nodes.Node:
        """Charge for the keys of a dictionary, which are hashed."""
        self.generic_visit(node)
        node.key = _charged(node.key)
        return node


def _charged(node: jinja2.nodes.Expr) -> jinja2.nodes.Expr:
    if isinstance(node, jinja2.nodes.Const):
        return node
    return jinja2.nodes.Filter(node, _CHARGE, [], [], None, None)


def _step(num_steps: int) -> jinja2.nodes.Expr:
    return jinja2.nodes.Filter(jinja2.nodes.Const(num_steps), _STEP, [], [], None, None)


class _BoundedEnvironment(ImmutableSandboxedEnvironment):
    """What one rendering runs in: every call, filter, operator and output takes from its budget."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self, num_steps: int) -> None:
        """Begin with so many steps."""
        self._budget = budget = Budget(num_steps)
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
            optimized=False,
            cache_size=0,
            finalize=budget.charge,
        )
        self.filters["tojson"] = _to_json
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        for name, function in self.filters.items():
            self.filters[name] = self._bounded_filter(name, function)
        for name, function in self.tests.items():
            self.tests[name] = self._bounded_test(function)
        self.filters |= {_CHARGE: budget.charge, _STEP: budget.step}
        for name in ("lipsum", "cycler"):
            del self.globals[name]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now
        self.globals["namespace"] = _Namespace

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """Compute `left operator right` unless the result could be huge."""
        budget = self._budget
        sizes = budget.size(left), budget.size(right)
        if operator == "*":
            for size, value, factor in ((sizes[0], left, right), (sizes[1], right, left)):
                if isinstance(factor, int) and not isinstance(value, (int, float)):
                    budget.check(size * factor)
            if isinstance(left, int) and isinstance(right, int):
                budget.check_bits(left.bit_length() + right.bit_length())
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            budget.check_bits(left.bit_length() * right)
        elif operator == "%" and isinstance(left, str):
            budget.check(formatted_size(budget, left, right))
        budget.check(sum(sizes))
        return super().call_binop(context, operator, left, right)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call something unless the result could be huge."""
        budget = __self._budget
        args = tuple(__self._listed(argument) for argument in args)
        budget.charge((args, kwargs))
        owner, name = getattr(__obj, "__self__", None), getattr(__obj, "__name__", "")
        if isinstance(owner, (str, int, float, list, tuple, dict)):
            budget.charge(owner)
            budget.check(result_size(budget, name, owner, args, kwargs))
        result = super().call(__context, __obj, *args, **kwargs)
        return result if isinstance(result, range) else budget.charge(result)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Bound `text.format`, which the sandbox gives another function."""
        function = super().wrap_str_format(value)
        if function is None:
            return None

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> str:
            self._budget.check(result_size(self._budget, "format", value.__self__, args, kwargs))
            return function(*args, **kwargs)

        return bounded

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Look something up by a key or index."""
        if isinstance(argument, tuple):
            self._budget.charge(argument)
        return super().getitem(obj, argument)

    def _listed(self, value: Any) -> Any:
        return list(self._budget.counted(value)) if isinstance(value, Iterator) else value

    def _bounded_filter(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        budget = self._budget
        num_special = 1 if hasattr(function, "jinja_pass_arg") else 0  # the context or so comes first

        @functools.wraps(function)
        def bounded(*args: Any, **kwargs: Any) -> Any:
            special, (value, *further) = args[:num_special], args[num_special:]
            value = self._listed(value)
            if name in _LIGHT:
                budget.step()
            else:
                if name == "join":
                    value, further, kwargs = self._join_arguments(value, *further, **kwargs)
                elif name == "sum":
                    _check_sum(*further, **kwargs)
                budget.charge(value)
                budget.charge((further, kwargs))
                budget.check(result_size(budget, name, value, further, kwargs))
            result = function(*special, value, *further, **kwargs)
            if name in _LIGHT:
                return result
            return budget.counted(result) if isinstance(result, Iterator) else budget.charge(result)

        return bounded

    def _bounded_test(self, function: Any) -> Callable[..., Any]:
        budget = self._budget

        @functools.wraps(function)
        def bounded(*args: Any) -> Any:
            if len(args) > 1 or isinstance(args[0], str):
                for argument in args:
                    budget.charge(argument)
            return function(*args)

        return bounded

    def _join_arguments(self, value: Any, d: Any = "", attribute: Any = None) -> tuple[Any, list[Any], dict[str, Any]]:
        """Return what joins the same texts, the attribute looked up already."""
        if attribute is not None:
            value = list(map(jinja2.filters.make_attrgetter(self, attribute), value))
        return value, [d], {}


def _check_sum(attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, (int, float)):
        raise OverflowError("it sums up something else than numbers")


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

    def __repr__(self) -> str:
        """Stay short: a namespace can hold itself."""
        return "<Namespace>"


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"the template stores {name!r} in a namespace")


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:  # its public name in templates
    if len(format) > 200 or re.search(r"\d{3}", format):  # some systems take widths
        raise OverflowError("it writes the time in too long a format")
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
