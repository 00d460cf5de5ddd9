"""Precisions, damaged files, devices and backends that are not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16
from tokenizers import Tokenizer

from edge_vl.engine import LaneOptions
from edge_vl.errors import EngineUnavailable, ModelError, RequestError
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl_onnxruntime import engine as ort_engine
from edge_vl_onnxruntime.language import OnnxLanguageModel
from tests.engines.tiny_models import TILE, VOCAB, TinyOptions, write_tiny_model

ONE_THREAD = LaneOptions(threads=1)


def save_variants(spec: ModelSpec) -> None:
    """Write fp16, int8 and q4 files beside the fp32 ones."""
    folder = spec.path / "onnx"
    for stem in ("vision_encoder", "embed_tokens", "decoder_model_merged"):
        path = folder / f"{stem}.onnx"
        onnx.save(convert_float_to_float16(onnx.load(path)), folder / f"{stem}_fp16.onnx")
        if stem != "embed_tokens":
            marked = onnx.load(path)
            marked.metadata_props.add(key="onnx.quant.pre_process", value="onnxruntime.quant")
            target = folder / f"{stem}_int8.onnx"
            quantize_dynamic(
                marked,
                target,
                op_types_to_quantize=["MatMul"],
                weight_type=QuantType.QInt8,
                extra_options={"DefaultTensorType": onnx.TensorProto.FLOAT},
            )
            quantizer = MatMulNBitsQuantizer(onnx.load(path), block_size=16, is_symmetric=True)
            quantizer.process()
            onnx.save(quantizer.model.model, folder / f"{stem}_q4.onnx")


@pytest.mark.parametrize("kind", ["plain", "in-place"])
def test_every_precision_loads_runs_and_agrees_roughly(copy_model: Callable[[str], ModelSpec], kind: str) -> None:
    spec = copy_model(kind)
    save_variants(spec)
    pixels = np.random.default_rng(0).integers(0, 256, (TILE, TILE, 3), dtype=np.uint8)
    expected: NDArray[np.float32] | None = None
    for dtype, tolerance in (("auto", 0.0), ("fp32", 0.0), ("fp16", 0.01), ("int8", 0.15), ("q4", 0.5)):
        options = LaneOptions(dtype=dtype, threads=1)
        vision, language = ort_engine.load_vision(spec, options), ort_engine.load_language(spec, options)
        wanted = "fp32" if dtype == "auto" else dtype
        assert (vision.spec.dtype, language.spec.dtype) == (wanted, wanted)
        assert isinstance(language, OnnxLanguageModel)
        assert language.is_cache_shared == (kind == "in-place")
        cache = language.new_cache()
        language.prefill(cache, [TextChunk((1, 2), 0), vision.encode(ImageUnit.of(pixels, "tile"))], want_logits=False)
        logits = language.decode(cache, 3)
        assert logits.dtype == np.float32
        expected = logits if expected is None else expected
        error = np.linalg.norm(logits - expected) / np.linalg.norm(expected)
        assert error <= tolerance, dtype
        assert (error > 0) == (tolerance > 0), dtype
        language.close()
        vision.close()


def test_a_missing_precision_is_named_with_those_that_are_there(models: Callable[[str], ModelSpec]) -> None:
    with pytest.raises(ModelError, match="no decoder_model_merged in q4; it has fp32"):
        ort_engine.load_language(models("plain"), LaneOptions(dtype="q4"))
    with pytest.raises(ModelError, match="unknown dtype 'fp8'; known: auto, fp32"):
        ort_engine.load_vision(models("plain"), LaneOptions(dtype="fp8"))


@pytest.mark.parametrize("stem", ["vision_encoder", "embed_tokens", "decoder_model_merged"])
@pytest.mark.parametrize("damage", ["missing", "empty", "truncated", "garbage", "pointer", "external"])
def test_a_damaged_file_is_a_model_error_that_names_it(
    copy_model: Callable[[str], ModelSpec], stem: str, damage: str
) -> None:
    spec = copy_model("plain")
    path = spec.path / "onnx" / f"{stem}.onnx"
    if damage == "missing":
        path.unlink()
    elif damage == "external":
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.data", size_threshold=0)
        (path.parent / "weights.data").unlink()
    else:
        data = path.read_bytes()
        pointer = b"version https://git-lfs.github.com/spec/v1\n"
        path.write_bytes(
            {"empty": b"", "truncated": data[: len(data) // 2], "garbage": b"\x07" * 999}.get(damage, pointer)
        )
    load = ort_engine.load_vision if stem == "vision_encoder" else ort_engine.load_language
    with pytest.raises(ModelError, match=stem if damage == "missing" else path.name):
        load(spec, ONE_THREAD)


def test_inputs_that_are_not_known_are_named(tmp_path: Path) -> None:
    spec = write_tiny_model(tmp_path, TinyOptions(extra_input="image_sizes"))
    with pytest.raises(ModelError, match="image_sizes"):
        ort_engine.load_language(spec, ONE_THREAD)


def test_the_model_s_parts_must_fit_together(copy_model: Callable[[str], ModelSpec]) -> None:
    spec = copy_model("plain")
    folder = spec.path / "onnx"
    shutil.copy(folder / "embed_tokens.onnx", folder / "decoder_model_merged.onnx")
    with pytest.raises(ModelError, match="inputs_embeds"):
        ort_engine.load_language(spec, ONE_THREAD)
    shutil.copy(folder / "embed_tokens.onnx", folder / "vision_encoder.onnx")
    with pytest.raises(ModelError, match="pixel_values"):
        ort_engine.load_vision(spec, ONE_THREAD)


def test_a_device_without_its_provider_is_unavailable_with_a_command(models: Callable[[str], ModelSpec]) -> None:
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this build has CUDA")
    with pytest.raises(EngineUnavailable, match=r"onnxruntime-gpu"):
        ort_engine.load_vision(models("plain"), LaneOptions(device="cuda"))
    with pytest.raises(EngineUnavailable, match="no device is called"):
        ort_engine.load_vision(models("plain"), LaneOptions(device="gpu7"))
    vision = ort_engine.load_vision(models("plain"), ONE_THREAD)
    assert vision.spec.device == "cpu"
    assert "cpu" in ort_engine.status().devices


def test_a_provider_that_falls_back_is_seen(
    models: Callable[[str], ModelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    native = onnxruntime.InferenceSession
    monkeypatch.setattr(
        onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    monkeypatch.setattr(
        onnxruntime,
        "InferenceSession",
        lambda path, settings, **_: native(path, settings, providers=["CPUExecutionProvider"]),
    )
    with pytest.raises(EngineUnavailable, match="would run on 'cpu'"):
        ort_engine.load_vision(models("plain"), LaneOptions(device="cuda"))
    assert ort_engine.load_vision(models("plain"), ONE_THREAD).spec.device == "cpu"


def test_a_missing_backend_is_unavailable_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    status = ort_engine.status()
    assert not status.is_available
    assert "onnxruntime" in status.reason
    assert status.install == "pip install onnx onnxruntime"


def test_importing_the_engine_loads_no_backend_and_running_it_prints_nothing(
    models: Callable[[str], ModelSpec],
) -> None:
    source = (
        "import sys, pathlib; import edge_vl_onnxruntime as e\n"
        "assert not {'onnxruntime', 'onnx', 'tokenizers'} & set(sys.modules), 'too early'\n"
        "from edge_vl.engine import LaneOptions; from edge_vl.errors import EngineFault\n"
        "from edge_vl.plan import TextChunk; from tests.engines.tiny_models import tiny_spec\n"
        "l = e.engine.load_language(tiny_spec(pathlib.Path(sys.argv[1])), LaneOptions())\n"
        "c = l.new_cache(); l.prefill(c, [TextChunk((1, 2), 0)]); l.decode(c, 3)\n"
    )
    command = [sys.executable, "-c", source, str(models("in-place").path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_importing_the_backend_leaves_nothing_in_the_users_folder(tmp_path: Path) -> None:
    code = "from edge_vl_onnxruntime.session import import_onnxruntime; import_onnxruntime()"
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert not list(tmp_path.rglob("*"))


@pytest.mark.parametrize(
    "setting",
    [
        {"image_mean": 5},
        {"image_mean": None},
        {"image_mean": ["a", "b", "c"]},
        {"image_std": [0.5, 0.5]},
        {"image_std": [0.5, 0.5, 0]},
        {"image_std": [0.5, 0.5, float("nan")]},
        {"rescale_factor": "x"},
        {"rescale_factor": float("inf")},
        {"rescale_factor": 10**400},
        {"do_rescale": "no"},
        {"max_image_size": 5},
    ],
)
def test_pixel_settings_that_make_no_sense_are_named(
    models: Callable[[str], ModelSpec], setting: Mapping[str, Any]
) -> None:
    spec = replace(models("plain"), preprocessor=setting)
    with pytest.raises(ModelError, match=f"preprocessor_config.json: {next(iter(setting))}"):
        ort_engine.load_vision(spec, ONE_THREAD)


def test_tiles_of_another_size_than_the_graph_takes_are_refused_at_load(models: Callable[[str], ModelSpec]) -> None:
    settings = {"max_image_size": {"longest_edge": TILE}}
    ort_engine.load_vision(replace(models("plain"), preprocessor=settings), ONE_THREAD).close()
    settings = {"max_image_size": {"longest_edge": 2 * TILE}}
    with pytest.raises(ModelError, match=f"is {2 * TILE}, and .* takes tiles of {TILE}x{TILE}"):
        ort_engine.load_vision(replace(models("plain"), preprocessor=settings), ONE_THREAD)


@pytest.mark.parametrize("value", [10**13, True, "x", 0, -1, 2**24 + 1, None, 4.5])
def test_a_context_that_makes_no_sense_is_refused(models: Callable[[str], ModelSpec], value: object) -> None:
    spec = models("plain")
    text = {**spec.config["text_config"], "max_position_embeddings": value}
    with pytest.raises(ModelError, match="max_position_embeddings"):
        ort_engine.load_language(replace(spec, config={**spec.config, "text_config": text}), ONE_THREAD)


def test_a_tokenizer_with_more_ids_than_the_decoder_is_refused_at_load(
    copy_model: Callable[[str], ModelSpec],
) -> None:
    spec = copy_model("plain")
    tokenizer = Tokenizer.from_file(str(spec.tokenizer_file))
    tokenizer.add_special_tokens([f"<extra_{index}>" for index in range(VOCAB)])
    tokenizer.save(str(spec.tokenizer_file))
    with pytest.raises(ModelError, match=f"a vocabulary of {VOCAB}: they are not of one model") as caught:
        ort_engine.load_language(spec, ONE_THREAD)
    assert caught.value.file == str(spec.tokenizer_file)


def test_a_tokenizer_with_more_ids_than_embeddings_is_refused_at_load(copy_model: Callable[[str], ModelSpec]) -> None:
    spec = copy_model("plain")
    path = spec.path / "onnx" / "embed_tokens.onnx"
    graph = onnx.load(path)
    [weight] = graph.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight)[:200], weight.name))
    onnx.save(graph, path)
    with pytest.raises(ModelError, match=r"embed_tokens\.onnx cannot look up"):
        ort_engine.load_language(spec, ONE_THREAD)


def test_a_kv_cache_in_another_precision_is_refused_and_not_ignored(models: Callable[[str], ModelSpec]) -> None:
    with pytest.raises(RequestError, match="kv is 'int8'"):
        ort_engine.load_language(models("plain"), LaneOptions(threads=1, kv=parse_kv_policy("int8")))
