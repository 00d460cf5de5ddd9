from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.wall_clock import WallClock, has_compiler

CHILD = """
import datetime, sys, time
for line in sys.stdin:
    began = time.monotonic()
    time.sleep(0.01)
    print(time.time(), datetime.datetime.now().timestamp(), began, flush=True)
"""


@pytest.mark.skipif(not has_compiler(), reason="gcc is not installed")
def test_the_wall_clock_of_a_process_jumps_and_its_other_clock_does_not(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        for shift_s in (0, -3600, 86_400):
            clock.shift(shift_s)
            print(file=child.stdin, flush=True)
            wall_s, date_s, monotonic_s = map(float, child.stdout.readline().split())
            assert wall_s == pytest.approx(time.time() + shift_s, abs=60)
            assert date_s == pytest.approx(time.time() + shift_s, abs=60)
            assert monotonic_s == pytest.approx(time.monotonic(), abs=60)
        child.stdin.close()
