"""`python -m benchmarks`: lists, runs, and prints one JSON object last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks.registry import benchmark_named, benchmarks
from benchmarks.result import Bar, Result

ROOT = Path(__file__).resolve().parents[2]


def pretend(monkeypatch: pytest.MonkeyPatch, result: Result) -> list[bool]:
    """Put one benchmark in the place of all; return what it was called with."""
    calls: list[bool] = []

    def run(quick: bool) -> Result:
        calls.append(quick)
        print("chatter of a library")
        return result

    monkeypatch.setattr(command, "benchmark_named", lambda _: run)
    return calls


KEPT = Result({"wait_ms": Bar(1.5, 2.0)}, [{"size": 64, "wait_ms": 1.5}])


def test_every_benchmark_says_in_one_line_what_it_measures() -> None:
    known = benchmarks()

    assert {"pixels", "startup"} <= set(known)
    assert all(text.endswith(".") and len(text) < 110 for text in known.values()), known


@pytest.mark.parametrize("name", benchmarks())
def test_every_benchmark_can_be_imported(name: str) -> None:
    assert callable(benchmark_named(name))


def test_without_a_name_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(benchmarks())


def test_json_is_one_object_alone_on_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = pretend(monkeypatch, KEPT)

    assert command.main(["pixels", "--quick", "--json"]) == 0

    answer = json.loads(capsys.readouterr().out)
    assert list(answer) == ["name", "machine", "bars", "table"]
    assert answer["name"] == "pixels"
    assert answer["machine"]["cores"] >= 1
    assert answer["bars"] == {"wait_ms": {"value": 1.5, "limit": 2.0, "ok": True}}
    assert answer["table"] == [{"size": 64, "wait_ms": 1.5}]
    assert calls == [True]


def test_a_bar_that_is_not_kept_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, Result({"speedup": Bar(1.2, 1.5, at_least=True)}, []))

    assert command.main(["pixels"]) == 1
    assert "NO" in capsys.readouterr().out


def test_a_value_that_is_not_a_number_keeps_no_bar_and_is_still_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, Result({"wait_ms": Bar(float("nan"), 2.0)}, []))

    assert command.main(["pixels", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["bars"]["wait_ms"] == {"value": None, "limit": 2.0, "ok": False}


def test_people_get_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pretend(monkeypatch, KEPT)

    assert command.main(["pixels"]) == 0

    out = capsys.readouterr().out
    assert "wait_ms" in out
    assert "<= 2" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pixls"], "did you mean 'pixels'"),
        (["zzz"], "known: "),
        (["--json"], "need a NAME"),
        (["--keep", "results"], "--keep needs --all"),
        (["pixels", "--all"], "--all goes with"),
    ],
)
def test_wrong_usage_is_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command.main(arguments)

    assert left.value.code == 2
    assert message in capsys.readouterr().err


def test_all_of_them_run_and_their_objects_are_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "benchmarks", lambda: {"pixels": "Real.", "missing": "Not there."})

    assert command.main(["--all", "--quick", "--keep", str(tmp_path / "results")]) == 1

    assert [file.name for file in (tmp_path / "results").iterdir()] == ["pixels.json"]
    assert json.loads((tmp_path / "results/pixels.json").read_text())["name"] == "pixels"
    assert "failed: missing" in capsys.readouterr().err


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "benchmarks"], cwd=ROOT, capture_output=True, text=True, check=True)

    assert "startup" in done.stdout
