"""Dynamic int8 of a vision encoder, made on request and kept in a cache folder with its measured disagreement.

An entry is a folder of two files, `vision_encoder_int8.onnx` and `report.json`, named after a hash of everything that
it was made from. It is built aside and moved into place in one step, so an entry is whole or not there, and of two
processes that build the same entry at once the second one throws its own away.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import logging
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import LaneOptions
from edge_vl.environment import cache_dir as environment_cache_dir
from edge_vl.errors import EngineUnavailable, ModelError
from edge_vl.machine import read_machine
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit
from edge_vl_onnxruntime.files import VISION_ENCODER, list_dtypes
from edge_vl_onnxruntime.session import ENGINE, INSTALL, import_onnxruntime, open_session, reason
from edge_vl_onnxruntime.vision import OnnxVisionEncoder

__all__ = ["made_vision_file", "quantized_vision_file", "synthetic_tiles", "vision_int8_report"]

_RECIPE = "dynamic-int8 per-channel matmul 1"
_GRAPH = "vision_encoder_int8.onnx"
_REPORT = "report.json"
_NUM_TILES = 4
_ABANDONED_S = 24 * 3600.0


def vision_int8_report(model: ModelSpec, cache_dir: Path | None = None) -> dict[str, Any] | None:
    """Return the measured disagreement of the int8 vision encoder that was made of a model, if there is one.

    Args:
        model: whose vision encoder.
        cache_dir: where entries are kept; None asks the environment.

    Returns:
        `relative_l2_error` and `mean_cosine` of image embeds, int8 against fp32, over `num_tiles` synthetic tiles, and
        what they were measured with; None if nothing was made yet or the model brings its own int8 file.
    """
    source = list_dtypes(model, VISION_ENCODER).get("fp32")
    if source is None:
        return None
    return _read_report(_entry(source, cache_dir or environment_cache_dir()))


def quantized_vision_file(model: ModelSpec, source: Path, cache_dir: Path | None = None) -> Path:
    """Return an int8 copy of a vision encoder, made now if need be.

    Args:
        model: whose vision encoder.
        source: its fp32 graph.
        cache_dir: where entries are kept; None asks the environment.

    Raises:
        EngineUnavailable: what makes it is missing, or it cannot be written.
        ModelError: the graph cannot be quantised.
    """
    root = cache_dir or environment_cache_dir()
    entry = _entry(source, root)
    if not _is_whole(entry):
        try:
            _build(model, source, entry)
        except OSError as error:
            raise EngineUnavailable(
                ENGINE,
                f"the int8 copy of {source} cannot be kept under {root}: {error.strerror or error}; "
                "free some space or set EDGE_VL_CACHE_DIR to another folder",
            ) from error
    return entry / _GRAPH


def made_vision_file(source: Path, cache_dir: Path | None = None) -> Path | None:
    """Return the int8 copy of a vision encoder if it was made already.

    Args:
        source: its fp32 graph.
        cache_dir: where entries are kept; None asks the environment.
    """
    entry = _entry(source, cache_dir or environment_cache_dir())
    return entry / _GRAPH if _read_report(entry) is not None and (entry / _GRAPH).is_file() else None


def synthetic_tiles(height: int, width: int, count: int = _NUM_TILES) -> list[NDArray[np.uint8]]:
    """Return pictures that are always the same: gradients, blocks and noise, uint8 (height, width, 3)."""
    random = np.random.default_rng(2024)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    tiles = []
    for _ in range(count):
        slopes, offsets = random.uniform(-1, 1, (2, 3)), random.uniform(60, 200, 3)
        tile = offsets + 80 * (x[..., None] / width * slopes[0] + y[..., None] / height * slopes[1])
        for _ in range(4):
            top, left = random.integers(0, max(1, height // 2)), random.integers(0, max(1, width // 2))
            tile[top : top + height // 3, left : left + width // 3] = random.uniform(0, 255, 3)
        tile += random.normal(0, 8, tile.shape)
        tiles.append(np.clip(tile, 0, 255).astype(np.uint8))
    return tiles


def _entry(source: Path, root: Path) -> Path:
    """Name an entry after the graph, its external data, the recipe and the backend's version."""
    digest = hashlib.blake2b(digest_size=12)
    version = import_onnxruntime().__version__
    digest.update(f"{_RECIPE}|{version}|{_needs_reduced_range()}".encode())
    for path in sorted(source.parent.glob(f"{source.name}*")):
        state = path.stat()
        digest.update(f"|{path.name}|{state.st_size}|".encode())
        digest.update(_hash_source(path, state.st_size, state.st_mtime_ns))
    return root / ENGINE / f"vision-int8-{digest.hexdigest()}"


@lru_cache(maxsize=16)
def _hash_source(path: Path, _size: int, _mtime_ns: int) -> bytes:
    """Hash a file once for each of its states: the memory plan asks, and loading asks again."""
    return _hash_file(path)


def _hash_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}", file=str(path)) from error


def _needs_reduced_range() -> bool:
    """Whether the CPU adds products of int8 in 16 bits that may overflow: x86 without the VNNI instructions."""
    machine = read_machine()
    return machine.arch.lower() in {"x86_64", "amd64"} and not {"avx512_vnni", "avx_vnni"} & set(machine.flags)


def _read_report(entry: Path) -> dict[str, Any] | None:
    try:
        report = json.loads((entry / _REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return report if isinstance(report, dict) else None


def _is_whole(entry: Path) -> bool:
    """Whether the graph is what the report says it is; a disk can lose the end of a file in a power cut."""
    report = _read_report(entry)
    graph = entry / _GRAPH
    return report is not None and graph.is_file() and _hash_file(graph).hex() == report.get("blake2b")


def _build(model: ModelSpec, source: Path, entry: Path) -> None:
    """Make an entry aside, measure it, and move it into place."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(entry.parent)
    aside = Path(tempfile.mkdtemp(prefix=".building-", dir=entry.parent))
    try:
        _quantize(source, aside / _GRAPH)
        report = _measure(model, source, aside / _GRAPH)
        report["blake2b"] = _hash_file(aside / _GRAPH).hex()
        (aside / _REPORT).write_text(json.dumps(report, indent=1), encoding="utf-8")
        if entry.exists() and not _is_whole(entry):
            broken = Path(tempfile.mkdtemp(prefix=".broken-", dir=entry.parent))
            entry.rename(broken / "entry")
            shutil.rmtree(broken, ignore_errors=True)
        try:
            aside.rename(entry)
        except OSError:
            if not _is_whole(entry):  # otherwise another process was first
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes that were killed left behind."""
    for path in (*folder.glob(".building-*"), *folder.glob(".broken-*")):
        with contextlib.suppress(OSError):  # another process may be quicker
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)


def _quantize(source: Path, target: Path) -> None:
    try:
        onnx: Any = importlib.import_module("onnx")
        quantization: Any = importlib.import_module("onnxruntime.quantization")
    except ImportError as error:
        raise EngineUnavailable(ENGINE, f"making an int8 copy needs the onnx package: {error}", INSTALL) from error
    # The quantiser logs through `logging.info`, which gives the root logger a handler of its own if it has none.
    silence = logging.NullHandler()
    logging.root.addHandler(silence)
    try:
        graph = onnx.load(str(source))
        # Without this mark the quantiser advises to run a step that changes nothing here.
        graph.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
        quantization.quantize_dynamic(
            graph,
            str(target),
            op_types_to_quantize=["MatMul"],  # the patch convolution is cheap and sensitive
            per_channel=True,
            reduce_range=_needs_reduced_range(),
            weight_type=quantization.QuantType.QInt8,
            extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
        )
    except OSError:
        raise
    except Exception as error:
        raise ModelError(f"{source} cannot be quantised: {reason(error)}", file=str(source)) from error
    finally:
        logging.root.removeHandler(silence)


def _measure(model: ModelSpec, source: Path, quantised: Path) -> dict[str, Any]:
    """Compare image embeds of both graphs over synthetic tiles."""
    options = LaneOptions(device="cpu")
    exact = OnnxVisionEncoder(open_session(source, options), model, "fp32")
    approximate = OnnxVisionEncoder(open_session(quantised, options), model, "int8")
    height, width = exact.spec.tile_height or 512, exact.spec.tile_width or 512
    errors, cosines = [], []
    for tile in synthetic_tiles(height, width):
        unit = ImageUnit.of(tile, "tile")
        a, b = exact.encode(unit).values.astype(np.float64), approximate.encode(unit).values.astype(np.float64)
        errors.append(float(np.linalg.norm(b - a) / np.linalg.norm(a)))
        cosines.extend((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)))
    exact.close()
    approximate.close()
    return {
        "model": model.name,
        "source": str(source),
        "recipe": _RECIPE,
        "onnxruntime": str(import_onnxruntime().__version__),
        "num_tiles": _NUM_TILES,
        "relative_l2_error": round(float(np.mean(errors)), 6),
        "mean_cosine": round(float(np.mean(cosines)), 6),
        "bytes_fp32": sum(path.stat().st_size for path in source.parent.glob(f"{source.name}*")),
        "bytes_int8": quantised.stat().st_size,
    }
