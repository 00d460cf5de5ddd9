"""Matching: every shipped profile is chosen for its device, and the others say why not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edge_vl.accelerators import Gpu
from edge_vl.device_file import read_device
from edge_vl.errors import ProfileError
from edge_vl.machine import Machine
from edge_vl.profile import EngineChoice, MemoryFacts, PowerFacts, Profile, ProfileLane, Rule
from edge_vl.profile_library import list_profiles
from edge_vl.profile_match import best_match, match_profile
from tests.devices import DEVICES

LANE = ProfileLane((EngineChoice("onnxruntime"),))
MACHINE = Machine("aarch64", "Cortex-A76", "My Board", 4, ("asimd", "asimddp"), 8 << 30, None, "", "")


def profile(*rules: Rule, name: str = "own", is_shipped: bool = False) -> Profile:
    return Profile(name, name, Path(), rules, MemoryFacts(), PowerFacts(), LANE, LANE, is_shipped=is_shipped)


def device(tmp_path: Path, text: str) -> Machine:
    file = tmp_path / "device.toml"
    file.write_text(text)
    return read_device(file)


@pytest.mark.parametrize("name", sorted(DEVICES))
def test_every_shipped_profile_is_chosen_for_its_device(tmp_path: Path, name: str) -> None:
    machine = device(tmp_path, DEVICES[name])
    matches = [match_profile(profile, machine) for profile in list_profiles()]
    best = best_match(matches)

    assert best is not None
    assert best.profile.id == name
    assert all(match.reason for match in matches)
    assert [match.profile.id for match in matches if match.points == best.points] == [name]


def test_every_shipped_profile_has_a_device_to_be_tried_on() -> None:
    assert {profile.id for profile in list_profiles()} == set(DEVICES)


@pytest.mark.parametrize(
    ("rule", "points", "reason"),
    [
        (Rule(), 0, "it suits every machine"),
        (Rule(arch=("x86_64", "aarch64")), 1, "the architecture is aarch64"),
        (Rule(arch=("x86_64",)), -1, "the architecture is aarch64, not x86_64"),
        (Rule(board_regex="^My"), 16, "the board 'My Board' matches '^My'"),
        (Rule(board_regex="Other"), -1, "the board 'My Board' does not match 'Other'"),
        (Rule(cpu_regex="A7[68]", arch=("aarch64",)), 9, "the processor 'Cortex-A76' matches 'A7[68]'"),
        (Rule(cpu_regex="EPYC"), -1, "the processor 'Cortex-A76' does not match 'EPYC'"),
        (Rule(cpu_flags=("asimd", "asimddp")), 2, "it has asimd, asimddp"),
        (Rule(cpu_flags=("asimd", "i8mm", "sve")), -1, "the processor lacks i8mm, sve"),
        (Rule(compatible=("maker,b*",)), 32, "the device tree says maker,board-2"),
        (Rule(compatible=("maker,b", "other")), -1, "says maker,board-2, chip, not maker,b or other"),
        (Rule(min_memory_mib=8192, max_memory_mib=8192), 1, "memory is 8192 MiB"),
        (Rule(min_memory_mib=8193), -1, "memory is 8192 MiB, less than 8193"),
        (Rule(max_memory_mib=8191), -1, "memory is 8192 MiB, more than 8191"),
        (Rule(gpu_vendor="amd"), -1, "the GPU is of nvidia, not amd"),
        (Rule(gpu_vendor="nvidia", gpu_regex="Small"), 18, "the GPU 'Small' matches 'Small'"),
        (Rule(gpu_regex="Huge"), -1, "does not match 'Huge'"),
        (Rule(compute_capability=("8.6", "8.9")), 4, "its compute capability is 8.9"),
        (Rule(gpu_regex="Small", compute_capability=("8.9",)), -1, "capability is unknown, not 8.9"),
        (Rule(min_gpu_memory_mib=16384), 1, "the GPU's memory is 16384 MiB"),
        (Rule(gpu_regex="Small", max_gpu_memory_mib=1), -1, "the GPU's memory is unknown"),
    ],
)
def test_a_rule_holds_or_says_what_does_not(rule: Rule, points: int, reason: str) -> None:
    gpus = (Gpu("Small", "nvidia"), Gpu("Large", "nvidia", 16 << 30, compute_capability="8.9"))
    machine = replace(MACHINE, compatible=("maker,board-2", "chip"), gpus=gpus)

    match = match_profile(profile(rule), machine)

    assert match.points == points
    assert match.is_match == (points >= 0)
    assert reason in match.reason


def test_what_is_unknown_fulfils_nothing() -> None:
    blank = Machine("x86_64", "", "", 1, (), None, None, "", "")
    for rule, reason in (
        (Rule(compatible=("*",)), "there is no device tree"),
        (Rule(min_memory_mib=0), "memory is unknown"),
        (Rule(gpu_regex=".*"), "no GPU was found"),
        (Rule(board_regex="My"), "no board's name is known"),
    ):
        assert match_profile(profile(rule), blank).reason.startswith(reason)


def test_the_best_of_several_rules_counts() -> None:
    assert match_profile(profile(Rule(arch=("aarch64",)), Rule(board_regex="My")), MACHINE).points == 16
    both = match_profile(profile(Rule(arch=("x86_64",)), Rule(board_regex="Other")), MACHINE)
    assert both.reason == "the architecture is aarch64, not x86_64; the board 'My Board' does not match 'Other'"


def test_a_profile_without_rules_is_taken_by_name_only() -> None:
    assert not match_profile(profile(), MACHINE).is_match


def test_among_equals_a_users_own_profile_wins_and_then_the_first_by_id() -> None:
    rule = Rule(board_regex="My")
    shipped, b, a = profile(rule, name="0", is_shipped=True), profile(rule, name="b"), profile(rule, name="a")
    tried = [match_profile(one, MACHINE) for one in (shipped, b, a)]

    best = best_match(tried)

    assert best is not None
    assert best.profile is a
    assert best_match([]) is None


def test_a_device_file_gives_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    machine = device(
        tmp_path,
        'arch = "x86_64"\ncpu = "A CPU"\nmemory_available_mib = 5\nos = "Linux"\nl4t = "36.4"\n'
        '[[gpus]]\nname = "G"\nvendor = "amd"\nmemory_total_mib = 3\nmemory_free_mib = 2\n'
        'compute_capability = "gfx942"\nis_unified = true\ndriver = "6"\n',
    )
    mib = 1 << 20
    assert machine.gpus == (Gpu("G", "amd", 3 * mib, 2 * mib, "gfx942", True, "6", "file"),)
    assert (machine.cpu, machine.memory_available_bytes, machine.memory_total_bytes) == ("A CPU", 5 * mib, None)
    assert (machine.os, machine.l4t, machine.board, machine.flags) == ("Linux", "36.4", "", ())


def test_a_device_file_with_an_unknown_key_gets_a_hint(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"gpus\[0\]\.memory_mib: unknown key; did you mean"):
        device(tmp_path, 'arch = "x86_64"\n[[gpus]]\nname = "G"\nvendor = "amd"\nmemory_mib = 3\n')
    with pytest.raises(ProfileError, match="arch should be a text, not nothing"):
        device(tmp_path, "cores = 4\n")
