"""How long `import edge_vl` and `edge-vl --help` take."""

from __future__ import annotations

import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

from benchmarks.progress import report
from benchmarks.result import Bar, Result

LIMIT_IMPORT_S = 0.3
LIMIT_HELP_S = 0.6


def run(quick: bool) -> Result:
    """Start fresh processes in turn, so that a busy moment of the machine hits all commands alike."""
    script = Path(sysconfig.get_path("scripts")) / ("edge-vl.exe" if sys.platform == "win32" else "edge-vl")
    commands = {
        'python -c "pass"': [sys.executable, "-c", "pass"],
        'python -c "import numpy, PIL.Image"': [sys.executable, "-c", "import numpy, PIL.Image"],
        'python -c "import edge_vl"': [sys.executable, "-c", "import edge_vl"],
        "edge-vl --help": [str(script), "--help"],
    }
    num_runs = 5 if quick else 21
    times_s: dict[str, list[float]] = {name: [] for name in commands}
    for turn in range(num_runs + 1):
        for name, command in commands.items():
            started_s = time.perf_counter()
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
            if turn:  # the first turn reads the files from disk and writes the byte code
                times_s[name].append(time.perf_counter() - started_s)
        report(f"turn {turn} of {num_runs}")
    medians_s = {name: statistics.median(times) for name, times in times_s.items()}
    return Result(
        bars={
            "import_s": Bar(medians_s['python -c "import edge_vl"'], LIMIT_IMPORT_S),
            "help_s": Bar(medians_s["edge-vl --help"], LIMIT_HELP_S),
        },
        table=[
            {"command": name, "median_s": medians_s[name], "min_s": min(times), "max_s": max(times), "runs": num_runs}
            for name, times in times_s.items()
        ],
    )
