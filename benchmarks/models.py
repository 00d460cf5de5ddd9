"""Shape-real models for benchmarks, made once and kept in the cache folder."""

from __future__ import annotations

from pathlib import Path

from benchmarks.progress import report
from edge_vl.environment import cache_dir
from edge_vl.made_models.folder import make_model
from edge_vl.made_models.shapes import find_shape

__all__ = ["shape_model"]


def shape_model(name: str, *, longest_edge: int | None = None) -> Path:
    """Return the folder of a model that `edge-vl models make` makes; makes it if it is not there.

    Args:
        name: of its shape, such as `smolvlm-256m`.
        longest_edge: pixels that pictures are scaled to; None: as published.

    Raises:
        ModelError: it cannot be made.
    """
    folder = cache_dir() / "made" / (name if longest_edge is None else f"{name}-{longest_edge}")
    if not folder.is_dir():
        report(f"making {folder}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        make_model(find_shape(name), folder, longest_edge=longest_edge)
    return folder
