"""What is kept of a proven cut: only what was written here comes back, and everything of it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl.engine import LaneOptions
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.model_spec import ModelSpec
from edge_vl_onnxruntime import OnnxRuntimeEngine
from edge_vl_onnxruntime.cut_geometry import cut_evenly
from edge_vl_onnxruntime.cut_store import CutStore
from edge_vl_onnxruntime.proven_cut import ProvenCut, describe_cut, read_cut
from edge_vl_onnxruntime.session import open_session
from tests.engines.cut_models import load_in_pieces, write_cut_model

INT4 = LaneOptions(threads=1, kv=parse_kv_policy("int4"))
KEY_ERRORS = ((0.1, 0.2, 9.0), (0.01, 0.02, 0.03))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    return write_cut_model(tmp_path_factory.mktemp("cut") / "model")


@pytest.fixture(scope="module")
def proven(model: ModelSpec) -> ProvenCut:
    """Return a cut, with errors."""
    path = decoder(model)
    cut = cut_evenly(path, model.config["text_config"])
    return replace(ProvenCut.of(cut, open_session(path, LaneOptions(threads=1))), key_errors=KEY_ERRORS)


@pytest.fixture
def store(model: ModelSpec, tmp_path: Path) -> CutStore:
    return CutStore(tmp_path, decoder(model), {}, "avx2")


def decoder(model: ModelSpec) -> Path:
    return model.path / "onnx" / "decoder_model_merged.onnx"


def entry_of(folder: Path) -> Path:
    (entry,) = (folder / "onnxruntime").glob("cut-*.npz")
    return entry


def read_arrays(entry: Path) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(entry.read_bytes())) as arrays:
        return dict(arrays.items())


def test_a_cut_comes_back_as_it_was(store: CutStore, proven: ProvenCut) -> None:
    store.save(proven)
    found = store.load()
    assert isinstance(found, ProvenCut)
    assert found.key_errors == KEY_ERRORS
    assert found.guards == (2,)
    assert found.cut.pieces == proven.cut.pieces
    assert found.cut.constants.keys() == proven.cut.constants.keys()
    for name, values in proven.cut.constants.items():
        np.testing.assert_array_equal(found.cut.constants[name], values, strict=True)
    plain = [entry.name for entry in fields(found.cut) if entry.name not in ("pieces", "attentions", "constants")]
    assert [getattr(found.cut, name) for name in plain] == [getattr(proven.cut, name) for name in plain]
    for one, other in zip(found.cut.attentions, proven.cut.attentions, strict=True):
        assert replace(one, rope=None) == replace(other, rope=None)
        assert one.rope is not None
        assert other.rope is not None
        np.testing.assert_array_equal(one.rope.cosines, other.rope.cosines, strict=True)
        np.testing.assert_array_equal(one.rope.sines, other.rope.sines, strict=True)
        assert one.rope.is_interleaved == other.rope.is_interleaved
    for side in ("get_inputs", "get_outputs"):
        one, other = (getattr(known.decoder.native, side)() for known in (found, proven))
        assert one == other
        assert one


def test_a_reason_comes_back_as_it_was(store: CutStore) -> None:
    store.save("it is not understood")
    assert store.load() == store.reason() == "it is not understood"


def test_nothing_is_known_of_what_was_not_kept_or_is_forgotten(
    store: CutStore, model: ModelSpec, proven: ProvenCut
) -> None:
    assert store.load() is None
    store.save(proven)
    assert store.reason() == ""
    store.forget()
    assert store.load() is None
    nowhere = CutStore(None, decoder(model), {}, "avx2")
    nowhere.save(proven)
    assert nowhere.load() is None


def test_an_entry_of_another_graph_counts_as_not_there(
    store: CutStore, model: ModelSpec, proven: ProvenCut, tmp_path: Path
) -> None:
    store.save(proven)
    content = entry_of(tmp_path).read_bytes()
    other = CutStore(tmp_path, decoder(model), {"hidden_size": 5}, "avx2")
    assert other.key != store.key
    entry_of(tmp_path).with_name(f"cut-{other.key}.npz").write_bytes(content)
    assert other.load() is None
    assert isinstance(store.load(), ProvenCut)


def test_no_byte_of_an_entry_can_change_what_comes_back(store: CutStore, proven: ProvenCut, tmp_path: Path) -> None:
    store.save(proven)
    entry = entry_of(tmp_path)
    content = entry.read_bytes()
    random = np.random.default_rng(0)
    num_refused = 0
    for place in random.integers(0, len(content), 60):
        changed = bytearray(content)
        changed[place] ^= 1 << int(random.integers(8))
        entry.write_bytes(changed)
        found = store.load()
        num_refused += found is None
        if found is not None:  # padding, or a time within the archive
            assert isinstance(found, ProvenCut)
            assert found.cut.pieces == proven.cut.pieces
    assert num_refused > 50


def zero_cosines(arrays: dict[str, NDArray[Any]], _: dict[str, Any]) -> None:
    arrays["cosines_0"] = arrays["cosines_0"] * 0


def zero_scale(_: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
    for attention in facts["attentions"]:
        attention["scale"] = 0.0


def other_errors(_: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
    facts["key_errors"] = "ab"


def other_reason(_: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
    facts["reason"] = "because of a test"


def fewer_pieces(_: dict[str, NDArray[Any]], facts: dict[str, Any]) -> None:
    del facts["pieces"][2:]


@pytest.mark.parametrize("change", [zero_cosines, zero_scale, other_errors, other_reason, fewer_pieces])
def test_an_entry_that_was_rewritten_is_proven_again_and_planned_without_it(
    model: ModelSpec, tmp_path: Path, change: Callable[[dict[str, NDArray[Any]], dict[str, Any]], None]
) -> None:
    load_in_pieces(model, INT4, tmp_path).close()
    entry = entry_of(tmp_path)
    content, arrays = entry.read_bytes(), read_arrays(entry)
    facts = json.loads(arrays["facts"].tobytes())
    change(arrays, facts)
    arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with entry.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    assert OnnxRuntimeEngine(tmp_path).plan_memory(model, "language", INT4) is not None
    load_in_pieces(model, INT4, tmp_path).close()
    assert entry.read_bytes() == content


@pytest.mark.parametrize("reason", [None, "", 5, ["x"]])
def test_a_reason_that_is_no_text_counts_as_not_there(
    store: CutStore, monkeypatch: pytest.MonkeyPatch, reason: Any
) -> None:
    store.save("x")
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda _: dumps({"reason": reason}))
    store.save("x")  # with a checksum that is right
    monkeypatch.undo()
    assert store.load() is None


def test_what_is_no_file_counts_as_not_there(store: CutStore, tmp_path: Path) -> None:
    store.save("x")
    entry = entry_of(tmp_path)
    entry.unlink()
    os.mkfifo(entry)  # reading it would wait for ever
    assert store.load() is None
    entry.unlink()
    entry.mkdir()
    assert store.load() is None
    store.forget()


def test_nothing_is_kept_of_a_damaged_graph(tmp_path: Path) -> None:
    path = tmp_path / "decoder_model_merged.onnx"
    path.write_bytes(b"no graph")
    store = CutStore(tmp_path, path, {}, "avx2")
    store.save("it cannot be read")
    assert store.load() is None
    assert not (tmp_path / "onnxruntime").exists()


def set_in(place: tuple[Any, ...], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(facts: dict[str, Any]) -> None:
        at: Any = facts
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = value

    return change


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("attentions",), []),
        (("attentions", 0, "layer"), 1),
        (("attentions", 0, "scale"), "x"),
        (("attentions", 0, "scale"), float("nan")),
        (("attentions", 0, "head_dim"), 0),
        (("attentions", 0, "num_query_heads"), True),
        (("attentions", 0, "context"), None),
        (("attentions", 0, "context_dtype"), "object"),
        (("attentions", 0, "key", 1), "float64"),
        (("attentions", 0, "key", 2), "columns"),
        (("attentions", 0, "key", 3), -64),
        (("attentions", 0, "rope"), 7),
        (("attentions", 0, "is_interleaved"), 1),
        (("pieces",), []),
        (("pieces", 0, 0), "text"),
        (("pieces", 0, 1), [5]),
        (("constants",), ["one", "too", "many"]),
        (("folder",), 5),
        (("positions",), None),
        (("shares_scales",), 0),
        (("inputs", 0), ["name", "kind"]),
        (("inputs", 0, 2), [1.5]),
        (("outputs", 0, 1), None),
        (("device",), None),
        (("threads",), "x"),
        (("key_errors",), [[0.1, 0.1, 0.1]]),
        (("key_errors",), [[0.1], [0.1]]),
        (("key_errors",), [[None] * 3, [None] * 3]),
        (("key_errors",), "ab"),
    ],
)
def test_facts_of_the_wrong_shape_or_type_are_refused(
    proven: ProvenCut, model: ModelSpec, place: tuple[Any, ...], value: Any
) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    facts = json.loads(json.dumps(describe_cut(proven, arrays)))
    read_cut(facts, arrays, decoder(model))
    set_in(place, value)(facts)
    with pytest.raises((ValueError, KeyError, TypeError)):
        read_cut(facts, arrays, decoder(model))


@pytest.mark.parametrize(
    "spoil",
    [
        lambda table: table.astype(np.float64),
        lambda table: table[0],
        lambda table: table[:0],
        lambda table: table[:3],
    ],
)
def test_tables_of_another_type_or_shape_are_refused(
    proven: ProvenCut, model: ModelSpec, spoil: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    arrays: dict[str, NDArray[Any]] = {}
    facts = json.loads(json.dumps(describe_cut(proven, arrays)))
    arrays["cosines_0"] = spoil(arrays["cosines_0"])
    with pytest.raises(ValueError, match="of a rope is not as it was written"):
        read_cut(facts, arrays, decoder(model))
