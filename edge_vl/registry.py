"""Engines, found through the entry-point group `edge_vl.engines`; ours come the same way as a stranger's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_vl.engine import Engine, EngineStatus
from edge_vl.errors import EngineNotFound, EngineUnavailable

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "engine_named", "engine_names", "engine_status"]

GROUP = "edge_vl.engines"


def engine_names() -> tuple[str, ...]:
    """Names of the engines that installed packages offer, sorted."""
    return tuple(sorted(_points()))


def engine_named(name: str) -> Engine:
    """Import an engine.

    Raises:
        EngineNotFound: no installed package offers it.
        EngineUnavailable: its package cannot be imported, or what it offers is no engine.
    """
    points = _points()
    if name not in points:
        raise EngineNotFound(name, sorted(points))
    try:
        engine = points[name].load()
    except Exception as error:  # a stranger's package may raise anything while it is imported
        missing = f"{points[name].value} cannot be imported: {type(error).__name__}: {error}"
        raise EngineUnavailable(name, missing) from error
    if not isinstance(engine, Engine):
        raise EngineUnavailable(name, f"{points[name].value} is not an engine (see engines/README.md)")
    return engine


def engine_status(name: str) -> EngineStatus:
    """Say whether an engine can run here; an import error is part of the answer."""
    try:
        return engine_named(name).status()
    except EngineUnavailable as error:
        return EngineStatus(is_available=False, reason=error.missing, install=error.install)


def _points() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # late: a tenth of the time of `import edge_vl`

    return {point.name: point for point in entry_points(group=GROUP)}
