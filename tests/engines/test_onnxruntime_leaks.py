"""Memory, threads and descriptors over many loads and requests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import psutil
import pytest

from edge_vl.engine import ImageEmbeds, LaneOptions, LanguageModel
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit, TextChunk
from edge_vl_onnxruntime import engine as ort_engine
from tests.engines.tiny_models import HIDDEN, TILE

ONE_THREAD = LaneOptions(threads=1)


def ask(language: LanguageModel, num_tokens: int) -> None:
    """One request: a prompt of some length, a fork, a few tokens."""
    cache = language.new_cache()
    values = np.zeros((num_tokens, HIDDEN), np.float32)
    values[:] = np.linspace(0, 1, HIDDEN)
    language.prefill(cache, [TextChunk((1, 2), 0), ImageEmbeds(values, "")])
    fork = cache.fork()
    for token_id in range(3):
        language.decode(fork, token_id)
    fork.close()
    cache.close()


@pytest.mark.parametrize("kind", ["plain", "in-place"])
def test_opening_and_closing_and_mixed_sizes_leak_nothing(models: Callable[[str], ModelSpec], kind: str) -> None:
    process = psutil.Process()
    spec = models(kind)

    def cycle(index: int) -> None:
        language, vision = ort_engine.load_language(spec, ONE_THREAD), ort_engine.load_vision(spec, ONE_THREAD)
        vision.encode(ImageUnit.of(np.full((TILE, TILE, 3), index % 256, np.uint8), "tile"))
        ask(language, 1 + index)
        language.close()
        vision.close()

    for index in range(10):
        cycle(index)
    files, threads, memory = process.num_fds(), process.num_threads(), process.memory_info().rss
    for index in range(50):
        cycle(index)
    assert (process.num_fds(), process.num_threads()) == (files, threads)
    assert process.memory_info().rss - memory < 16 * 2**20
    language = ort_engine.load_language(spec, ONE_THREAD)
    sizes = [int(size) for size in np.random.default_rng(0).integers(1, 200, 600)]
    for size in sizes[:100]:
        ask(language, size)
    memory = process.memory_info().rss
    for size in sizes[100:]:
        ask(language, size)
    assert process.memory_info().rss - memory < 8 * 2**20
    language.close()
