"""Which benchmarks there are, read from their sources: listing them must not import what they measure."""

from __future__ import annotations

import ast
import difflib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from benchmarks.result import Result

__all__ = ["benchmark_named", "benchmarks"]


def benchmarks() -> dict[str, str]:
    """Return what each benchmark measures, by name: every module here that has a function `run`."""
    found = {}
    for path in sorted(Path(__file__).parent.glob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "run" for node in module.body):
            found[path.stem.replace("_", "-")] = (ast.get_docstring(module) or "").partition("\n")[0]
    return found


def benchmark_named(name: str) -> Callable[[bool], Result]:
    """Import a benchmark.

    Raises:
        KeyError: there is none of that name; the message has a hint.
    """
    known = benchmarks()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise KeyError(f"no benchmark named {name!r}; {hint}")
    module = importlib.import_module(f"benchmarks.{name.replace('-', '_')}")
    return cast("Callable[[bool], Result]", module.run)
