"""Finding the graphs of a model folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edge_vl.errors import ModelError
from edge_vl.model_spec import ModelSpec
from edge_vl.wanted_files import ONNX_DTYPES

__all__ = ["DECODER", "DTYPES", "EMBED_TOKENS", "VISION_ENCODER", "ModelFile", "find_file", "list_dtypes"]

VISION_ENCODER = "vision_encoder"
EMBED_TOKENS = "embed_tokens"
DECODER = "decoder_model_merged"

DTYPES = ONNX_DTYPES
"""File name suffix of each precision, in the order in which `auto` looks: most faithful first."""

_LFS_POINTER = b"version https://git-lfs"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One graph.

    Attributes:
        path: of the `.onnx` file.
        dtype: precision, a key of `DTYPES`.
    """

    path: Path
    dtype: str


def list_dtypes(model: ModelSpec, stem: str) -> dict[str, Path]:
    """Return the precisions in which a graph is there, most faithful first.

    Args:
        model: its folder is searched, first `onnx/`, then the folder itself.
        stem: `VISION_ENCODER`, `EMBED_TOKENS` or `DECODER`.
    """
    found = {}
    for dtype, suffix in DTYPES.items():
        for folder in (model.path / "onnx", model.path):
            path = folder / f"{stem}{suffix}.onnx"
            if path.is_file():
                found[dtype] = path
                break
    return found


def find_file(model: ModelSpec, stem: str, dtype: str) -> ModelFile:
    """Find one graph and see that it can be read.

    Args:
        model: where to look.
        stem: which graph.
        dtype: a key of `DTYPES`, or `auto`.

    Raises:
        ModelError: it is not there in that precision, or cannot be read.
    """
    if dtype != "auto" and dtype not in DTYPES:
        raise ModelError(f"unknown dtype {dtype!r}; known: auto, {', '.join(DTYPES)}", file=str(model.path))
    found = list_dtypes(model, stem)
    if not found:
        raise ModelError(
            f"{model.path} has no {stem}.onnx, neither in onnx/ nor in the folder itself", file=str(model.path)
        )
    wanted = next(iter(found)) if dtype == "auto" else dtype
    if wanted not in found:
        raise ModelError(f"{model.path} has no {stem} in {dtype}; it has {', '.join(found)}", file=str(model.path))
    _check_readable(found[wanted])
    return ModelFile(found[wanted], wanted)


def _check_readable(path: Path) -> None:
    """Say plainly what ONNX Runtime would say in riddles."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", file=str(path)) from error
    if not head:
        raise ModelError(f"{path} is empty; download it again", file=str(path))
    if head == _LFS_POINTER:
        raise ModelError(f"{path} is a Git LFS pointer, not the graph; run `git lfs pull`", file=str(path))
