"""Memory that a language lane takes once it is loaded, measured in a process of its own.

`python -m benchmarks.decode_memory FOLDER DTYPE ATTENTION` prints the bytes by which resident memory has grown after
loading and a few tokens, mapped files included, over what the process had after loading and closing the same lane of
the bundled model, whose libraries and tokenizer are then there. What cutting a graph for the first time takes besides,
mostly the library that reads it (50 MiB), is not meant: what was found out is kept, and later processes do without.
"""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from typing import Literal, cast

__all__ = ["Attention", "loaded_bytes"]

Attention = Literal["cut", "whole"]

_ROOT = Path(__file__).resolve().parent.parent
_CONTEXT_LENGTH = 1024
_NUM_TOKENS = 3


def loaded_bytes(folder: Path, dtype: str, attention: Attention) -> int:
    """Return what a language lane with one thread takes.

    Args:
        folder: of the model.
        dtype: of its graph.
        attention: whether the graph is cut; see `edge_vl.engine.LaneOptions`.
    """
    command = [sys.executable, "-m", "benchmarks.decode_memory", str(folder), dtype, attention]
    subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)  # cuts where that is new
    done = subprocess.run(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[-1])


def _resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this kernel does not tell VmRSS; the benchmark needs Linux")


def _measure(folder: Path, dtype: str, attention: Attention) -> int:
    from edge_vl.engine import LaneOptions
    from edge_vl.models import find_model
    from edge_vl_onnxruntime.engine import engine
    from edge_vl_onnxruntime.session import return_freed_memory

    engine.load_language(find_model("bundled"), LaneOptions(threads=1)).close()
    gc.collect()
    return_freed_memory()
    before = _resident_bytes()
    options = LaneOptions(dtype=dtype, threads=1, context_length=_CONTEXT_LENGTH, attention=attention)
    language = engine.load_language(find_model(folder), options)
    cache = language.new_cache()
    for token_id in range(1, 1 + _NUM_TOKENS):
        language.decode(cache, token_id)
    gc.collect()
    return_freed_memory()
    return _resident_bytes() - before


if __name__ == "__main__":
    print(_measure(Path(sys.argv[1]), sys.argv[2], cast("Attention", sys.argv[3])))
