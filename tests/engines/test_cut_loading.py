"""Loading a decoder in pieces: the proof, what is kept of it, and why a graph runs whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import pytest
from onnxruntime.quantization import quantize_dynamic
from onnxruntime.transformers.float16 import convert_float_to_float16

from edge_vl.engine import LaneOptions
from edge_vl.errors import EngineUnavailable, ModelError, RequestError
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.model_spec import ModelSpec
from edge_vl.models import find_model
from edge_vl.plan import TextChunk
from edge_vl_kernels import ISAS, available_isas
from edge_vl_onnxruntime import OnnxRuntimeEngine, cut_assembly, cut_geometry, cut_loading, key_error
from edge_vl_onnxruntime.cut_proof import prove
from edge_vl_onnxruntime.cut_sessions import open_sessions
from edge_vl_onnxruntime.graph_cut import CannotCut, CutGraph, CutRope, cut_graph
from edge_vl_onnxruntime.language import OnnxLanguageModel
from tests.engines.cut_models import load, load_in_pieces, noise, write_cut_model

AUTO = LaneOptions(threads=1)
CUT = LaneOptions(threads=1, attention="cut")
WHOLE = LaneOptions(threads=1, attention="whole")


@pytest.fixture
def grouped(tmp_path: Path) -> ModelSpec:
    return write_cut_model(tmp_path / "model")


def forbid(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let loading fail where it uses a function."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError(f"{name} is not needed again")

    monkeypatch.setattr(cut_loading, name, refuse)


def graphs(path: Path) -> int:
    """Return how many entries are kept in a cache folder."""
    return len(list((path / "onnxruntime").glob("cut-*.npz")))


def test_a_proven_cut_is_opened_without_the_whole_graph(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = load_in_pieces(grouped, AUTO, tmp_path)
    assert first.spec.notes == (f"attention: own, 3 layers, f32 KV, {first.kernels.isa}",)
    for name in ("open_session", "cut_evenly", "prove"):
        forbid(monkeypatch, name)
    second = load_in_pieces(grouped, AUTO, tmp_path)
    assert second.spec == first.spec
    run = noise(np.random.default_rng(0), 90, first.spec.hidden_size)
    one, other = (language.prefill(language.new_cache(), run) for language in (first, second))
    assert one is not None
    assert other is not None
    np.testing.assert_array_equal(one, other)
    first.close()
    second.close()


def test_a_graph_that_cannot_be_cut_runs_whole_and_is_not_tried_again(
    models: Callable[[str], ModelSpec], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models("plain")
    for _ in range(2):
        language = load(model, AUTO, tmp_path)
        assert isinstance(language, OnnxLanguageModel)
        (note,) = language.spec.notes
        assert note == "attention: the graph's own, because its heads have 16 channels, not a multiple of 32 up to 256"
        language.close()
        forbid(monkeypatch, "cut_evenly")


@pytest.mark.parametrize(
    ("options", "field"),
    [(CUT, "attention"), (replace(AUTO, kv=parse_kv_policy("int8")), "kv")],
)
def test_what_only_pieces_can_do_is_refused_where_the_graph_runs_whole(
    models: Callable[[str], ModelSpec], tmp_path: Path, options: LaneOptions, field: str
) -> None:
    with pytest.raises(RequestError, match="16 channels") as caught:
        load(models("plain"), options, tmp_path)
    assert caught.value.field == field


def test_what_a_profile_prefers_and_only_pieces_can_do_is_passed_over_with_a_note(
    models: Callable[[str], ModelSpec], tmp_path: Path
) -> None:
    language = load(models("plain"), replace(AUTO, kv=parse_kv_policy("int8"), is_kv_wish=True), tmp_path)
    assert language.spec.kv == ""
    assert any("and not in the profile's int8" in note for note in language.spec.notes)
    language.close()


def test_the_whole_graph_runs_where_that_is_asked_for(grouped: ModelSpec, tmp_path: Path) -> None:
    language = load(grouped, WHOLE, tmp_path)
    assert isinstance(language, OnnxLanguageModel)
    assert language.spec.notes == ("attention: the graph's own, because that was asked for",)
    assert graphs(tmp_path) == 0
    language.close()


def test_without_compiled_kernels_the_graph_runs_whole_unless_its_cache_is_compressed(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EDGE_VL_ISA", "reference")
    language = load(grouped, AUTO, tmp_path)
    assert isinstance(language, OnnxLanguageModel)
    assert "no compiled kernels" in language.spec.notes[0]
    language.close()
    plain = load(grouped, replace(AUTO, kv=parse_kv_policy("f32")), tmp_path)  # what the graph does anyway
    assert isinstance(plain, OnnxLanguageModel)
    assert (plain.spec.kv, len(plain.spec.notes)) == ("f32", 1)
    plain.close()
    compressed = load_in_pieces(grouped, replace(AUTO, kv=parse_kv_policy("int8")), tmp_path)
    assert compressed.spec.notes == ("attention: own, 3 layers, int8 KV, reference",)
    assert "slow" in compressed.spec.warnings[0]
    compressed.close()


def other_scale(cut: CutGraph) -> CutGraph:
    return replace(cut, attentions=tuple(replace(entry, scale=1.5 * entry.scale) for entry in cut.attentions))


def values_for_keys(cut: CutGraph) -> CutGraph:
    first = cut.attentions[0]
    return replace(cut, attentions=(replace(first, key=first.value), *cut.attentions[1:]))


def late_turns(cut: CutGraph) -> CutGraph:
    """Turn wrongly from position 500 on."""
    rope = cut.attentions[0].rope
    assert rope is not None
    cosines = rope.cosines.copy()
    cosines[500:] = cosines[0]
    wrong = CutRope(cosines, rope.sines, rope.is_interleaved)
    return replace(cut, attentions=tuple(replace(entry, rope=wrong) for entry in cut.attentions))


@pytest.mark.parametrize("spoil", [other_scale, values_for_keys, late_turns])
def test_a_cut_that_computes_something_else_is_found_out_and_the_graph_runs_whole(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[CutGraph], CutGraph]
) -> None:
    monkeypatch.setattr(cut_geometry, "cut_graph", lambda *arguments: spoil(cut_graph(*arguments)))
    language = load(grouped, AUTO, tmp_path)
    assert isinstance(language, OnnxLanguageModel)
    assert "it computes something else: logits differ by" in language.spec.notes[0]
    language.close()
    forbid(monkeypatch, "cut_evenly")
    again = load(grouped, AUTO, tmp_path)
    assert again.spec.notes == language.spec.notes
    again.close()


def test_layers_that_attend_in_different_ways_run_whole(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(*arguments: Any) -> CutGraph:
        cut = cut_graph(*arguments)
        return replace(cut, attentions=(*cut.attentions[:2], replace(cut.attentions[2], rope=None)))

    monkeypatch.setattr(cut_geometry, "cut_graph", spoil)
    language = load(grouped, AUTO, tmp_path)
    assert language.spec.notes[0].endswith("because layers 0 and 2 turn queries and keys in other ways")
    language.close()


def test_tables_shorter_than_the_context_run_whole(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoil(*arguments: Any) -> CutGraph:
        cut = cut_graph(*arguments)
        rope = cut.attentions[0].rope
        assert rope is not None
        short = CutRope(rope.cosines[:200], rope.sines[:200], rope.is_interleaved)
        return replace(cut, attentions=tuple(replace(entry, rope=short) for entry in cut.attentions))

    monkeypatch.setattr(cut_geometry, "cut_graph", spoil)
    language = load(grouped, AUTO, tmp_path)
    assert "it turns 200 positions and has a context of 1024" in language.spec.notes[0]
    language.close()
    short = load_in_pieces(grouped, replace(AUTO, context_length=200), tmp_path)
    assert np.isfinite(short.decode(short.new_cache(), 1)).all()
    short.close()


def test_whatever_goes_wrong_in_the_cutter_the_graph_still_runs(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> CutGraph:
        raise KeyError("a node without a name")

    monkeypatch.setattr(cut_geometry, "cut_graph", fail)
    language = load(grouped, AUTO, tmp_path)
    assert "because it cannot be read: 'a node without a name'" in language.spec.notes[0]
    language.close()
    assert graphs(tmp_path) == 0


def test_a_package_that_is_missing_is_looked_for_again(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> CutGraph:
        raise CannotCut("the package onnx is missing") from ImportError("onnx")

    with monkeypatch.context() as patch:
        patch.setattr(cut_geometry, "cut_graph", fail)
        language = load(grouped, AUTO, tmp_path)
        assert "the package onnx is missing" in language.spec.notes[0]
        language.close()
    load_in_pieces(grouped, AUTO, tmp_path).close()


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive", None])
def test_an_entry_that_is_damaged_is_made_again(grouped: ModelSpec, tmp_path: Path, damage: bytes | None) -> None:
    load_in_pieces(grouped, AUTO, tmp_path).close()
    (entry,) = (tmp_path / "onnxruntime").glob("cut-*.npz")
    content = entry.read_bytes()
    entry.write_bytes(content[: len(content) // 2] if damage is None else damage)
    load_in_pieces(grouped, AUTO, tmp_path).close()
    assert len(content) in [path.stat().st_size for path in entry.parent.glob("cut-*.npz")]


def test_pieces_that_do_not_open_any_more_are_made_again(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_in_pieces(grouped, AUTO, tmp_path).close()
    calls: list[Any] = []

    def fail_once(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            raise CannotCut("a piece of it cannot be loaded")
        return open_sessions(*arguments, **options)

    monkeypatch.setattr(cut_assembly, "open_sessions", fail_once)
    load_in_pieces(grouped, AUTO, tmp_path).close()
    assert len(calls) == 2


@pytest.mark.parametrize("error", [KeyError("a name"), ValueError("a shape"), TypeError("a type"), IndexError("none")])
def test_whatever_goes_wrong_with_a_known_cut_it_is_forgotten_and_proven_again(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    load_in_pieces(grouped, AUTO, tmp_path).close()
    (entry,) = (tmp_path / "onnxruntime").glob("cut-*.npz")
    first = entry.read_bytes()
    was_there: list[bool] = []

    def fail_once(model: Any) -> Any:
        was_there.append(entry.exists())
        raise error

    monkeypatch.setattr(cut_assembly, "try_out", fail_once)
    load_in_pieces(grouped, AUTO, tmp_path).close()  # the proof tries it out in its own way
    assert was_there == [True]
    assert entry.read_bytes() == first


def save_with_weights_beside(path: Path) -> Path:
    """Move the weights of a graph into a file beside it, and return that."""
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.bin", size_threshold=1024)
    return path.with_name("weights.bin")


@pytest.mark.parametrize("damage", ["cut short", "missing", "damaged graph"])
@pytest.mark.parametrize("asked", [{"kv": parse_kv_policy("int8")}, {"attention": "cut"}, {}])
def test_a_damaged_decoder_is_called_damaged_whatever_is_asked_for(
    grouped: ModelSpec, tmp_path: Path, damage: str, asked: dict[str, Any]
) -> None:
    path = grouped.path / "onnx" / "decoder_model_merged.onnx"
    weights = save_with_weights_beside(path)
    kept = weights.read_bytes()
    if damage == "cut short":
        weights.write_bytes(kept[:5000])
    elif damage == "missing":
        weights.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ModelError) as caught:
        load(grouped, replace(AUTO, **asked), tmp_path)
    assert caught.value.file == str(path)
    if damage != "damaged graph":
        weights.write_bytes(kept)
        load_in_pieces(grouped, replace(AUTO, **asked), tmp_path).close()


def test_other_weights_beside_the_same_graph_are_proven_again(grouped: ModelSpec, tmp_path: Path) -> None:
    weights = save_with_weights_beside(grouped.path / "onnx" / "decoder_model_merged.onnx")
    load_in_pieces(grouped, AUTO, tmp_path).close()
    content = bytearray(weights.read_bytes())
    content[:4] = np.float32(0.01).tobytes()
    weights.write_bytes(content)
    load_in_pieces(grouped, AUTO, tmp_path).close()
    assert graphs(tmp_path) == 2


@pytest.mark.parametrize("name", ["logits", "past_key_values.0.key"])
def test_a_name_that_is_not_utf8_is_a_damaged_file(grouped: ModelSpec, tmp_path: Path, name: str) -> None:
    path = grouped.path / "onnx" / "decoder_model_merged.onnx"
    path.write_bytes(path.read_bytes().replace(name.encode(), b"\xff" + name.encode()[1:]))
    with pytest.raises(ModelError, match=r"names that are not UTF-8; download it again") as caught:
        load(grouped, AUTO, tmp_path)
    assert caught.value.file == str(path)


def test_another_graph_under_the_same_name_is_proven_again(grouped: ModelSpec, tmp_path: Path) -> None:
    load_in_pieces(grouped, AUTO, tmp_path).close()
    path = grouped.path / "onnx" / "decoder_model_merged.onnx"
    model = onnx.load(path)
    model.producer_name = "another"
    onnx.save(model, path)
    load_in_pieces(grouped, AUTO, tmp_path).close()
    assert graphs(tmp_path) == 2


def test_a_folder_that_cannot_be_written_costs_only_time(grouped: ModelSpec, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    load_in_pieces(grouped, AUTO, tmp_path / "file").close()  # a file where the folder should be


def test_a_short_context_is_proven_as_a_long_one_is(grouped: ModelSpec, tmp_path: Path) -> None:
    for context_length in (1, 2, 90):
        options = replace(AUTO, context_length=context_length)
        language = load_in_pieces(grouped, options, tmp_path / str(context_length))
        assert language.spec.context_length == context_length
        assert np.isfinite(language.decode(language.new_cache(), 1)).all()
        language.close()


def test_a_model_with_a_small_limit_is_proven_with_what_fits(grouped: ModelSpec, tmp_path: Path) -> None:
    for limit in (1, 2, 80):
        config = {"text_config": {**grouped.config["text_config"], "max_position_embeddings": limit}}
        language = load_in_pieces(replace(grouped, config=config), AUTO, tmp_path)
        assert np.isfinite(language.decode(language.new_cache(), 1)).all()
        language.close()


def test_a_half_precision_graph_keeps_half_precision_and_says_nearly_the_same(
    copy_bundled: ModelSpec, tmp_path: Path
) -> None:
    exact = load_in_pieces(copy_bundled, AUTO, tmp_path)
    for name in ("decoder_model_merged", "embed_tokens"):
        path = copy_bundled.path / "onnx" / f"{name}.onnx"
        onnx.save(convert_float_to_float16(onnx.load(path)), path.with_name(f"{name}_fp16.onnx"))
    half = load_in_pieces(copy_bundled, replace(AUTO, dtype="fp16"), tmp_path)
    assert half.spec.notes == (f"attention: own, 4 layers, f16 KV, {half.kernels.isa}",)
    run = noise(np.random.default_rng(0), 150, exact.spec.hidden_size)
    one, other = (language.prefill(language.new_cache(), run) for language in (exact, half))
    assert one is not None
    assert other is not None
    assert 0 < np.linalg.norm(one - other) / np.linalg.norm(one) < 0.02
    exact.close()
    half.close()


def test_rows_that_share_a_scale_are_not_mixed_with_those_of_other_sequences(
    copy_bundled: ModelSpec, tmp_path: Path
) -> None:
    path = copy_bundled.path / "onnx" / "decoder_model_merged.onnx"
    quantize_dynamic(path, path.with_name(f"{path.stem}_int8.onnx"))
    language = load_in_pieces(copy_bundled, replace(AUTO, dtype="int8"), tmp_path)
    random, hidden = np.random.default_rng(0), language.spec.hidden_size
    runs = [noise(random, size, hidden) for size in (40, 1, 90)]
    alone = [language.prefill(language.new_cache(), run) for run in runs]
    together = language.forward([(language.new_cache(), run, True) for run in runs])
    for one, other in zip(together, alone, strict=True):
        assert one is not None
        assert other is not None
        np.testing.assert_array_equal(one, other)
    whole = load(copy_bundled, replace(WHOLE, dtype="int8"), tmp_path)
    found, expected = together[2], whole.prefill(whole.new_cache(), runs[2])
    assert found is not None
    assert expected is not None
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)
    language.close()
    whole.close()


def test_layers_whose_keys_suffer_in_int4_are_guarded_as_measured_once(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    int4 = replace(AUTO, kv=parse_kv_policy("int4"))
    monkeypatch.setattr(key_error, "key_errors", lambda *_: ((9.0, 0.1, 9.0), (0.1, 0.01, 0.1)))
    for context_length in (None, 64):  # what is measured does not depend on it
        language = load_in_pieces(grouped, replace(int4, context_length=context_length), tmp_path)
        (page,) = language.kernels.cache_format.pages
        assert [layer.keys for layer in page.layers] == ["int8", "int4", "int8"]
        (note,) = language.spec.notes[1:]
        assert note.startswith("KV cache: layers 0, 2 in int8")
        language.close()
        monkeypatch.setattr(key_error, "key_errors", None)  # it is not called again


def test_layers_whose_keys_do_not_suffer_are_kept_as_asked_for(grouped: ModelSpec, tmp_path: Path) -> None:
    for kv, expected in (
        ("int4", ["int4", "int4", "int4"]),
        ("text=int4,first_layers=none,last_layers=f16", ["int4", "int4", "f16"]),
    ):
        language = load_in_pieces(grouped, replace(AUTO, kv=parse_kv_policy(kv)), tmp_path)
        (page,) = language.kernels.cache_format.pages
        assert [layer.keys for layer in page.layers] == expected
        assert len(language.spec.notes) == 1
        assert language.kernels.cache_format.num_sinks == 4
        language.close()


@pytest.mark.parametrize("kv", ["auto", "f16", "int8", "k8v4", "text=int8,first_layers=none,last_layers=f32"])
def test_the_kv_cache_is_planned_as_a_full_cache_holds_it(grouped: ModelSpec, tmp_path: Path, kv: str) -> None:
    options = replace(AUTO, context_length=300, kv=parse_kv_policy(kv))
    engine = OnnxRuntimeEngine(tmp_path)
    before = engine.plan_memory(grouped, "language", options)
    language = load_in_pieces(grouped, options, tmp_path)
    cache = language.new_cache()
    language.prefill(cache, [TextChunk((5,) * 300, 0)], want_logits=False)
    after = engine.plan_memory(grouped, "language", options)
    assert before is not None
    assert before == after
    assert before.kv_bytes == cache.nbytes
    language.close()


def test_guarded_layers_are_planned_for_all_until_they_are_measured(grouped: ModelSpec, tmp_path: Path) -> None:
    options = replace(AUTO, context_length=900, kv=parse_kv_policy("int4"))
    engine = OnnxRuntimeEngine(tmp_path)
    before = engine.plan_memory(grouped, "language", options)
    language = load_in_pieces(grouped, options, tmp_path)
    cache = language.new_cache()
    language.prefill(cache, [TextChunk((5,) * 900, 0)], want_logits=False)
    after = engine.plan_memory(grouped, "language", options)
    assert before is not None
    assert after is not None
    assert before.kv_bytes > after.kv_bytes == cache.nbytes
    language.close()


def test_kernels_that_are_not_there_are_an_engine_that_is_not_available(
    grouped: ModelSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (missing, *_) = set(ISAS) - {"auto", *available_isas()}
    monkeypatch.setenv("EDGE_VL_ISA", missing)
    with pytest.raises(EngineUnavailable, match=missing):
        load(grouped, AUTO, tmp_path)
    with pytest.raises(EngineUnavailable, match=missing):
        OnnxRuntimeEngine(tmp_path).plan_memory(grouped, "language", AUTO)


def test_a_graph_that_runs_whole_is_planned_so(grouped: ModelSpec, tmp_path: Path) -> None:
    engine = OnnxRuntimeEngine(tmp_path)
    plans = [engine.plan_memory(grouped, "language", options) for options in (AUTO, WHOLE)]
    assert None not in plans
    assert plans[0] != plans[1]


def test_what_can_be_asked_for_of_the_cache_is_described(grouped: ModelSpec) -> None:
    facts = OnnxRuntimeEngine().describe(grouped)
    assert facts["kv_precisions"] == ["f32", "f16", "int8", "int4"]
    assert facts["kv_parts"] == ["image", "first_layers", "last_layers"]


def test_opening_and_closing_in_pieces_leaks_nothing(grouped: ModelSpec, tmp_path: Path) -> None:
    process = psutil.Process()

    def cycle(index: int) -> None:
        language = load_in_pieces(grouped, AUTO, tmp_path)
        cache = language.new_cache()
        language.prefill(cache, [TextChunk((3,) * (1 + 3 * index), 0)])
        fork = cache.fork()
        language.decode(fork, 1)
        language.close()

    for index in range(10):
        cycle(index)
    files, threads, memory = process.num_fds(), process.num_threads(), process.memory_info().rss
    for index in range(40):
        cycle(index)
    assert (process.num_fds(), process.num_threads()) == (files, threads)
    assert process.memory_info().rss - memory < 16 * 2**20


def test_two_threads_give_what_one_gives(grouped: ModelSpec, tmp_path: Path) -> None:
    run = noise(np.random.default_rng(0), 150, 128)
    found = []
    for threads in (1, 2):
        language = load_in_pieces(grouped, replace(AUTO, threads=threads), tmp_path)
        cache = language.new_cache()
        language.prefill(cache, run)
        found.append(language.decode(cache, 3))
        language.close()
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


def test_the_bundled_model_is_proven_to_much_less_than_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def note(*arguments: Any) -> float:
        found.append(prove(*arguments))
        return found[-1]

    monkeypatch.setattr(cut_loading, "prove", note)
    load_in_pieces(find_model("bundled"), AUTO, tmp_path).close()
    assert 0 < found[0] < 1e-5
