"""Choosing engines: taken or not, always with a reason, and never silently another one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_vl import EngineNotFound, EngineUnavailable, ModelError, ProfileError, RequestError
from edge_vl.device_file import read_device
from edge_vl.engine import EngineStatus, LaneMemory
from edge_vl.engine_choice import EngineFacts, choose_engine_of_lane
from edge_vl.kv_offer import KVOffer
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.machine import Machine
from edge_vl.model_spec import read_model_spec
from edge_vl.models import find_model
from edge_vl.profile import EngineChoice, Limits, MemoryFacts, PowerFacts, Profile, ProfileLane, Rule
from edge_vl.profile_choice import choose, consider, decide
from edge_vl.profile_decision import Decision, Wishes
from edge_vl.profile_library import find_profile, list_profiles
from edge_vl.profile_report import decision_values, lane_summary
from edge_vl.testing import FakeEngine
from tests.devices import DEVICES
from tests.test_profile import SMALL

MIB = 1 << 20
MACHINE = Machine("x86_64", "A CPU", "", 4, ("avx2", "avx512_vnni"), 8 << 30, None, "", "")
GONE = EngineFacts(EngineStatus(False, reason="libfoo.so is missing", install="pip install foo"))
UNKNOWN = EngineFacts(EngineStatus(False, reason="no installed package offers it"))


def facts(
    *dtypes: str,
    name: str = "engine",
    devices: tuple[str, ...] = ("cpu",),
    mib: int | None = None,
    kv: KVOffer = KVOffer(),  # noqa: B008  (frozen)
) -> EngineFacts:
    return EngineFacts(
        EngineStatus(True, devices=devices),
        FakeEngine(name=name),
        {"vision": dtypes, "language": dtypes},
        kv,
        lambda lane: None if mib is None else mib * MIB,
    )


def lane(choices: list[EngineChoice], known: dict[str, EngineFacts], **options: str) -> Any:
    return choose_engine_of_lane("vision", choices, MACHINE.flags, lambda name: known.get(name, UNKNOWN), **options)


INT8 = EngineChoice("ort", ("int8",), "cpu", ("avx512_vnni",), 100)
FAITHFUL = EngineChoice("ort", device="cpu")


def test_the_first_engine_that_will_do_is_taken_and_the_rest_is_not_looked_at() -> None:
    asked: list[str] = []

    def look(name: str) -> EngineFacts:
        asked.append(name)
        return facts("fp32") if name == "b" else UNKNOWN

    choice = choose_engine_of_lane("vision", [EngineChoice(name) for name in "abc"], (), look)

    assert choice.name == "b"
    assert [attempt.outcome for attempt in choice.attempts] == ["missing", "taken", "not reached"]
    assert "c" not in asked


@pytest.mark.parametrize(
    ("mib", "outcome", "reason"),
    [
        (None, "unsuited", "the size is unknown"),
        (99, "unsuited", "from 100 MiB on, and this is 99.0 MiB"),
        (100, "taken", "it can run here"),
    ],
)
def test_a_smaller_precision_is_worth_it_from_a_size_on(mib: int | None, outcome: str, reason: str) -> None:
    choice = lane([INT8, FAITHFUL], {"ort": facts("fp32", "int8", mib=mib)})

    assert choice.attempts[0].outcome == outcome
    assert reason in choice.attempts[0].reason
    assert choice.dtype == ("int8" if outcome == "taken" else "auto")


def test_a_choice_that_needs_a_cpu_flag_is_passed_over_without_it() -> None:
    choice = lane([replace(INT8, any_cpu_flags=("i8mm", "asimddp")), FAITHFUL], {"ort": facts("int8", mib=500)})

    assert choice.attempts[0].reason == "the processor has none of i8mm, asimddp"
    assert choice.dtype == "auto"


def test_precisions_are_tried_in_order() -> None:
    known = {"lcpp": facts("fp16", "q4_k")}

    assert lane([EngineChoice("lcpp", ("q4_0", "q4_k"))], known).dtype == "q4_k"
    choice = lane([EngineChoice("lcpp", ("q8_0",)), EngineChoice("lcpp")], known)
    assert choice.attempts[0].reason == "the model has no q8_0 for it, only fp16, q4_k"
    assert choice.dtype == "auto"


def test_a_device_is_meant_by_the_beginning_of_its_name() -> None:
    known = {"lcpp": facts("fp16", devices=("cpu", "CUDA0", "CUDA1"))}

    assert lane([EngineChoice("lcpp", device="cuda")], known).device == "CUDA0"
    choice = lane([EngineChoice("lcpp", device="rocm"), EngineChoice("lcpp", device="cpu")], known)
    assert choice.attempts[0].reason == "it offers cpu, CUDA0, CUDA1 here, not rocm"
    assert choice.device == "cpu"


def test_what_the_caller_wants_replaces_what_the_profile_says() -> None:
    known = {"ort": facts("fp32", "fp16", mib=1)}

    choice = lane([INT8, FAITHFUL], known, dtype="fp16")

    assert [attempt.label for attempt in choice.attempts] == ["ort fp16 on cpu"]
    assert choice.dtype == "fp16"
    assert lane([INT8, FAITHFUL], known, device="cuda").is_last_resort


def test_when_nothing_fits_the_engine_that_is_nearest_tells_what_is_missing() -> None:
    choices = [EngineChoice("gone"), EngineChoice("empty"), EngineChoice("ort")]
    known = {"gone": GONE, "empty": facts(), "ort": facts("fp32")}

    assert lane(choices, known, dtype="fp16").name == "ort"
    assert lane(choices[:2], known).name == "empty"
    assert lane(choices[:1], known).name == ""


def own(*language: EngineChoice, **fields: Any) -> Profile:
    lanes = ProfileLane((EngineChoice("ort"),), threads=3), ProfileLane(language or (EngineChoice("ort"),))
    return Profile("own", "Own", Path(), (Rule(),), MemoryFacts(budget_fraction=0.5), PowerFacts(), *lanes, **fields)


def decision(profile: Profile, known: dict[str, EngineFacts], wishes: Wishes | None = None, **options: Any) -> Decision:
    return choose(MACHINE, [profile], lambda name: known.get(name, UNKNOWN), wishes or Wishes(), **options)


def test_what_is_missing_before_the_engine_that_runs_is_told_once_for_each_lane() -> None:
    profile = own(
        EngineChoice("tensorrt", device="cuda"),
        EngineChoice("lcpp", ("q8_0",)),
        EngineChoice("lcpp"),
        EngineChoice("ort"),
    )

    found = decision(profile, {"ort": facts("fp32", name="ort"), "lcpp": GONE})

    assert found.language.engine.name == "ort"
    assert found.notes == (
        "language: profile own prefers tensorrt on cuda (no installed package offers it), then lcpp "
        "(libfoo.so is missing; pip install foo); ort runs instead",
    )


def test_what_the_profile_itself_thinks_not_worth_it_is_no_news() -> None:
    profile = own(EngineChoice("ort", ("int8",), min_weights_mib=100), EngineChoice("ort"))

    assert decision(profile, {"ort": facts("fp32", "int8", mib=1)}).notes == ()


def test_threads_limits_and_budget_come_from_the_profile_unless_the_caller_says_otherwise() -> None:
    profile = own(limits=Limits(context_length=4096))
    known = {"ort": facts("fp32")}

    found = decision(profile, known)
    assert found.vision is not None
    assert (found.vision.options.threads, found.vision.options.context_length) == (3, None)
    assert (found.language.options.threads, found.language.options.context_length) == (None, 4096)
    assert found.language.budget_bytes == 4 << 30

    found = decision(profile, known, Wishes(threads=1, context_length=64, kv=parse_kv_policy("int8")))
    assert (found.language.options.threads, found.language.options.context_length) == (1, 64)
    assert found.language.options.kv.name == "int8"
    assert found.vision is not None
    assert found.vision.options.kv.is_auto


@pytest.mark.parametrize(
    ("kv", "offer", "note"),
    [
        ("int8", KVOffer(("f16", "int8")), ""),
        ("text=int8,image=int4", KVOffer(("int8", "int4"), ("image",)), ""),
        ("int4", KVOffer(("f16", "int4")), ""),
        ("int8", KVOffer(), "prefers a KV cache in int8, and ort has no KV cache in int8, only in auto;"),
        ("k8v4", KVOffer(("f16", "int8")), "ort has no KV cache in int4, only in auto, f16, int8;"),
        ("text=int8,image=int4", KVOffer(("int8", "int4")), "text and image tokens alike, so image cannot be said;"),
        ("text=int4,last_layers=int8", KVOffer(("int8", "int4"), ("image",)), "so last_layers cannot be said;"),
    ],
)
def test_a_profiles_kv_policy_is_used_where_the_engine_offers_it_and_its_absence_is_told(
    kv: str, offer: KVOffer, note: str
) -> None:
    found = decision(own(kv=parse_kv_policy(kv)), {"ort": facts("fp32", kv=offer)})

    assert found.language.options.kv.name == ("auto" if note else kv)
    assert found.language.options.is_kv_wish is not bool(note)
    assert len(found.notes) == bool(note)
    assert all(note in told for told in found.notes)


def test_what_the_caller_wants_of_the_kv_cache_comes_before_the_profile() -> None:
    known = {"ort": facts("fp32", kv=KVOffer(("f16", "int8")))}
    found = decision(own(kv=parse_kv_policy("int8")), known, Wishes(kv=parse_kv_policy("f16")))

    assert found.language.options.kv.name == "f16"
    assert not found.language.options.is_kv_wish


def test_a_decision_tells_the_kv_policy_by_its_name() -> None:
    known = {"ort": facts("fp32", kv=KVOffer(("int8",)))}
    found = decision(own(kv=parse_kv_policy("int8")), known)

    assert decision_values(found)["lanes"]["language"]["options"]["kv"] == "int8"
    assert "KV cache int8" in lane_summary(found.language)


def test_the_budget_is_that_of_the_memory_which_the_weights_lie_in(tmp_path: Path) -> None:
    file = tmp_path / "device.toml"
    here = facts("fp32", devices=("cpu", "cuda"))
    on_cuda = {"onnxruntime": here, "llama_cpp": UNKNOWN, "tensorrt": UNKNOWN}
    for name, mib in (("h200", int(143771 * 0.92)), ("jetson-orin-nano-8gb", 7620 - 1536)):
        file.write_text(DEVICES[name])
        found = choose(read_device(file), list_profiles(), on_cuda.__getitem__, Wishes())
        assert found.language.options.device == "cuda"
        assert found.language.budget_bytes is not None
        assert found.language.budget_bytes // MIB == mib


def test_an_engine_that_no_profile_names_is_tried_last_and_told() -> None:
    found = decision(own(), {"stranger": facts("fp32", name="stranger")}, installed=("ort", "stranger"))

    assert found.language.engine.name == "stranger"
    assert "prefers ort (no installed package offers it); stranger runs instead" in found.notes[1]


def test_without_any_engine_the_error_gives_every_reason_and_a_command() -> None:
    found = decision(own(EngineChoice("ort"), EngineChoice("lcpp")), {"lcpp": GONE})

    with pytest.raises(EngineUnavailable, match="ort: no installed package offers it; lcpp: libfoo") as caught:
        _ = found.language.engine
    assert caught.value.install == "pip install foo"
    assert found.language.budget_bytes is not None


def test_a_profile_that_was_asked_for_is_taken_although_it_is_meant_for_another_device(tmp_path: Path) -> None:
    profiles = list_profiles()
    asked = find_profile("raspberry-pi-5", profiles)

    found = choose(MACHINE, profiles, lambda name: facts("fp32"), Wishes(), asked)

    assert found.profile is asked
    assert found.notes[0].startswith("profile raspberry-pi-5 was asked for, but is meant for another device")
    (tmp_path / "own.toml").write_text(SMALL)
    other = find_profile(tmp_path / "own.toml", profiles)
    assert choose(MACHINE, profiles, lambda name: facts("fp32"), Wishes(), other).matches[-1].profile is other


def test_without_a_matching_profile_one_has_to_be_named() -> None:
    with pytest.raises(ProfileError, match="no device profile matches"):
        decision(replace(own(), rules=(Rule(arch=("riscv64",)),)), {})


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_on_every_device_tensorrt_is_told_missing_where_it_is_wanted_and_the_next_engine_runs(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "device.toml").write_text(DEVICES[name])

    found = consider(find_model("bundled"), Wishes(), read_device(tmp_path / "device.toml"))

    assert found.profile.id == name
    is_wanted = (
        name == "generic-cuda" or name.startswith("jetson") or name in {"rtx", "l4", "a10g", "a100", "h100", "h200"}
    )
    for one in found.lanes:
        first = one.attempts[0]
        assert (first.choice.name == "tensorrt") == is_wanted
        assert one.engine.name != "tensorrt"
        if is_wanted:
            assert first.outcome == "missing"
            assert "it comes with a later version" in first.reason
            assert any(note.startswith(f"{one.lane}: profile {name} prefers tensorrt on cuda") for note in found.notes)


def test_the_bundled_model_keeps_its_exact_weights() -> None:
    found = decide(find_model("bundled"), profile="generic-cpu", machine=MACHINE)

    assert found.vision is not None
    assert found.vision.engine.name == "onnxruntime"
    assert found.vision.options.dtype == "auto"
    assert found.vision.attempts[0].outcome == "unsuited"


def test_named_engines_and_precisions_are_taken_as_they_are() -> None:
    found = decide(
        find_model("bundled"), vision_engine="onnxruntime", vision_dtype="int8", language_engine="onnxruntime"
    )

    assert found.vision is not None
    assert found.vision.options.dtype == "int8"
    assert found.language.attempts[-1].outcome == "taken"
    assert {attempt.choice.name for attempt in found.language.attempts} == {"onnxruntime"}


def test_an_engine_given_as_an_object_is_taken(model_folder: Path) -> None:
    engine = FakeEngine(name="fake")
    model = read_model_spec(model_folder)

    found = decide(model, vision_engine=engine, language_engine=engine, language_dtype="fp32", device="cpu")

    assert found.vision is not None
    assert (found.vision.engine, found.language.engine) == (engine, engine)
    assert (found.language.options.dtype, found.language.options.device) == ("fp32", "cpu")
    assert found.notes == ()


def test_what_cannot_be_meant_is_refused() -> None:
    model = find_model("bundled")
    with pytest.raises(EngineNotFound, match="nothing"):
        decide(model, vision_engine="nothing")
    with pytest.raises(RequestError, match="by name or as an object, not a int"):
        decide(model, language_engine=3)  # type: ignore[arg-type]
    with pytest.raises(ProfileError, match="did you mean 'rtx'"):
        decide(model, profile="rtz")


def test_a_named_engine_that_cannot_run_is_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = FakeEngine(name="broken", unavailable="no such chip")
    monkeypatch.setattr("edge_vl.profile_choice.engine_names", lambda: ("broken",))
    monkeypatch.setattr("edge_vl.profile_choice.engine_named", lambda name: broken)

    with pytest.raises(EngineUnavailable, match="engine 'broken' is not available: no such chip"):
        decide(find_model("bundled"), vision_engine="broken", language_engine="broken")


def test_engines_are_asked_for_their_files_and_sizes(monkeypatch: pytest.MonkeyPatch, model_folder: Path) -> None:
    def memory(lane: str, options: object) -> LaneMemory:
        return LaneMemory(200 * MIB, 0, 0, 0, "fp32", "file")

    engine = FakeEngine(name="onnxruntime", memory=memory)
    monkeypatch.setattr("edge_vl.profile_choice.engine_names", lambda: ("onnxruntime",))
    monkeypatch.setattr("edge_vl.profile_choice.engine_named", lambda name: engine)
    monkeypatch.setattr(engine, "describe", lambda model: {"vision_dtypes": ["fp32"], "vision_dtypes_made": ["int8"]})

    found = consider(read_model_spec(model_folder), Wishes(profile="generic-cpu"), MACHINE)

    assert found.vision is not None
    assert found.vision.options.dtype == "int8"

    def broken(model: object) -> Any:
        raise ModelError("cut short", file="x")

    monkeypatch.setattr(engine, "describe", broken)
    found = consider(read_model_spec(model_folder), Wishes(profile="generic-cpu"), MACHINE)
    assert found.language.attempts[-1].reason == "the model has no files for its language lane"
    assert found.language.engine is engine, "loading it tells what is wrong with the files"


def test_a_model_that_reads_text_only_has_no_vision_lane() -> None:
    found = decision(own(), {"ort": facts("fp32")}, has_vision=False)

    assert found.vision is None
    assert [one.lane for one in found.lanes] == ["language"]
