"""Caches in place: forks share buffers until one of them writes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl.engine import Graftable, KVCache, LaneOptions, LanguageModel
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import TextChunk
from edge_vl_onnxruntime import engine as ort_engine
from edge_vl_onnxruntime.kv_cache import SharedKVCache

ONE_THREAD = LaneOptions(threads=1)


@pytest.fixture(scope="module")
def in_place(models: Callable[[str], ModelSpec]) -> Iterator[LanguageModel]:
    language = ort_engine.load_language(models("in-place"), ONE_THREAD)
    yield language
    language.close()


def noise(seed: int, count: int) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(0, 256, count))


def begin(language: LanguageModel, token_ids: tuple[int, ...]) -> KVCache:
    cache = language.new_cache()
    language.prefill(cache, [TextChunk(token_ids, 0)], want_logits=False)
    return cache


def logits_after(language: LanguageModel, token_ids: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the logits after tokens in a cache of their own."""
    logits = language.prefill(language.new_cache(), [TextChunk(token_ids, 0)])
    assert logits is not None
    return logits


def same(found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(found, expected, atol=1e-4)


def buffers(cache: KVCache) -> list[int]:
    """Return where the buffers of a cache are."""
    assert isinstance(cache, SharedKVCache)
    return [value.data_ptr() for value in cache._values]


@pytest.mark.parametrize("first", ["trunk", "fork"])
def test_whoever_writes_first_moves_and_the_other_keeps_its_entries(in_place: LanguageModel, first: str) -> None:
    start = noise(0, 40)
    trunk = begin(in_place, start)
    fork = trunk.fork()
    before = buffers(trunk)
    assert buffers(fork) == before
    writer, other = (trunk, fork) if first == "trunk" else (fork, trunk)
    writer.trim(10)
    same(in_place.decode(writer, 7), logits_after(in_place, (*start[:10], 7)))
    assert buffers(other) == before
    assert not set(buffers(writer)) & set(before)
    same(in_place.decode(other, 9), logits_after(in_place, (*start, 9)))
    assert buffers(other) == before  # nobody else has them any more
    trunk.close()
    fork.close()


@pytest.mark.parametrize("is_closed", [True, False])
def test_the_last_one_with_the_buffers_writes_to_them_in_place(in_place: LanguageModel, is_closed: bool) -> None:
    trunk = begin(in_place, noise(0, 40))
    fork = trunk.fork()
    before = buffers(trunk)
    if is_closed:
        fork.close()
    else:
        del fork
        gc.collect()
    in_place.decode(trunk, 7)
    assert buffers(trunk) == before
    trunk.close()


def test_forks_of_forks_never_see_each_other(in_place: LanguageModel) -> None:
    start = noise(0, 60)
    caches = [begin(in_place, start)]
    caches += [caches[0].fork(), caches[0].fork()]
    caches += [caches[1].fork(), caches[2].fork()]
    written = [start] * len(caches)
    random = np.random.default_rng(1)
    for step in range(60):  # beyond the 64 entries of the first buffers
        place = int(random.integers(len(caches)))
        if step % 7 == 3:
            kept = int(random.integers(20, len(written[place]) + 1))
            caches[place].trim(kept)
            written[place] = written[place][:kept]
        if step % 7 == 5:
            other = int(random.integers(len(caches)))
            caches[other].close()
            caches[other], written[other] = caches[place].fork(), written[place]
        token_id = int(random.integers(256))
        written[place] = (*written[place], token_id)
        same(in_place.decode(caches[place], token_id), logits_after(in_place, written[place]))
    for cache, token_ids in zip(caches, written, strict=True):
        same(in_place.decode(cache, 3), logits_after(in_place, (*token_ids, 3)))
        cache.close()


@pytest.mark.parametrize("kind", ["plain", "in-place"])
def test_a_graft_may_outgrow_the_buffers_and_spares_forks(models: Callable[[str], ModelSpec], kind: str) -> None:
    language = ort_engine.load_language(models(kind), ONE_THREAD)
    start = noise(0, 30)
    donor = begin(language, (*start, *noise(1, 70)))
    cache = begin(language, start)
    fork = cache.fork()
    assert isinstance(cache, Graftable)
    cache.graft(donor, 30, 90)
    same(language.decode(cache, 7), logits_after(language, (*start, *noise(1, 60), 7)))
    same(language.decode(fork, 7), logits_after(language, (*start, 7)))
    twin = donor.fork()
    twin.trim(50)
    assert isinstance(twin, Graftable)
    twin.graft(donor, 50, 100)  # from buffers that it shares
    same(language.decode(twin, 7), logits_after(language, (*start, *noise(1, 70), 7)))
    same(language.decode(donor, 9), logits_after(language, (*start, *noise(1, 70), 9)))
    language.close()


def test_a_cache_of_another_kind_is_refused(models: Callable[[str], ModelSpec], in_place: LanguageModel) -> None:
    plain = ort_engine.load_language(models("plain"), ONE_THREAD)
    cache = begin(in_place, (1, 2))
    assert isinstance(cache, Graftable)
    with pytest.raises(ValueError, match="another language model"):
        cache.graft(begin(plain, (1, 2, 3)), 2, 3)
    assert cache.num_tokens == 2
    plain.close()
