"""List, run and keep benchmarks: `python -m benchmarks [NAME | --all] [--quick] [--json] [--keep FOLDER]`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.progress import report
from benchmarks.registry import benchmark_named, benchmarks
from benchmarks.result import Result

ROOT = Path(__file__).resolve().parent.parent


def main(arguments: list[str] | None = None) -> int:
    """Return 0, 1 when a bar is not kept or a benchmark fails, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Long measurements. No NAME lists them.")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the benchmark to run")
    parser.add_argument("--all", action="store_true", help="run every benchmark, each in a process of its own")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions; shows that it works, proves no bar")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="with --all: write the objects to FOLDER/NAME.json")
    options = parser.parse_args(arguments)
    if options.all:
        if options.name or options.json:
            parser.error("--all goes with --quick and --keep only")
        return _run_all(quick=options.quick, folder=options.keep)
    if options.keep:
        parser.error("--keep needs --all")
    if not options.name:
        if options.quick or options.json:
            parser.error("--quick and --json need a NAME")
        _print_list()
        return 0
    try:
        run = benchmark_named(options.name)
    except KeyError as error:
        parser.error(str(error.args[0]))
    # Whatever a benchmark or a library of its prints must not get between the object and its reader.
    with contextlib.redirect_stdout(sys.stderr):
        result = run(options.quick)
    if options.json:
        print(_as_json(options.name, result))
    else:
        _print_result(options.name, result)
    return 0 if result.ok else 1


def _run_all(*, quick: bool, folder: Path | None) -> int:
    failed = []
    for name in benchmarks():
        report(f"== {name}")
        command = [sys.executable, "-m", "benchmarks", name, "--json", *(["--quick"] if quick else [])]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        lines = done.stdout.splitlines()
        if lines:
            for bar, value in json.loads(lines[-1])["bars"].items():
                report(f"   {bar}: {value['value']} (limit {value['limit']}) {'ok' if value['ok'] else 'NOT KEPT'}")
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{name}.json").write_text(lines[-1] + "\n", encoding="utf-8")
        if done.returncode:
            failed.append(name)
    report(f"failed: {', '.join(failed)}" if failed else "every bar is kept")
    return 1 if failed else 0


def _as_json(name: str, result: Result) -> str:
    from edge_vl.machine import read_machine  # late: the list must not wait for it

    answer = {
        "name": name,
        "machine": dataclasses.asdict(read_machine()),
        "bars": {bar: value.as_json() for bar, value in result.bars.items()},
        "table": [dict(row) for row in result.table],
    }
    return json.dumps(answer, allow_nan=False)


def _print_list() -> None:
    known = benchmarks()
    width = max(map(len, known))
    for name, text in known.items():
        print(f"{name:<{width}}  {text}")


def _print_result(name: str, result: Result) -> None:
    console = Console()
    if result.table:
        rows = Table(title=name)
        for column in result.table[0]:
            rows.add_column(column, overflow="fold")
        for row in result.table:
            rows.add_row(*(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values()))
        console.print(rows)
    if result.bars:
        bars = Table(title="bars")
        for column in ("bar", "value", "limit", "kept"):
            bars.add_column(column)
        for bar, value in result.bars.items():
            sign = ">=" if value.at_least else "<="
            bars.add_row(bar, f"{value.value:.4g}", f"{sign} {value.limit:g}", "yes" if value.ok else "NO")
        console.print(bars)


if __name__ == "__main__":
    sys.exit(main())
