"""Memory, descriptors, the log, and the end of the interpreter."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from edge_vl import Runtime
from edge_vl.engine import ImageEmbeds, LaneOptions, LanguageModel
from edge_vl.errors import ModelError
from edge_vl.models import find_model
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl_llama_cpp import engine as llama_engine
from edge_vl_llama_cpp.library import open_library
from tests.engines.tiny_gguf import write_text_model

ONE_THREAD = LaneOptions(threads=1)


def ask(language: LanguageModel, num_tokens: int) -> None:
    """One request: a prompt of some length, a fork, a few tokens."""
    cache = language.new_cache()
    values = np.zeros((num_tokens, language.spec.hidden_size), np.float32)
    values[:] = np.linspace(0, 1, language.spec.hidden_size)
    language.prefill(cache, [TextChunk((1, 2), 0), ImageEmbeds(values, "")])
    fork = cache.fork()
    for token_id in range(3):
        language.decode(fork, token_id)
    fork.close()
    cache.close()


def test_opening_and_closing_and_mixed_sizes_leak_nothing() -> None:
    process, spec = psutil.Process(), find_model("bundled")

    def cycle(index: int) -> None:
        language, vision = llama_engine.load_language(spec, ONE_THREAD), llama_engine.load_vision(spec, ONE_THREAD)
        vision.encode(ImageUnit.of(np.full((64, 64, 3), index % 256, np.uint8), "tile"))
        ask(language, 1 + index % 200)
        language.close()
        vision.close()

    for index in range(30):
        cycle(index)
    files, threads, memory = process.num_fds(), process.num_threads(), process.memory_info().rss
    for index in range(170):
        cycle(index)
    assert (process.num_fds(), process.num_threads()) == (files, threads)
    assert process.memory_info().rss - memory < 16 * 2**20
    language = llama_engine.load_language(spec, ONE_THREAD)
    sizes = [int(size) for size in np.random.default_rng(0).integers(1, 200, 600)]
    for size in sizes[:100]:
        ask(language, size)
    memory = process.memory_info().rss
    for size in sizes[100:]:
        ask(language, size)
    assert process.memory_info().rss - memory < 8 * 2**20
    language.close()


def test_failed_loads_leak_nothing(tmp_path: Path) -> None:
    process, spec = psutil.Process(), write_text_model(tmp_path)
    file = next(tmp_path.glob("*.gguf"))
    file.write_bytes(file.read_bytes().replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xp.weight"))
    for index in range(60):
        with pytest.raises(ModelError):
            llama_engine.load_language(spec, ONE_THREAD)
        if index == 10:
            files, memory = process.num_fds(), process.memory_info().rss
    assert process.num_fds() == files
    assert process.memory_info().rss - memory < 8 * 2**20


def log_callback() -> int:
    """Return the address of the function that llama.cpp logs with."""
    llama = open_library().llama
    callback, data = llama.llama_log_callback(), ctypes.c_void_p()
    llama.llama_log_get(ctypes.byref(callback), ctypes.byref(data))
    return ctypes.cast(callback, ctypes.c_void_p).value or 0


def test_no_python_function_listens_to_the_log_while_a_model_works() -> None:
    llama = open_library().llama
    native = ctypes.cast(llama.llama_supports_mmap, ctypes.c_void_p).value
    assert log_callback() == native
    language = llama_engine.load_language(find_model("bundled"), ONE_THREAD)
    assert log_callback() == native
    with open_library().log.collect():
        assert log_callback() != native
    assert log_callback() == native
    language.close()


def test_errors_of_one_thread_are_not_heard_by_another(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.gguf").encode()
    library = open_library()
    heard: dict[int, list[str]] = {}

    def listen(number: int) -> None:
        with library.log.collect() as lines:
            if number % 2:
                library.llama.llama_model_load_from_file(missing, library.llama.llama_model_default_params())
            heard[number] = lines

    threads = [threading.Thread(target=listen, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(bool(lines) == bool(number % 2) for number, lines in heard.items())
    with library.log.collect() as outer:
        with library.log.collect() as inner:
            library.llama.llama_model_load_from_file(missing, library.llama.llama_model_default_params())
        assert inner
        assert not outer


PROGRAM = """
import numpy as np
from edge_vl.engine import LaneOptions
from edge_vl.frame import Frame
from edge_vl.models import find_model
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl_llama_cpp import engine
spec = find_model({model!r})
options = LaneOptions(threads=2)
vision, language = engine.load_vision(spec, options), engine.load_language(spec, options)
cache = language.new_cache()
language.prefill(cache, [TextChunk((5, 6, 7), 0)])
language.decode(cache, 8)
if hasattr(vision, "cut"):
    grid = vision.cut(Frame(np.zeros((50, 90, 3), np.uint8), 0.0, 0.0))
    vision.encode(grid.units[0])
else:
    vision.encode(ImageUnit.of(np.zeros((64, 64, 3), np.uint8), "tile"))
{ending}
print("end")
"""


@pytest.mark.parametrize(
    "ending", ["", "cache.close(); language.close(); vision.close()", "del language, vision, cache"]
)
@pytest.mark.parametrize("bare", [False, True])
def test_a_program_ends_quietly_whatever_it_has_closed(tmp_path: Path, ending: str, bare: bool) -> None:
    if bare:
        for file in (find_model("bundled").path / "gguf").glob("*.gguf"):
            (tmp_path / file.name).symlink_to(file)
    program = PROGRAM.format(model=str(tmp_path) if bare else "bundled", ending=ending)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_a_conversation_that_the_collector_finds_in_a_cycle_gives_its_sequence_back_once() -> None:
    with Runtime.open(vision_engine="llama_cpp", language_engine="llama_cpp", threads=1) as runtime:
        for _ in range(3):
            conversation: Any = runtime.conversation()
            conversation.ask("What is at the top left?", max_tokens=2)
            conversation.itself = conversation
            del conversation
            gc.collect()
            one, other = runtime.conversation(), runtime.conversation()
            one.ask("What is at the top left?", max_tokens=2)
            other.ask("How many objects are there?", max_tokens=2)
            caches: list[Any] = [talk.resident.cache for talk in (one, other)]
            assert caches[0].sequence != caches[1].sequence
