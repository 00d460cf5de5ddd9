"""Profiles: what a file may say, what is refused, and the words it is refused with."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_vl.device_file import DEVICE_KEYS
from edge_vl.errors import ProfileError
from edge_vl.kv_policy import KVPolicy
from edge_vl.profile import EngineChoice, Limits, Measurement, Profile, Rule, read_profile
from edge_vl.profile_library import find_profile, list_profiles
from edge_vl.profile_match import POINTS
from edge_vl.profile_schema import KEYS, WITHOUT_PROVENANCE

ROOT = Path(__file__).parent.parent
SMALL = """
schema = 1
id = "own"
name = "My board"

[[match]]
board_regex = "My Board"

[[vision.engines]]
name = "onnxruntime"

[[language.engines]]
name = "llama_cpp"
dtypes = ["q4_0", "auto"]
device = "cpu"
"""


def read(tmp_path: Path, text: str) -> Profile:
    file = tmp_path / "own.toml"
    file.write_text(text)
    return read_profile(file)


def test_a_small_profile_has_defaults_for_the_rest(tmp_path: Path) -> None:
    profile = read(tmp_path, SMALL)

    assert (profile.id, profile.name) == ("own", "My board")
    assert profile.rules == (Rule(board_regex="My Board"),)
    assert profile.vision.engines == (EngineChoice("onnxruntime"),)
    assert profile.language.engines == (EngineChoice("llama_cpp", ("q4_0", "auto"), "cpu"),)
    assert profile.limits == Limits()
    assert (profile.kv, profile.schedule_mode, profile.first_token_s) == (KVPolicy(), "auto", None)


def test_every_key_can_be_said(tmp_path: Path) -> None:
    profile = read(
        tmp_path,
        """
        schema = 1
        id = "all"
        name = "All of it"
        [[match]]
        arch = ["aarch64"]
        compatible = ["maker,*"]
        board_regex = "B"
        cpu_regex = "C"
        cpu_flags = ["asimd"]
        gpu_vendor = "nvidia"
        gpu_regex = "G"
        compute_capability = ["8.7"]
        min_memory_mib = 1
        max_memory_mib = 2
        min_gpu_memory_mib = 3
        max_gpu_memory_mib = 4
        [memory]
        total_mib = 1000
        unified = true
        bandwidth_gbps = 10
        reserve_mib = 100
        budget_fraction = 0.95
        [power]
        min_w = 5
        max_w = 25.5
        modes = ["low", "high"]
        default_mode = "low"
        sensor = "ina3221"
        [vision]
        threads = 2
        [[vision.engines]]
        name = "onnxruntime"
        dtypes = ["int8"]
        device = "cuda"
        any_cpu_flags = ["asimddp"]
        min_weights_mib = 100
        [language]
        threads = 3
        [[language.engines]]
        name = "llama_cpp"
        dtypes = ["q8_0"]
        device = "cpu"
        any_cpu_flags = ["asimd"]
        min_weights_mib = 1
        [kv]
        text = "int8"
        image = "k8v4"
        first_layers = "f16x2"
        last_layers = "none"
        [schedule]
        mode = "serial"
        [limits]
        context_length = 4096
        max_image_tokens = 512
        longest_edge = 1024
        [slo]
        first_token_s = 1.5
        token_s = 0.1
        [[measured]]
        command = "python -m benchmarks lanes"
        date = "2026-11-30"
        edge_vl = "0.1.0"
        result = "0.5 s a tile"
        [provenance]
        "memory.total_mib" = "vendor: the data sheet"
        kv.text = "measured: python -m benchmarks lanes, 2026-11-30"
        """,
    )

    assert profile.memory.budget_bytes(1000 * 1024**2) == 900 * 1024**2
    assert profile.memory.budget_bytes(10_000 * 1024**2) == 9500 * 1024**2
    assert profile.memory.budget_bytes(0) == 0
    assert (profile.vision.threads, profile.language.threads) == (2, 3)
    assert profile.limits == Limits(4096, 512, 1024)
    assert profile.measured == (Measurement("python -m benchmarks lanes", "2026-11-30", "0.1.0", "0.5 s a tile"),)
    assert profile.provenance["memory.total_mib"] == "vendor: the data sheet"
    assert profile.provenance["kv.text"].startswith("measured:")
    assert profile.kv.name == "text=int8,image=k8v4,first_layers=f16x2"
    said = {key for key in KEYS if not key.startswith(WITHOUT_PROVENANCE) and "[]" not in key and key != "kv"}
    assert set(profile.values) == said | {"vision.engines", "language.engines"}


def test_a_kv_policy_may_be_one_text_instead_of_a_table(tmp_path: Path) -> None:
    said = 'kv = "text=int8,image=int4"\n[provenance]\nkv = "estimated: x"\n[[match]]'
    profile = read(tmp_path, SMALL.replace("[[match]]", said, 1))

    assert (
        profile.kv == read(tmp_path, SMALL.replace("[[match]]", '[kv]\ntext = "int8"\nimage = "int4"\n[[match]]', 1)).kv
    )
    assert profile.values["kv"] == "text=int8,image=int4"
    assert profile.provenance["kv"] == "estimated: x"
    assert read(tmp_path, SMALL.replace("[[match]]", 'kv = "q4_0"\n[[match]]', 1)).kv.name == "int4"


@pytest.mark.parametrize(
    ("old", "new", "key", "words"),
    [
        ("schema = 1", "schema = 2", "schema", "a whole number from 1 to 1, not 2"),
        ("schema = 1", "", "schema", "not nothing"),
        ('id = "own"', 'id = "Own Board"', "id", "a short name"),
        ('name = "My board"', 'name = " "', "name", "a text"),
        ("[[match]]", "[memory]\nbuget_fraction = 0.5\n[[match]]", "memory.buget_fraction", "'memory.budget_fraction'"),
        ("[[match]]", "[memory]\nbudget_fraction = 1.5\n[[match]]", "memory.budget_fraction", "0.05 to 1, not 1.5"),
        ("[[match]]", "[memory]\nbudget_fraction = nan\n[[match]]", "memory.budget_fraction", "not nan"),
        ("[[match]]", "[memory]\nreserve_mib = true\n[[match]]", "memory.reserve_mib", "a whole number"),
        ("[[match]]", "[memory]\nunified = 1\n[[match]]", "memory.unified", "true or false"),
        ("[[match]]", "memory = 3\n[[match]]", "memory", "a table"),
        ("[[match]]", '[power]\nmodes = ["a"]\ndefault_mode = "b"\n[[match]]', "power.default_mode", "power.modes"),
        ("[[match]]", "[power]\nmin_w = 9\nmax_w = 3\n[[match]]", "power.min_w", "at most max_w"),
        ("[[match]]", "[kv]\nkeep_fracton = 1\n[[match]]", "kv.keep_fracton", "expected one of first_layers"),
        ("[[match]]", '[kv]\nimge = "int4"\n[[match]]', "kv.imge", "did you mean 'kv.image'"),
        ("[[match]]", "[kv]\ntext = 8\n[[match]]", "kv.text", "a text, not 8"),
        ("[[match]]", '[kv]\ntext = "int5"\n[[match]]', "kv", "did you mean 'int8'"),
        ("[[match]]", '[kv]\nfirst_layers = "int8x0"\n[[match]]', "kv", "at least 1 layer"),
        ("[[match]]", 'kv = "text=int8,image"\n[[match]]', "kv", "'image' is no part"),
        ("[[match]]", "kv = 8\n[[match]]", "kv", "a KV policy"),
        ("[[match]]", "[sloo]\n[[match]]", "sloo", "did you mean 'slo'"),
        ("[[match]]", "[match]", "match", "an array of tables"),
        ('board_regex = "My Board"', 'board_regex = "("', "match[0].board_regex", "a regular expression"),
        ('board_regex = "My Board"', 'arch = "x86_64"', "match[0].arch", "a list"),
        ('board_regex = "My Board"', "arch = []", "match[0].arch", "a list"),
        ('board_regex = "My Board"', "min_memory_mib = 9\nmax_memory_mib = 8", "match[0].min_memory_mib", "at most"),
        ('board_regex = "My Board"', 'gpu_vendor = "intel"', "match[0].gpu_vendor", "`nvidia` or `amd`"),
        ('name = "onnxruntime"', "", "vision.engines[0].name", "not nothing"),
        (
            'name = "onnxruntime"',
            'name = "a"\ndevise = "cpu"',
            "vision.engines[0].devise",
            "'vision.engines[0].device'",
        ),
        ('[[vision.engines]]\nname = "onnxruntime"', "[vision]\nthreads = 1", "vision.engines", "at least one"),
        ('[[vision.engines]]\nname = "onnxruntime"', "", "vision.engines", "at least one"),
        (
            "[[vision.engines]]",
            '[provenance]\nvision.engines = "guess: x"\n[[vision.engines]]',
            "provenance.vision.engines",
            "vendor",
        ),
        (
            "[[vision.engines]]",
            '[provenance]\nvision.engines = "vendor"\n[[vision.engines]]',
            "provenance.vision.engines",
            "a colon",
        ),
        (
            "[[vision.engines]]",
            "[provenance]\nvision.engines = 3\n[[vision.engines]]",
            "provenance.vision.engines",
            "a colon",
        ),
        (
            "[[vision.engines]]",
            '[provenance]\nkv.text = "vendor: x"\n[[vision.engines]]',
            "provenance.kv.text",
            "this profile",
        ),
        ("[[vision.engines]]", '[[measured]]\ncommand = "a"\n[[vision.engines]]', "measured[0].date", "not nothing"),
        ("schema = 1", "schema = = 1", "", "valid TOML"),
    ],
)
def test_what_makes_no_sense_is_refused_by_file_and_key(
    tmp_path: Path, old: str, new: str, key: str, words: str
) -> None:
    assert old in SMALL
    with pytest.raises(ProfileError) as caught:
        read(tmp_path, SMALL.replace(old, new, 1))

    error = caught.value
    assert error.key == key
    assert error.path == str(tmp_path / "own.toml")
    assert error.expected
    assert error.got
    assert words in str(error)
    assert str(error).startswith(error.path)


def test_a_file_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large.toml").write_bytes(b"#" * (1 << 20) + b"#")
    for name, words in (
        ("missing.toml", "cannot be read"),
        ("binary.toml", "cannot be read"),
        ("large.toml", "1 MiB"),
        ("", "cannot be read"),
    ):
        with pytest.raises(ProfileError, match=words):
            read_profile(tmp_path / name)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(line=st.integers(0, len(SMALL.splitlines())), junk=st.text(max_size=30))
def test_any_line_in_a_profile_is_read_or_refused(tmp_path: Path, line: int, junk: str) -> None:
    lines = SMALL.splitlines()
    lines.insert(line, junk)
    file = tmp_path / "own.toml"
    file.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    with contextlib.suppress(ProfileError):
        assert read_profile(file).id == "own"


def table_keys(title: str) -> set[str]:
    section = (ROOT / "docs/profiles.md").read_text().split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
    return set(re.findall(r"^\| `([^`]+)`", section, re.MULTILINE))


def test_the_document_explains_every_key_and_no_other() -> None:
    assert table_keys("Keys") == set(KEYS)
    assert table_keys("A device in a file") == set(DEVICE_KEYS)
    points = {name.removeprefix("match[].") for name in KEYS if name.startswith("match[].")}
    single = {name for name in points if not name.startswith(("min_", "max_"))} | {"memory", "gpu_memory"}
    assert set(POINTS) == table_keys("How one is chosen") == single
    text = (ROOT / "docs/profiles.md").read_text()
    for name, number in POINTS.items():
        assert re.search(rf"^\| `{name}`.* \| {number} \|$", text, re.MULTILINE), name


def test_the_documents_example_is_a_profile(tmp_path: Path) -> None:
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs/profiles.md").read_text(), re.DOTALL)
    example = next(block for block in blocks if "schema = 1" in block)
    assert read(tmp_path, example).id == "gate-camera"


@pytest.mark.parametrize("profile", list_profiles(), ids=lambda profile: profile.id)
def test_every_value_of_a_shipped_profile_says_where_it_is_from(profile: Profile) -> None:
    assert set(profile.values) == set(profile.provenance)
    assert not profile.measured, "a measurement needs the device"
    assert not any(said.startswith("measured") for said in profile.provenance.values())


@pytest.mark.parametrize("profile", list_profiles(), ids=lambda profile: profile.id)
def test_no_shipped_profile_changes_answers_by_a_smaller_kv_cache(profile: Profile) -> None:
    assert profile.kv.is_auto
    assert profile.values["kv.text"] == "auto"


@pytest.mark.parametrize("profile", list_profiles(), ids=lambda profile: profile.id)
def test_every_shipped_profile_ends_with_the_processor_and_both_engines(profile: Profile) -> None:
    assert profile.path.stem == profile.id
    for lane in (profile.vision, profile.language):
        last = lane.engines[-2:]
        assert {choice.name for choice in last} == {"onnxruntime", "llama_cpp"}
        assert all(choice == EngineChoice(choice.name, device="cpu") for choice in last)


def test_all_devices_of_the_list_have_a_profile() -> None:
    wanted = (
        "generic-cpu generic-cuda raspberry-pi-4 raspberry-pi-5 jetson-orin-nano-8gb jetson-orin-nx-8gb "
        "jetson-orin-nx-16gb jetson-agx-orin-32gb jetson-agx-orin-64gb jetson-thor "
        "rtx l4 a10g a100 h100 h200 mi300x riscv64"
    )
    assert {profile.id for profile in list_profiles()} == set(wanted.split())


def test_a_users_folder_adds_profiles_and_replaces_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.toml").write_text(SMALL)
    (tmp_path / "cpu.toml").write_text(SMALL.replace('"own"', '"generic-cpu"'))
    monkeypatch.setenv("EDGE_VL_PROFILES_DIR", str(tmp_path))

    profiles = {profile.id: profile for profile in list_profiles()}

    assert not profiles["own"].is_shipped
    assert profiles["generic-cpu"].path == tmp_path / "cpu.toml"
    assert profiles["rtx"].is_shipped


def test_two_own_profiles_of_one_id_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(SMALL)
    (tmp_path / "b.toml").write_text(SMALL)
    with pytest.raises(ProfileError, match=r"b\.toml: id should be one of its own"):
        list_profiles(tmp_path)


def test_a_profile_is_found_by_id_or_file_and_a_misspelt_one_gets_a_hint(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(SMALL)
    profiles = list_profiles()

    assert find_profile("l4", profiles).name == "NVIDIA L4"
    assert find_profile(str(tmp_path / "own.toml"), profiles).id == "own"
    assert find_profile(tmp_path / "own.toml", profiles).id == "own"
    with pytest.raises(ProfileError, match="did you mean 'raspberry-pi-5'") as caught:
        find_profile("raspbery-pi5", profiles)
    assert caught.value.got == "'raspbery-pi5'"
    with pytest.raises(ProfileError, match="known: a100, a10g"):
        find_profile("zzz", profiles)
