"""The int8 copy of a vision encoder: made on request, kept, measured, and mended."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edge_vl.engine import LaneOptions
from edge_vl.errors import EngineUnavailable, ModelError
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit
from edge_vl_onnxruntime import OnnxRuntimeEngine, vision_int8_report
from tests.engines.tiny_models import TILE, tiny_spec

INT8 = LaneOptions(dtype="int8", threads=1)
PIXELS = np.random.default_rng(3).integers(0, 256, (TILE, TILE, 3), dtype=np.uint8)


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "onnxruntime").iterdir())


def load_twice(folder: str, cache: str) -> None:
    OnnxRuntimeEngine(Path(cache)).load_vision(tiny_spec(Path(folder)), INT8).close()


def test_an_int8_copy_is_made_once_and_its_disagreement_is_kept(
    models: Callable[[str], ModelSpec], tmp_path: Path
) -> None:
    spec, engine = models("plain"), OnnxRuntimeEngine(tmp_path)
    assert vision_int8_report(spec, tmp_path) is None
    exact = engine.load_vision(spec, LaneOptions(threads=1)).encode(ImageUnit.of(PIXELS, "tile")).values
    vision = engine.load_vision(spec, INT8)
    assert vision.spec.dtype == "int8"
    found = vision.encode(ImageUnit.of(PIXELS, "tile")).values
    assert 0 < np.linalg.norm(found - exact) / np.linalg.norm(exact) < 0.05
    report = vision_int8_report(spec, tmp_path)
    assert report is not None
    assert 0 < report["relative_l2_error"] < 0.05
    assert 0.99 < report["mean_cosine"] <= 1
    made = Path(vision.spec.file).stat().st_mtime_ns
    again = engine.load_vision(spec, INT8)
    assert Path(again.spec.file).stat().st_mtime_ns == made
    assert len(entries(tmp_path)) == 1
    assert not [handler for handler in logging.root.handlers if type(handler) is logging.StreamHandler]


def test_another_graph_gets_another_copy(copy_model: Callable[[str], ModelSpec], tmp_path: Path) -> None:
    spec, cache = copy_model("plain"), tmp_path / "cache"
    engine = OnnxRuntimeEngine(cache)
    engine.load_vision(spec, INT8)
    path = spec.path / "onnx" / "vision_encoder.onnx"
    import onnx

    graph = onnx.load(path)
    graph.producer_name = "another"
    onnx.save(graph, path)
    assert vision_int8_report(spec, cache) is None
    engine.load_vision(spec, INT8)
    assert len(entries(cache)) == 2


@pytest.mark.parametrize("damage", ["short", "no report", "odd report", "no graph"])
def test_a_damaged_copy_is_made_again(models: Callable[[str], ModelSpec], tmp_path: Path, damage: str) -> None:
    engine = OnnxRuntimeEngine(tmp_path)
    graph = Path(engine.load_vision(models("plain"), INT8).spec.file)
    report = graph.parent / "report.json"
    if damage == "short":
        graph.write_bytes(graph.read_bytes()[:100])
    elif damage == "no graph":
        graph.unlink()
    elif damage == "no report":
        report.unlink()
    else:
        report.write_text("[")
    vision = engine.load_vision(models("plain"), INT8)
    assert vision.encode(ImageUnit.of(PIXELS, "tile")).num_tokens > 0
    assert json.loads(report.read_text())["mean_cosine"] > 0.99
    assert len(entries(tmp_path)) == 1


def test_two_processes_may_make_it_at_once(models: Callable[[str], ModelSpec], tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    arguments = (str(models("plain").path), str(tmp_path))
    workers = [context.Process(target=load_twice, args=arguments) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(entries(tmp_path)) == 1


def test_a_disk_that_is_full_is_unavailable_with_advice(
    models: Callable[[str], ModelSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(EngineUnavailable, match=r"No space left on device.*EDGE_VL_CACHE_DIR"):
        OnnxRuntimeEngine(tmp_path).load_vision(models("plain"), INT8)


def test_a_folder_that_cannot_be_written_is_unavailable_with_advice(
    models: Callable[[str], ModelSpec], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineUnavailable, match="EDGE_VL_CACHE_DIR"):
        OnnxRuntimeEngine(tmp_path / "file").load_vision(models("plain"), INT8)


def test_a_graph_that_cannot_be_quantised_is_a_model_error_and_leaves_nothing(
    copy_model: Callable[[str], ModelSpec], tmp_path: Path
) -> None:
    spec, cache = copy_model("plain"), tmp_path / "cache"
    (spec.path / "onnx" / "vision_encoder.onnx").write_bytes(b"\x07" * 99)
    with pytest.raises(ModelError, match=r"vision_encoder.onnx cannot be quantised"):
        OnnxRuntimeEngine(cache).load_vision(spec, INT8)
    assert entries(cache) == []


def test_what_a_killed_process_left_is_removed_after_a_day(models: Callable[[str], ModelSpec], tmp_path: Path) -> None:
    for name in (".building-old", ".building-new"):
        (tmp_path / "onnxruntime" / name).mkdir(parents=True)
    os.utime(tmp_path / "onnxruntime" / ".building-old", (0, 0))
    OnnxRuntimeEngine(tmp_path).load_vision(models("plain"), INT8)
    assert ".building-new" in entries(tmp_path)
    assert ".building-old" not in entries(tmp_path)


def test_without_the_onnx_package_it_is_unavailable_with_its_command(
    models: Callable[[str], ModelSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(EngineUnavailable, match="pip install onnx onnxruntime"):
        OnnxRuntimeEngine(tmp_path).load_vision(models("plain"), INT8)
    assert entries(tmp_path) == []


def test_a_file_that_the_model_brings_is_used(copy_model: Callable[[str], ModelSpec], tmp_path: Path) -> None:
    spec = copy_model("plain")
    folder = spec.path / "onnx"
    (folder / "vision_encoder_int8.onnx").write_bytes((folder / "vision_encoder.onnx").read_bytes())
    vision = OnnxRuntimeEngine(tmp_path / "cache").load_vision(spec, INT8)
    assert vision.spec.file == str(folder / "vision_encoder_int8.onnx")
    assert not (tmp_path / "cache").exists()
