"""The memory plan of the ONNX Runtime engine, against files and caches, and the reading of ONNX headers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnxruntime.transformers.float16 import convert_float_to_float16

import edge_vl
from edge_vl.engine import LaneMemory, LaneOptions
from edge_vl.errors import ModelError
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.plan import TextChunk
from edge_vl_onnxruntime import OnnxRuntimeEngine
from edge_vl_onnxruntime.language import OnnxLanguageModel
from edge_vl_onnxruntime.onnx_file import FLOAT, graph_with_references, read_onnx_header
from edge_vl_onnxruntime.session import open_session

ONNX = Path(edge_vl.__file__).parent / "bundled_model" / "onnx"
VISION, EMBED, DECODER = (ONNX / f"{name}.onnx" for name in ("vision_encoder", "embed_tokens", "decoder_model_merged"))
ENGINE = OnnxRuntimeEngine()
ONE_THREAD = LaneOptions(threads=1)


def planned(model: ModelSpec, lane: str, options: LaneOptions, engine: OnnxRuntimeEngine = ENGINE) -> LaneMemory:
    memory = engine.plan_memory(model, "vision" if lane == "vision" else "language", options)
    assert memory is not None
    return memory


def test_weights_are_the_files() -> None:
    model = find_model("bundled")
    assert planned(model, "vision", ONE_THREAD).weights_bytes == VISION.stat().st_size
    assert planned(model, "language", ONE_THREAD).weights_bytes == DECODER.stat().st_size + EMBED.stat().st_size


@pytest.mark.parametrize(("kind", "is_shared"), [("plain", False), ("in-place", True)])
def test_the_kv_cache_is_what_a_full_cache_holds(
    models: Callable[[str], ModelSpec], kind: str, is_shared: bool
) -> None:
    options = LaneOptions(threads=1, context_length=200)
    model = models(kind)
    language = ENGINE.load_language(model, options)
    assert isinstance(language, OnnxLanguageModel)
    assert language.is_cache_shared is is_shared
    cache = language.new_cache()
    language.prefill(cache, [TextChunk((5,) * 200, 0)], want_logits=False)
    assert planned(model, "language", options).kv_bytes == cache.nbytes
    language.close()


def test_a_cache_that_grows_is_there_twice_for_a_moment(models: Callable[[str], ModelSpec]) -> None:
    grows, stays = (planned(models(kind), "language", ONE_THREAD) for kind in ("plain", "in-place"))
    assert grows.kv_bytes == stays.kv_bytes
    assert grows.activation_bytes > stays.activation_bytes + grows.kv_bytes // 4


def test_half_precision_is_widened_on_the_cpu(copy_model: Callable[[str], ModelSpec]) -> None:
    model = copy_model("plain")
    path = model.path / "onnx" / "vision_encoder_fp16.onnx"
    onnx.save(convert_float_to_float16(onnx.load(model.path / "onnx" / "vision_encoder.onnx")), path)
    memory = planned(model, "vision", LaneOptions(dtype="fp16"))
    assert memory.dtype == "fp16"
    assert 1.7 * path.stat().st_size < memory.weights_bytes < 2 * path.stat().st_size


def test_making_an_int8_copy_is_counted_until_it_is_made(tmp_path: Path) -> None:
    model, engine = find_model("bundled"), OnnxRuntimeEngine(tmp_path)
    options = LaneOptions(dtype="int8", threads=1)
    before = planned(model, "vision", options, engine)
    encoder = engine.load_vision(model, options)
    after = planned(model, "vision", options, engine)
    assert after.weights_bytes == Path(encoder.spec.file).stat().st_size
    assert after.dtype == before.dtype == "int8"
    assert after.total_bytes < before.total_bytes
    encoder.close()


def test_other_devices_than_the_cpu_are_not_told() -> None:
    assert ENGINE.plan_memory(find_model("bundled"), "vision", LaneOptions(device="cuda")) is None


def test_a_missing_file_is_an_error(copy_model: Callable[[str], ModelSpec]) -> None:
    with pytest.raises(ModelError, match="no vision_encoder in q4"):
        ENGINE.plan_memory(copy_model("plain"), "vision", LaneOptions(dtype="q4"))


@pytest.mark.parametrize("path", [VISION, EMBED, DECODER], ids=lambda path: path.stem)
def test_a_header_says_what_the_onnx_package_reads(path: Path) -> None:
    header, graph = read_onnx_header(path), onnx.load(path).graph
    assert header.nbytes == path.stat().st_size
    weights = {weight.name: (weight.dtype, weight.nbytes) for weight in header.weights}
    assert weights == {weight.name: (weight.data_type, len(weight.raw_data)) for weight in graph.initializer}
    assert list(header.inputs) == [entry.name for entry in graph.input]
    for entry in graph.input:
        tensor = entry.type.tensor_type
        assert header.inputs[entry.name].dtype == tensor.elem_type
        assert header.inputs[entry.name].shape == tuple(dimension.dim_value for dimension in tensor.shape.dim)
    assert header.largest_weight_bytes == max(len(weight.raw_data) for weight in graph.initializer)
    floats = [len(weight.raw_data) for weight in graph.initializer if weight.data_type == FLOAT]
    assert header.weights_bytes(FLOAT) == sum(floats)


def test_external_data_counts_and_is_missed(tmp_path: Path) -> None:
    model = onnx.load(VISION)
    path = tmp_path / "vision_encoder.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    data = tmp_path / "weights.bin"
    header = read_onnx_header(path)
    assert header.nbytes == path.stat().st_size + data.stat().st_size
    assert header.largest_weight_bytes == read_onnx_header(VISION).largest_weight_bytes
    data.unlink()
    with pytest.raises(ModelError, match=r"weights\.bin, which is missing"):
        read_onnx_header(path)


@pytest.mark.parametrize("shift", range(4))
def test_weights_that_stay_in_the_file_give_the_same_numbers_wherever_they_lie(tmp_path: Path, shift: int) -> None:
    model = onnx.load(VISION)
    model.producer_name = "x" * (len(model.producer_name) + shift)  # stands before the weights
    path = tmp_path / "vision_encoder.onnx"
    onnx.save(model, path)
    graph = graph_with_references(path)
    assert len(graph) < path.stat().st_size / 10
    referenced = onnx.load_from_string(graph)
    offsets = [
        int(entry.value)
        for weight in referenced.graph.initializer
        for entry in weight.external_data
        if entry.key == "offset"
    ]
    assert len(offsets) > 20
    onnx.load_external_data_for_model(referenced, str(tmp_path))
    for weight, same in zip(model.graph.initializer, referenced.graph.initializer, strict=True):
        assert (weight.name, weight.raw_data) == (same.name, same.raw_data)
    session = open_session(path, ONE_THREAD)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    plain = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    pixels = np.random.default_rng(shift).standard_normal((1, 1, 3, 64, 64)).astype(np.float32)
    feeds = {"pixel_values": pixels, "pixel_attention_mask": np.ones((1, 1, 64, 64), bool)}
    np.testing.assert_array_equal(session.native.run(None, feeds)[0], plain.run(None, feeds)[0])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_a_model_error_or_still_a_header(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(EMBED.read_bytes())
    path = tmp_path / "damaged.onnx"
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, 200))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    for read in (read_onnx_header, graph_with_references):
        with suppress(ModelError):
            read(path)


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_table_that_is_looked_up_stays_in_its_file(tmp_path: Path) -> None:
    table = np.ones((16_384, 1024), np.float32)
    ids, rows = (
        onnx.helper.make_tensor_value_info(name, kind, shape)
        for name, kind, shape in (("ids", onnx.TensorProto.INT64, [1]), ("rows", onnx.TensorProto.FLOAT, [1, 1024]))
    )
    node = onnx.helper.make_node("Gather", ["table", "ids"], ["rows"])
    graph = onnx.helper.make_graph([node], "lookup", [ids], [rows], [onnx.numpy_helper.from_array(table, "table")])
    path = tmp_path / "lookup.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from edge_vl.engine import LaneOptions\n"
        "from edge_vl_onnxruntime.session import import_onnxruntime, open_session\n"
        "def anonymous_kib():\n"
        "    return int(Path('/proc/self/status').read_text().partition('RssAnon:')[2].split()[0])\n"
        "import_onnxruntime()\n"
        "before = anonymous_kib()\n"
        "session = open_session(Path(sys.argv[1]), LaneOptions(threads=1))\n"
        "print(anonymous_kib() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < table.nbytes / 1024 / 4
