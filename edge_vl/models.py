"""Models by name."""

from __future__ import annotations

import difflib
from pathlib import Path

from edge_vl.errors import ModelError, RequestError
from edge_vl.model_spec import ModelSpec, read_model_spec
from edge_vl.pulled_model import MANIFEST, PulledModel, pulled_models, read_pulled_model

__all__ = ["BUNDLED", "find_model", "find_pulled", "model_names"]

BUNDLED = "bundled"


def model_names() -> tuple[str, ...]:
    """Short names of the models on this machine: the bundled one, then those that were pulled."""
    shelf = _shelf()
    return (BUNDLED, *(model.name for model in (pulled_models(shelf) if shelf else ())))


def find_model(model: str | Path) -> ModelSpec:
    """Find a model by its short name, the repository it was pulled from, its folder or its file.

    Neither a network nor the Hub's library is needed.

    Args:
        model: `bundled`; the short name of a pulled model; `owner/name` of a repository that was pulled; a folder in
            the Hugging Face layout or with GGUF files; a GGUF file of a text model. A name comes before a folder of
            that name: `./name` is always the folder, and so is a `Path`.

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
    pulled = find_pulled(model) if isinstance(model, str) and not (is_there and "/" in model) else None
    if pulled is not None:
        pulled.check()
        return read_model_spec(pulled.folder, name=pulled.name)
    if is_there:
        return read_model_spec(folder)
    if folder.suffix == ".gguf" or folder.is_symlink():
        raise ModelError(f"there is no file {str(model)!r}", file=str(model))
    raise ModelError(f"{str(model)!r} is {_hint(str(model))}", file=str(model))


def find_pulled(name: str) -> PulledModel | None:
    """Return a pulled model by its short name or by a repository that it is from; None if it was not pulled.

    Raises:
        ModelError: it was pulled, and its manifest is damaged.
    """
    shelf = _shelf()
    if shelf is None or "\\" in name or name.startswith(".") or not name.strip():
        return None
    if "/" not in name:
        return read_pulled_model(shelf / name) if (shelf / name / MANIFEST).is_file() else None
    own = name.replace("/", "--")
    models = [model for model in pulled_models(shelf) if any(source.repo == name for source in model.sources)]
    return next((model for model in models if model.name == own), next(iter(models), None))


def _hint(model: str) -> str:
    """Say what is wrong with a name, and what to do."""
    from edge_vl.catalog import catalog

    if model in catalog():
        return f"not on this machine yet; run: edge-vl models pull {model}"
    here = model_names()
    close = difflib.get_close_matches(model, (*here, *catalog()), n=1)
    if close:
        return f"neither a model's name nor a folder; did you mean {close[0]!r}?"
    known = ", ".join(here)
    if model.count("/") == 1 and not model.startswith((".", "~", "/")):
        return f"neither a folder nor a model that was pulled; to pull it: edge-vl models pull {model}; known: {known}"
    return f"neither a model's name nor a folder; known names: {known}; to be pulled: {', '.join(catalog())}"


def _shelf() -> Path | None:
    """Return the folder with pulled models; None where there is no home to put it in."""
    from edge_vl.environment import read_environment

    return read_environment().models_dir
