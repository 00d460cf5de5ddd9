"""The memory plan: what is counted, which limit holds, what is said, and that nothing is loaded that does not fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_vl import MemoryBudgetError, Runtime
from edge_vl.engine import LaneMemory, LaneOptions
from edge_vl.errors import ModelError
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.memory_plan import MemoryPlan, check_memory, plan_memory
from edge_vl.model_spec import ModelSpec, read_model_spec
from edge_vl.profile_choice import decide
from edge_vl.profile_decision import Decision
from edge_vl.testing import FakeEngine
from tests.cli.conftest import RunCli, cli, png  # noqa: F401  (fixtures)

MIB = 1024**2
LANGUAGE_WEIGHTS = {"auto": 400, "fp32": 400, "fp16": 200, "q4": 100}
VISION_WEIGHTS = {"auto": 90, "fp32": 90, "int8": 30}
KV_BYTES = 64 * 1024  # of one entry: 4096 of them are 256 MiB


def needs(lane: str, options: LaneOptions) -> LaneMemory:
    """Need 100 MiB to see and 420 MiB and a KV cache to speak, in the first precision."""
    if lane == "vision":
        dtype = "fp32" if options.dtype == "auto" else options.dtype
        return LaneMemory(VISION_WEIGHTS[dtype] * MIB, 0, 8 * MIB, 2 * MIB, dtype, "see.onnx")
    dtype = "fp32" if options.dtype == "auto" else options.dtype
    context = options.context_length or 4096
    return LaneMemory(LANGUAGE_WEIGHTS[dtype] * MIB, KV_BYTES * context, 20 * MIB, 0, dtype, "speak.onnx", context)


class Fake(FakeEngine):
    """A fake with several precisions."""

    def describe(self, model: ModelSpec) -> dict[str, Any]:
        return {"vision_dtypes": ["fp32", "int8"], "language_dtypes": ["fp16", "fp32", "q4"]}


@pytest.fixture
def model(model_folder: Path) -> ModelSpec:
    return read_model_spec(model_folder)


@pytest.fixture(autouse=True)
def much_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_vl.memory_plan.available_memory_bytes", lambda: 64 * 1024 * MIB)


def decision_of(model: ModelSpec, engine: FakeEngine, **wishes: Any) -> Decision:
    wishes.setdefault("context_length", 4096)
    return decide(model, vision_engine=engine, language_engine=engine, **wishes)


def refusal(model: ModelSpec, engine: FakeEngine, budget_mib: int, **wishes: Any) -> MemoryBudgetError:
    with pytest.raises(MemoryBudgetError) as caught:
        check_memory(model, decision_of(model, engine, **wishes), budget_mib)
    return caught.value


def test_a_plan_adds_up_both_lanes(model: ModelSpec) -> None:
    plan = plan_memory(model, decision_of(model, Fake(memory=needs)), 1000)
    assert plan.needed_bytes == (90 + 8 + 2 + 400 + 256 + 20) * MIB
    assert (plan.budget_bytes, plan.budget_source, plan.fits) == (1000 * MIB, "memory_budget_mib", True)


def test_exactly_the_budget_fits_and_one_mib_less_does_not(model: ModelSpec) -> None:
    decision = decision_of(model, Fake(memory=needs))
    assert check_memory(model, decision, 776).fits
    with pytest.raises(MemoryBudgetError):
        check_memory(model, decision, 775)


def test_the_error_has_both_numbers_in_its_text_and_its_attributes(model: ModelSpec) -> None:
    error = refusal(model, Fake(memory=needs), 700)
    assert (error.needed_bytes, error.budget_bytes) == (776 * MIB, 700 * MIB)
    assert "776 MiB" in str(error)
    assert "700 MiB (memory_budget_mib)" in str(error)


def test_less_than_the_budget_may_be_free(model: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_vl.memory_plan.available_memory_bytes", lambda: 500 * MIB)
    error = refusal(model, Fake(memory=needs), 10_000)
    assert error.budget_bytes == 500 * MIB
    assert "500 MiB (free now)" in str(error)


def test_without_a_number_the_profile_sets_the_budget(model: ModelSpec, tmp_path: Path) -> None:
    profile = tmp_path / "board.toml"
    profile.write_text(
        'schema = 1\nid = "board"\nname = "Board"\n[memory]\nbudget_fraction = 0.05\nreserve_mib = 0\n'
        '[[vision.engines]]\nname = "fake"\n[[language.engines]]\nname = "fake"\n'
        '[provenance]\n"memory.budget_fraction" = "estimated: test"\n"memory.reserve_mib" = "estimated: test"\n'
        '"vision.engines" = "estimated: test"\n"language.engines" = "estimated: test"\n'
    )
    decision = decision_of(model, Fake(memory=needs), profile=profile)
    allowed = decision.language.budget_bytes
    plan = plan_memory(model, decision)
    assert (plan.budget_bytes, plan.budget_source) == (allowed, "device profile board")
    assert plan_memory(model, decision, 123).budget_bytes == 123 * MIB  # what the caller says comes first


@pytest.mark.parametrize(
    ("budget_mib", "context_length", "expected"),
    [
        (775, 4096, "context_length 3840"),  # 520 + 240 MiB
        (600, 4096, "context_length 1280"),  # 520 + 80
        (583, 4096, "vision_dtype int8, context_length 1792"),  # with fp32 1008 entries: too few; 460 + 112
        (450, 4096, "language_dtype fp16, context_length 2048"),  # 320 + 128
        (350, 4096, "vision_dtype int8, language_dtype fp16, context_length 1280"),  # 260 + 80
        (180, 4096, "vision_dtype int8, language_dtype q4, context_length 256"),  # 160 + 16
        (583, 1024, "context_length 768"),  # 520 + 48: little is asked for, so a little less is enough
        (530, 1024, "vision_dtype int8"),  # 460 + 64, the whole context
    ],
)
def test_the_largest_setting_that_fits_is_named(
    model: ModelSpec, budget_mib: int, context_length: int, expected: str
) -> None:
    error = refusal(model, Fake(memory=needs), budget_mib, context_length=context_length)
    assert str(error).endswith(f"the largest setting that fits: {expected}"), str(error)


def test_what_is_proposed_is_accepted(model: ModelSpec) -> None:
    engine = Fake(memory=needs)
    for budget_mib in range(190, 776, 13):
        text = str(refusal(model, engine, budget_mib))
        words = dict(re.findall(r"(vision_dtype|language_dtype|context_length) (\w+)", text.partition("fits:")[2]))
        assert words, text
        wishes: dict[str, Any] = {**words}
        if "context_length" in wishes:
            wishes["context_length"] = int(wishes["context_length"])
        assert check_memory(model, decision_of(model, engine, **wishes), budget_mib).fits


def test_nothing_smaller_is_said_where_nothing_helps(model: ModelSpec) -> None:
    assert str(refusal(model, Fake(memory=needs), 20)).endswith("nothing smaller fits")


class Compressing(Fake):
    """A fake that offers smaller KV caches: 256 MiB become 128, 96 or 64."""

    def describe(self, model: ModelSpec) -> dict[str, Any]:
        return {**super().describe(model), "kv_precisions": ["f16", "int8", "int4"]}


def compressed_needs(lane: str, options: LaneOptions) -> LaneMemory:
    memory = needs(lane, options)
    share = {"auto": 1.0, "f16": 1.0, "int8": 0.5, "k8v4": 0.375, "int4": 0.25}[options.kv.name]
    return replace(memory, kv_bytes=int(memory.kv_bytes * share))


@pytest.mark.parametrize(
    ("budget_mib", "kv"), [(775, "int8"), (648, "int8"), (647, "k8v4"), (616, "k8v4"), (584, "int4")]
)
def test_a_smaller_kv_cache_is_named_where_it_is_enough(model: ModelSpec, budget_mib: int, kv: str) -> None:
    engine = Compressing(memory=compressed_needs)
    message = str(refusal(model, engine, budget_mib))
    assert message.endswith(f"; or kv {kv} and all else as it is, which may change answers")
    assert check_memory(model, decision_of(model, engine, kv=parse_kv_policy(kv)), budget_mib).fits


def test_a_smaller_kv_cache_is_not_named_where_it_is_not_enough_or_another_was_asked_for(model: ModelSpec) -> None:
    engine = Compressing(memory=compressed_needs)
    assert "may change answers" not in str(refusal(model, engine, 583))
    assert "may change answers" not in str(refusal(model, engine, 700, kv=parse_kv_policy("f16")))
    assert "may change answers" not in str(refusal(model, Fake(memory=compressed_needs), 700)), "it does not offer any"


def test_an_engine_that_cannot_tell_is_not_counted(model: ModelSpec) -> None:
    decision = decide(model, vision_engine=Fake(), language_engine=Fake(memory=needs), context_length=4096)
    plan = check_memory(model, decision, 700)
    assert plan.vision is None
    assert plan.needed_bytes == 676 * MIB


def test_files_that_cannot_be_used_are_left_to_loading(model: ModelSpec) -> None:
    def broken(lane: str, options: LaneOptions) -> LaneMemory:
        raise ModelError("damaged", file="x")

    assert check_memory(model, decision_of(model, Fake(memory=broken)), 1).needed_bytes == 0


def test_a_plan_becomes_json() -> None:
    plan = MemoryPlan(None, needs("language", LaneOptions()), None, "unknown")
    found = plan.as_json()
    assert found["vision"] is None
    assert found["language"]["total_bytes"] == found["needed_bytes"] == 676 * MIB
    assert found["budget_bytes"] is None
    assert found["fits"] is True


def test_a_runtime_that_does_not_fit_loads_nothing(model_folder: Path) -> None:
    engine = Fake(memory=needs)
    with pytest.raises(MemoryBudgetError, match="776 MiB"):
        Runtime.open(
            model_folder,
            vision_engine=engine,
            language_engine=engine,
            context_length=4096,
            memory_budget_mib=700,
        )
    assert engine.calls == []


def test_a_runtime_that_fits_opens(model_folder: Path) -> None:
    engine = Fake(memory=needs)
    with Runtime.open(
        model_folder, vision_engine=engine, language_engine=engine, context_length=4096, memory_budget_mib=776
    ) as runtime:
        assert runtime.language_spec.context_length == 4096


def test_the_command_line_ends_with_5(cli: Callable[..., Any], png: Path) -> None:  # noqa: F811
    done = cli("ask", str(png), "What is there?", "--memory-budget-mib", "2")
    assert done.code == 5
    assert "bundled needs" in done.err
    assert "2 MiB (memory_budget_mib)" in done.err
    assert "nothing smaller fits" in done.err


def test_models_info_prints_the_plan(cli: RunCli) -> None:  # noqa: F811
    done = cli("models", "info")
    lines = [line for line in done.out.splitlines() if line.startswith("memory")]
    assert re.search(r"vision \(\w+ fp\d+\): weights \d", lines[0])
    assert re.search(r"language \(\w+ fp\d+, context 2048\): weights .* KV cache \d", lines[1])
    assert re.search(r"needs [\d.]+ MiB, may take [\d.]+ MiB", lines[2])
