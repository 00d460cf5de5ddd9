"""Models by name."""

from __future__ import annotations

import difflib
from pathlib import Path

from edge_vl.errors import ModelError, RequestError
from edge_vl.model_spec import ModelSpec, read_model_spec

__all__ = ["BUNDLED", "find_model", "model_names"]

BUNDLED = "bundled"


def model_names() -> tuple[str, ...]:
    """Short names of the models on this machine."""
    return (BUNDLED,)


def find_model(model: str | Path) -> ModelSpec:
    """Find a model by its short name or its folder.

    Args:
        model: `bundled`, or a folder in the Hugging Face layout.

    Raises:
        RequestError: it is neither a text nor a path.
        ModelError: there is no such model, or its files do not fit.
    """
    if not isinstance(model, (str, Path)):
        raise RequestError(f"a model is named by a text or a path, not by {model!r:.80}", field="model")
    if model == BUNDLED:
        return read_model_spec(Path(__file__).parent / "bundled_model", name=BUNDLED)
    try:
        folder = Path(model).expanduser()
        is_there = folder.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, an unknown user, a null character
        raise ModelError(f"{str(model)!r:.80} cannot be a folder: {error}", file=str(model)) from error
    if is_there:
        return read_model_spec(folder)
    close = difflib.get_close_matches(str(model), model_names(), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; known names: {', '.join(model_names())}"
    raise ModelError(f"{str(model)!r} is neither a model's name nor a folder{hint}", file=str(model))
