from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import threading
from edge_vl.gateway.large_blocks import return_large_blocks
assert return_large_blocks()
from pathlib import Path
import numpy as np

def resident_mib():
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmRSS"))
    return int(line.split()[1]) >> 10

def work():
    for _ in range(3):
        blocks = [np.ones(20 << 20, np.uint8) for _ in range(8)]
        del blocks
    done.wait()

np.ones(30 << 20, np.uint8)
before = resident_mib()
done = threading.Barrier(5)
threads = [threading.Thread(target=work) for _ in range(4)]
for thread in threads:
    thread.start()
import time
while done.n_waiting < 4:
    time.sleep(0.01)
print(resident_mib() - before)
done.wait()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a C library of Linux")
def test_threads_that_are_idle_hold_no_large_blocks() -> None:
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert int(found.stdout) < 40, "MiB; each thread had 160 a moment ago"
