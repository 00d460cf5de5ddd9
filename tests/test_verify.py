"""Verification: what is held against what, what counts as the same, and what it finds on real models."""

from __future__ import annotations

import dataclasses
import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

from benchmarks.biased_model import make_biased_model
from edge_vl.agreement import LogitsAgreement, TensorError
from edge_vl.errors import Cancelled, EngineFault, ImageError, RequestError
from edge_vl.kv_error import KVErrors, LayerKVError
from edge_vl.models import find_model
from edge_vl.testing import FakeEngine, FakeFault, FakeLatencies
from edge_vl.verify import verify
from edge_vl.verify_report import Side, Verification, draw_layers

ENGINES: dict[str, Any] = {"vision_engine": "onnxruntime", "language_engine": "onnxruntime", "threads": 1}
SIDE = Side("onnxruntime fp32", "onnxruntime fp32", "f32", 100, 1000)
LAYER = LayerKVError(TensorError(0.1), TensorError(0.2), 0.3)


def report(**changes: Any) -> Verification:
    """Return a report in which everything agrees, but for the changes."""
    found = Verification(
        model="bundled",
        profile="generic-cpu",
        reference=SIDE,
        candidate=dataclasses.replace(SIDE, kv="int8", kv_bytes=300),
        is_kv_compressed=True,
        num_prompts=2,
        prompt_tokens=(520, 600),
        compressed_share=0.9,
        num_answers=8,
        num_same=8,
        logits=LogitsAgreement(100, 1.0, 0.0, 0.0, 0.01),
        embeds=None,
        layers=KVErrors(520, 512, (LAYER,)),
    )
    return dataclasses.replace(found, **changes)


def agreeing(share: float) -> LogitsAgreement:
    return LogitsAgreement(1000, share, 0.1, 1.0, 0.1)


def weaken(source: Path, target: Path, amount: float) -> None:
    """Write a decoder whose projections are off by noise."""
    model = onnx.load(source)
    random = np.random.default_rng(0)
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        if values.ndim == 2 and "proj" in tensor.name:
            noise = random.standard_normal(values.shape) * amount * values.std()
            tensor.CopyFrom(numpy_helper.from_array((values + noise).astype(np.float32), tensor.name))
    onnx.save(model, target)


@pytest.fixture(scope="module")
def weak_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the bundled model whose 4-bit decoder, as its name says, is not worth much."""
    folder = tmp_path_factory.mktemp("weak") / "model"
    shutil.copytree(find_model("bundled").path, folder)
    weaken(folder / "onnx" / "decoder_model_merged.onnx", folder / "onnx" / "decoder_model_merged_q4.onnx", 0.8)
    return folder


@pytest.mark.parametrize(
    ("num_same", "tokens", "verdict"),
    [
        (40, 1.0, "yes"),
        (40, 0.995, "yes"),
        (40, 0.994, "nearly"),
        (39, 1.0, "nearly"),
        (38, 0.97, "nearly"),
        (37, 1.0, "no"),
        (40, 0.969, "no"),
        (0, 0.0, "no"),
    ],
)
def test_the_verdict_follows_from_answers_and_next_tokens(num_same: int, tokens: float, verdict: str) -> None:
    found = report(num_same=num_same, num_answers=40, logits=agreeing(tokens))
    assert found.verdict == verdict
    assert found.sentence.startswith(f"same answers: {verdict} ")
    assert f"{num_same} of 40" in found.sentence


def test_a_cache_of_which_nothing_was_compressed_proves_nothing() -> None:
    found = report(compressed_share=0.0)
    assert found.verdict == "not tried"
    assert "not tried" in found.sentence
    assert report(compressed_share=0.0, is_kv_compressed=False).verdict == "yes"
    assert report(compressed_share=None, layers=None).verdict == "yes", "an engine that compresses every entry"


def test_a_report_is_ready_for_json() -> None:
    facts = json.loads(json.dumps(report().to_dict(), allow_nan=False))
    assert facts["verdict"] == "yes"
    (layer,) = facts["layers"]["layers"]
    assert layer["logit_error"] == 0.3
    assert layer["loss"]["0.5"] == pytest.approx(0.1**2 + 0.5 * 0.2**2)
    assert json.loads(json.dumps(report(layers=None).to_dict()))["layers"] is None


def test_the_heat_map_is_a_picture_with_a_row_for_each_layer(tmp_path: Path) -> None:
    draw_layers(report(), tmp_path / "one.png")
    draw_layers(report(layers=KVErrors(520, 512, (LAYER,) * 5)), tmp_path / "five.png")
    with Image.open(tmp_path / "one.png") as one, Image.open(tmp_path / "five.png") as five:
        assert one.format == "PNG"
        assert one.size[0] == five.size[0]
        assert one.size[1] < five.size[1]
    with pytest.raises(ValueError, match="no layers"):
        draw_layers(report(layers=None), tmp_path / "none.png")


def test_nothing_to_compare_is_refused() -> None:
    cases: tuple[dict[str, Any], ...] = ({}, {"kv": "f32"}, {"language_dtype": "fp32"})
    for settings in cases:
        with pytest.raises(RequestError, match="nothing to compare"):
            verify("bundled", **ENGINES, **settings)


def test_pictures_for_a_model_that_cannot_see_are_refused(tmp_path: Path) -> None:
    source = find_model("bundled").path / "gguf" / "edge-vl-bundled-text-f16.gguf"
    folder = tmp_path / "text"
    folder.mkdir()
    shutil.copy(source, folder / source.name)
    with pytest.raises(RequestError, match="reads text only"):
        verify(folder, kv="int8", pictures=["door.jpg"])


def test_one_picture_may_be_given_as_it_is() -> None:
    picture = Path(__file__).parent.parent / "examples" / "pictures" / "four.png"
    one, several = (
        verify("bundled", kv="int8", pictures=shown, num_prompts=1, **ENGINES) for shown in (picture, [picture])
    )
    assert one.num_answers == several.num_answers > 0
    with pytest.raises(ImageError, match="missing"):
        verify("bundled", kv="int8", pictures="missing.jpg", num_prompts=1, **ENGINES)


def test_a_compressed_cache_is_held_against_float32_over_the_same_weights() -> None:
    seen: list[tuple[str, float]] = []

    found = verify("bundled", kv="int8", num_prompts=2, **ENGINES, on_progress=lambda *entry: seen.append(entry))

    assert (found.reference.kv, found.candidate.kv) == ("f32", "int8")
    assert found.reference.language == found.candidate.language == "onnxruntime fp32"
    assert found.reference.vision == found.candidate.vision
    assert found.embeds is None
    assert found.num_answers == 8
    assert found.prompt_tokens[0] >= 512
    assert found.compressed_share is not None
    assert found.compressed_share >= 0.8
    assert found.candidate.kv_bytes < 0.4 * found.reference.kv_bytes
    assert found.verdict == "yes"
    assert 0 < found.logits.kl_mean < 1e-3
    assert found.layers is not None
    assert all(0 < layer.logit_error < 0.1 and layer.keys.coverage == 1 for layer in found.layers.layers)
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert {"pictures", "reference", "comparing", "layers"} == {what for what, _ in seen}


def test_an_int8_encoder_is_held_against_the_original_one() -> None:
    found = verify("bundled", vision_dtype="int8", num_prompts=1, **ENGINES)

    assert (found.reference.vision, found.candidate.vision) == ("onnxruntime fp32", "onnxruntime int8")
    assert found.embeds is not None
    assert 0.005 < found.embeds.error_mean <= found.embeds.error_max < 0.2
    assert found.embeds.num_units >= 5
    assert (found.is_kv_compressed, found.layers, found.compressed_share) == (False, None, None)
    assert found.verdict in ("yes", "nearly")
    assert found.candidate.weights_bytes is not None
    assert found.reference.weights_bytes is not None
    assert found.candidate.weights_bytes < found.reference.weights_bytes


def test_a_decoder_that_says_other_things_is_found_out(weak_folder: Path) -> None:
    found = verify(weak_folder, language_dtype="q4", num_prompts=1, **ENGINES)

    assert (found.reference.language, found.candidate.language) == ("onnxruntime fp32", "onnxruntime q4")
    assert found.verdict == "no"
    assert found.num_same < found.num_answers
    assert found.different
    assert all(one.reference != one.candidate for one in found.different)
    assert found.logits.kl_mean > 0.1


def test_everything_that_is_asked_for_is_held_against_the_most_faithful(weak_folder: Path) -> None:
    found = verify(weak_folder, language_dtype="q4", kv="int8", num_prompts=1, **ENGINES)
    assert (found.reference.language, found.reference.kv) == ("onnxruntime fp32", "f32")
    assert (found.candidate.language, found.candidate.kv) == ("onnxruntime q4", "int8")


def test_what_only_the_profile_says_is_the_same_on_both_sides_unless_nothing_is_asked(
    weak_folder: Path, tmp_path: Path
) -> None:
    profile = tmp_path / "camera.toml"
    profile.write_text(
        """schema = 1
id = "camera"
name = "A camera"
[[match]]
[[vision.engines]]
name = "onnxruntime"
[[language.engines]]
name = "onnxruntime"
dtypes = ["q4"]
[kv]
text = "int8"
"""
    )
    settings: dict[str, Any] = {"profile": profile, "threads": 1, "num_prompts": 1}

    only_kv = verify(weak_folder, kv="f16", **settings)
    everything = verify(weak_folder, **settings)

    assert only_kv.reference.language == only_kv.candidate.language == "onnxruntime q4"
    assert (only_kv.reference.kv, only_kv.candidate.kv) == ("f32", "f16")
    assert only_kv.verdict == "yes"
    assert (everything.reference.language, everything.reference.kv) == ("onnxruntime fp32", "f32")
    assert (everything.candidate.language, everything.candidate.kv) == ("onnxruntime q4", "int8")
    assert everything.verdict == "no"


def test_layers_that_4_bits_would_harm_stand_out(tmp_path: Path) -> None:
    make_biased_model(tmp_path)

    found = verify(tmp_path, kv="text=int4,first_layers=none,last_layers=none", num_prompts=1, **ENGINES)

    assert found.layers is not None
    first, second, third, last = (layer.logit_error for layer in found.layers.layers)
    assert min(first, last) > 0.9 > 0.6 > max(second, third)


def test_an_engine_that_does_not_show_its_cache_is_compared_all_the_same() -> None:
    settings = {**ENGINES, "language_engine": "llama_cpp"}

    found = verify("bundled", kv="int8", num_prompts=1, **settings)

    assert (found.reference.kv, found.candidate.kv) == ("f32", "int8")
    assert (found.layers, found.compressed_share) == (None, None)
    assert found.candidate.kv_bytes < 0.3 * found.reference.kv_bytes
    assert found.verdict in ("yes", "nearly")


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_work_at_the_next_token_and_closes_everything(model_folder: Path) -> None:
    engine = FakeEngine(latencies=FakeLatencies(decode_s=0.005))

    def interrupt(what: str, share: float) -> None:
        ident = threading.main_thread().ident
        assert ident is not None
        if what == "reference":
            signal.pthread_kill(ident, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        verify(
            model_folder,
            vision_engine=engine,
            language_engine=engine,
            language_dtype="q4",
            num_prompts=100,
            on_progress=interrupt,
        )
    assert engine.num_open == 0
    assert sum(call.stage == "decode" for call in engine.calls) < 3 * 4 * 32, "three prompts at most, not a hundred"


def test_a_fault_of_an_engine_closes_everything(model_folder: Path) -> None:
    engine = FakeEngine(faults=[FakeFault("decode", at=40)])
    with pytest.raises(EngineFault):
        verify(model_folder, vision_engine=engine, language_engine=engine, language_dtype="q4")
    assert engine.num_open == 0


def test_whoever_gives_up_waiting_leaves_no_threads_behind() -> None:
    before = threading.active_count()

    def give_up(what: str, share: float) -> None:
        raise Cancelled(stage=what)

    with pytest.raises(Cancelled):
        verify("bundled", kv="int8", num_prompts=1, **ENGINES, on_progress=give_up)
    assert threading.active_count() <= before
