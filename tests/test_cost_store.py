"""Tests of costs kept on disk, with real files."""

from __future__ import annotations

import json
import logging
import os
import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.chunk_policy import ChunkCost
from edge_vl.cost_store import CostKey, CostStore, default_folder
from edge_vl.costs import Costs, UnitCost
from edge_vl.engine import LaneOptions
from edge_vl.models import find_model
from edge_vl.profile_choice import decide
from edge_vl.testing import FakeEngine

KEY = CostKey("a board, 2 cores, cpu+cpu", "tiny", 1000, "onnxruntime", "int8", "llama_cpp", "f16", "2+2")
COSTS = Costs(
    units={"512x512/64": UnitCost(1.25, 0.5, None, 0.75, 3, 4, 2)},
    prefill_base_s=0.1,
    prefill_token_s=1 / 3,
    decode_s=0.05,
    answer_tokens=12.5,
    max_relative_error=0.2,
    chunk_table=(ChunkCost(64, 0.01, 0.9, 10.5, 1e-7, 128),),
)


@pytest.mark.parametrize("costs", [COSTS, Costs()])
def test_what_was_saved_is_loaded_exactly(tmp_path: Path, costs: Costs) -> None:
    assert CostStore(tmp_path / "new" / "folder").save(KEY, costs)

    assert CostStore(tmp_path / "new" / "folder").load(KEY) == costs


def test_nothing_is_loaded_where_nothing_was_saved(tmp_path: Path) -> None:
    assert CostStore(tmp_path / "missing").load(KEY) is None
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize("name", ["device", "model", "vision_engine", "vision_dtype", "language_dtype", "threads"])
def test_costs_of_anything_else_are_other_costs(tmp_path: Path, name: str) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, COSTS)

    assert store.load(replace(KEY, **{name: "other"})) is None  # type: ignore[arg-type]
    assert store.load(replace(KEY, model_bytes=7)) is None


def test_a_prefill_without_any_cost_counts_as_none(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, replace(COSTS, prefill_base_s=0.0, prefill_token_s=0.0))

    assert store.load(KEY) is None


def test_costs_without_a_chunk_table_leave_the_one_that_was_kept(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, COSTS)
    store.save(KEY, replace(COSTS, decode_s=9.0, chunk_table=()))

    assert store.load(KEY) == replace(COSTS, decode_s=9.0)


DAMAGE = [
    b"",
    b"{",
    b"null",
    b"[1]",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"format": 1}',
    b"x" * (2 << 20),
]


@pytest.mark.parametrize("damage", DAMAGE, ids=range(len(DAMAGE)))
def test_a_damaged_file_counts_as_none_and_is_replaced(tmp_path: Path, damage: bytes) -> None:
    store = CostStore(tmp_path)
    (tmp_path / KEY.file_name).write_bytes(damage)

    assert store.load(KEY) is None
    assert store.save(KEY, COSTS)
    assert store.load(KEY) == COSTS


WRONG = [
    (("costs", "decode_s"), 0),
    (("costs", "decode_s"), 10**400),
    (("costs", "decode_s"), 1e308),
    (("costs", "answer_tokens"), 1e308),
    (("costs", "prefill_token_s"), 1e-300),
    (("costs", "prefill_base_s"), 10**400),
    (("format",), 2),
    (("key", "model"), "other"),
    (("costs", "decode_s"), "fast"),
    (("costs", "decode_s"), -1.0),
    (("costs", "decode_s"), True),
    (("costs", "decode_s"), float("nan")),
    (("costs", "decode_s"), float("inf")),
    (("costs", "max_relative_error"), None),
    (("costs", "unknown"), 1),
    (("costs", "units"), []),
    (("costs", "units", "512x512/64"), None),
    (("costs", "units", "512x512/64", "num_encodes"), 2.5),
    (("costs", "units", "512x512/64", "num_encodes"), None),
    (("costs", "units", "512x512/64", "unknown"), 1),
    (("costs", "chunk_table"), 5),
    (("costs", "chunk_table", 0, "num_tokens"), 0),
    (("costs", "chunk_table", 0, "token_s"), None),
    (("costs", "chunk_table", 0, "token_s"), 0),
]


@pytest.mark.parametrize(("path", "value"), WRONG)
def test_a_file_with_one_wrong_value_counts_as_none(
    tmp_path: Path, path: tuple[str | int, ...], value: object, caplog: pytest.LogCaptureFixture
) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, COSTS)
    file = tmp_path / KEY.file_name
    content = json.loads(file.read_text())
    place = content
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    file.write_text(json.dumps(content))

    with caplog.at_level(logging.INFO):
        assert store.load(KEY) is None
    assert "is passed over" in caplog.text


@settings(max_examples=200)
@given(data=st.data())
def test_no_changed_byte_makes_loading_raise(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    store = CostStore(tmp_path_factory.mktemp("store"))
    assert store.folder is not None
    store.save(KEY, COSTS)
    file = store.folder / KEY.file_name
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    file.write_bytes(content)

    loaded = store.load(KEY)
    assert loaded is None or isinstance(loaded, Costs)


def test_the_folder_keeps_64_files_the_newest(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    for number in range(70):
        key = replace(KEY, model_bytes=number)
        store.save(key, COSTS)
        os.utime(tmp_path / key.file_name, (number, number))
    store.save(KEY, COSTS)

    assert len(list(tmp_path.iterdir())) == 64
    assert store.load(KEY) == COSTS
    assert store.load(replace(KEY, model_bytes=69)) == COSTS
    assert store.load(replace(KEY, model_bytes=0)) is None


def test_a_folder_that_cannot_be_written_to_is_told_and_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    store = CostStore(tmp_path / "file" / "folder")

    assert not store.save(KEY, COSTS)
    assert store.load(KEY) is None
    assert "cannot be kept" in caplog.text


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, COSTS)

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)

    assert not store.save(KEY, replace(COSTS, decode_s=1.0))
    assert store.load(KEY) == COSTS
    assert [file.name for file in tmp_path.iterdir()] == [KEY.file_name]


def test_writers_and_readers_at_once_see_whole_files(tmp_path: Path) -> None:
    store = CostStore(tmp_path)
    store.save(KEY, COSTS)
    seen: list[Costs | None] = []

    def write(number: int) -> None:
        for turn in range(20):
            store.save(KEY, replace(COSTS, decode_s=1.0 + number + turn))

    def read() -> None:
        seen.extend(store.load(KEY) for _ in range(100))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)] + [threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert None not in seen
    assert len(list(tmp_path.iterdir())) == 1


def test_by_itself_it_uses_the_cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGE_VL_CACHE_DIR", str(tmp_path))
    assert default_folder() == tmp_path / "costs"
    CostStore(default_folder()).save(KEY, COSTS)

    [file] = (tmp_path / "costs").iterdir()
    assert file.name == KEY.file_name
    assert not stat.S_IMODE(file.stat().st_mode) & stat.S_IWOTH


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("EDGE_VL_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert default_folder() is None
    monkeypatch.setattr("edge_vl.cost_store.default_folder", default_folder)
    store = CostStore()

    assert store.folder is None
    assert not store.save(KEY, COSTS)
    assert store.load(KEY) is None


def test_a_key_names_device_model_engines_precisions_and_threads() -> None:
    model = find_model("bundled")
    decision = decide(model, vision_engine=FakeEngine(), language_engine=FakeEngine(), threads=1)
    assert decision.vision is not None
    vision = decision.vision.engine.load_vision(model, LaneOptions())
    language = decision.language.engine.load_language(model, LaneOptions())

    key = CostKey.of(model, decision, vision.spec, language.spec)
    text_only = CostKey.of(model, decision, None, language.spec)

    assert key.model == "bundled"
    assert (key.vision_engine, key.language_engine) == (vision.spec.engine, language.spec.engine)
    assert key.threads == "1+1"
    assert key.device.endswith(f"{decision.machine.cores} cores, cpu+cpu")
    assert (text_only.vision_engine, text_only.vision_dtype) == ("", "")
    assert key.file_name != text_only.file_name
    vision.close()
    language.close()
