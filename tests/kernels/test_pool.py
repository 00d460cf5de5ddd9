"""The thread pool as programs see it; what its tasks see is tested by `make sanitize`, in C++."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge_vl_kernels import available_isas, status
from edge_vl_kernels.library import load

pytestmark = [
    pytest.mark.skipif(not status().compiled, reason="installed without compiled kernels"),
    pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs Linux, which lists a process's threads"),
]


def threads() -> set[str]:
    return {folder.name for folder in Path("/proc/self/task").iterdir()}


@contextmanager
def new_pool(isa: str, num_threads: int) -> Iterator[None]:
    library = load(isa)
    assert library.functions is not None
    pool = library.functions.edge_vl_kernels_pool_new(library.number, num_threads)
    assert pool
    try:
        yield
    finally:
        library.functions.edge_vl_kernels_pool_free(pool)


@pytest.mark.parametrize("isa", available_isas()[1:])
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_the_caller_is_one_of_the_threads_and_the_others_end_with_the_pool(isa: str, num_threads: int) -> None:
    before = threads()

    with new_pool(isa, num_threads):
        ours = threads() - before
        assert len(ours) == num_threads - 1

    deadline_s = time.monotonic() + 5  # a thread that was waited for is listed a moment longer
    while ours & threads() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert not ours & threads()


def test_no_signal_is_delivered_to_a_thread_of_ours() -> None:
    before = threads()

    with new_pool("scalar", 3):
        for thread in threads() - before:
            lines = Path(f"/proc/self/task/{thread}/status").read_text().splitlines()
            blocked = int(next(line for line in lines if line.startswith("SigBlk")).split()[1], 16)
            assert all(blocked & 1 << number - 1 for number in (1, 2, 10, 12, 14, 15))


def test_threads_that_have_nothing_to_do_take_no_time() -> None:
    with new_pool("scalar", 4):
        time.sleep(0.05)
        before_s = time.process_time()
        time.sleep(0.3)
        assert time.process_time() - before_s < 0.1


@pytest.mark.parametrize(("number", "num_threads"), [(99, 1), (-1, 1), (0, 0), (0, -3)])
def test_a_pool_of_what_is_not_there_is_refused(number: int, num_threads: int) -> None:
    functions = load("scalar").functions
    assert functions is not None

    assert functions.edge_vl_kernels_pool_new(number, num_threads) is None


def test_a_pool_that_does_not_exist_may_be_freed() -> None:
    functions = load("scalar").functions
    assert functions is not None

    functions.edge_vl_kernels_pool_free(ctypes.c_void_p(None))


CHILD = """
import os, sys
import numpy as np
from edge_vl_kernels.kv import KVKernels, KVSequence, aligned_page
from edge_vl_kernels.kv_format import CacheFormat, KVGeometry, LayerPrecision, PageFormat

geometry = KVGeometry(num_layers=1, num_query_heads=8, num_kv_heads=4, head_dim=64)
closed, raw = (PageFormat(geometry, (LayerPrecision(name, name),)) for name in ("int8", "f16"))
cache_format = CacheFormat((closed,), raw, 0)
kernels = KVKernels(cache_format, scale=0.125, num_threads=4)
random = np.random.default_rng(0)
queries, keys, values = (random.standard_normal((300, heads, 64), np.float32) for heads in (8, 4, 4))

def attend():
    context = np.empty_like(queries)
    blocks = [aligned_page(closed.nbytes) for _ in range(cache_format.num_closed(300))]
    pages = [aligned_page(raw.nbytes) for _ in range(len(blocks) + 1)]
    step = kernels.step([KVSequence(0, 300, 0, None, blocks, [0] * len(blocks), pages)])
    step.run(0, kernels.rows(queries, keys, values, context))
    return context

expected = attend()
child = os.fork()
if child == 0:
    is_same = np.array_equal(attend(), expected)
    kernels.close()
    os._exit(0 if is_same else 1)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert np.array_equal(attend(), expected)
sys.exit(status)
"""


def test_a_forked_child_computes_the_same_alone() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CHILD], timeout=60, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
