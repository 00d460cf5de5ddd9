"""Caches that share the memory of one context: entries of others, and entries behind a sliding window."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl.engine import Graftable, ImageEmbeds, KVCache, LaneOptions, LanguageModel, Prefillable
from edge_vl.errors import CacheFull
from edge_vl.models import find_model
from edge_vl.plan import TextChunk
from edge_vl_llama_cpp import engine as llama_engine
from tests.engines.test_llama_cpp import CELLS, distance, fill
from tests.engines.tiny_gguf import HIDDEN, write_text_model

BEFORE, BEHIND = (20, 30, 40, 50), (60, 70)
WINDOW = 64
ROWS, COLUMNS = 3, 5


def load(folder: Path, architecture: str, *, context_length: int = 1024, window: int = 0) -> LanguageModel:
    spec = write_text_model(folder, architecture, window=window)
    return llama_engine.load_language(spec, LaneOptions(threads=1, context_length=context_length))


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    """A model whose picture tokens share positions."""
    language = load(tmp_path_factory.mktemp("qwen2vl"), "qwen2vl")
    yield language
    language.close()


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    """A model whose layers see no further back than a window."""
    language = load(tmp_path_factory.mktemp("gemma3"), "gemma3", window=WINDOW)
    yield language
    language.close()


def picture(seed: int = 0) -> ImageEmbeds:
    """Return 15 tokens that span 5 positions."""
    values = np.random.default_rng(seed).standard_normal((ROWS * COLUMNS, HIDDEN)).astype(np.float32)
    rows, columns = np.divmod(np.arange(ROWS * COLUMNS, dtype=np.int32), COLUMNS)
    return ImageEmbeds(values, f"picture {seed}", np.stack([np.zeros_like(rows), rows, columns], axis=1), COLUMNS)


def logits_of(language: LanguageModel, cache: KVCache, run: list[Prefillable]) -> NDArray[np.float32]:
    logits = language.prefill(cache, run)
    assert logits is not None
    return logits


def fresh_logits(language: LanguageModel, run: list[Prefillable]) -> NDArray[np.float32]:
    """Return the logits after a run in a cache of its own."""
    cache = language.new_cache()
    logits = logits_of(language, cache, run)
    cache.close()
    return logits


def graft(cache: KVCache, donor: KVCache, start: int, stop: int) -> None:
    assert isinstance(cache, Graftable)
    cache.graft(donor, start, stop)


def noise(seed: int, count: int) -> tuple[int, ...]:
    return tuple(int(token) for token in np.random.default_rng(seed).integers(5, 250, count))


def test_a_grafted_picture_counts_its_entries_and_its_positions(qwen: LanguageModel) -> None:
    donor, cache = qwen.new_cache(), qwen.new_cache()
    run: list[Prefillable] = [TextChunk(BEFORE, 0), picture(), TextChunk(BEHIND, 9)]
    expected = logits_of(qwen, donor, run)
    qwen.prefill(cache, run[:1], want_logits=False)
    graft(cache, donor, 4, 19)
    assert (cache.num_tokens, cache.next_position) == (19, 9)
    assert distance(logits_of(qwen, cache, run[2:]), expected) < CELLS
    with pytest.raises(ValueError, match="tear"):
        cache.trim(10)
    cache.trim(4)
    graft(cache, donor, 4, 20)
    graft(cache, donor, 20, 21)
    assert (cache.num_tokens, cache.next_position) == (21, 11)
    assert distance(qwen.decode(cache, 80), fresh_logits(qwen, [*run, TextChunk((80,), 11)])) < CELLS
    donor.close()
    cache.close()


def test_a_picture_behind_a_changed_one_is_that_of_the_donor(qwen: LanguageModel) -> None:
    donor, cache = qwen.new_cache(), qwen.new_cache()
    qwen.prefill(donor, [TextChunk(BEFORE, 0), picture(0), picture(1)], want_logits=False)
    changed: list[Prefillable] = [TextChunk(BEFORE, 0), picture(2)]
    qwen.prefill(cache, changed, want_logits=False)
    graft(cache, donor, 19, 34)
    assert (cache.num_tokens, cache.next_position) == (34, 14)
    behind: list[Prefillable] = [TextChunk(BEHIND, 14)]
    found = logits_of(qwen, cache, behind)
    of_donor = logits_of(qwen, donor, behind)
    assert distance(found, of_donor) > 0.01  # the changed picture is in
    computed = fresh_logits(qwen, [*changed, picture(1), *behind])
    assert CELLS < distance(found, computed) < distance(of_donor, computed)  # the other one has not seen it
    donor.close()
    cache.close()


def test_a_picture_is_not_torn_apart_and_positions_must_agree(qwen: LanguageModel) -> None:
    donor, cache, text = (qwen.new_cache() for _ in range(3))
    qwen.prefill(donor, [TextChunk(BEFORE, 0), picture(), TextChunk(BEHIND, 9)], want_logits=False)
    qwen.prefill(cache, [TextChunk(BEFORE, 0)], want_logits=False)
    qwen.prefill(text, [TextChunk(noise(0, 19), 0)], want_logits=False)
    with pytest.raises(ValueError, match="tear"):
        graft(cache, donor, 4, 10)
    with pytest.raises(ValueError, match="position 9 in the donor and would be at 19"):
        graft(text, donor, 19, 21)
    qwen.prefill(cache, [TextChunk(noise(1, 3), 4)], want_logits=False)
    with pytest.raises(ValueError, match="tear"):
        graft(cache, donor, 7, 19)
    assert [one.num_tokens for one in (donor, cache, text)] == [21, 7, 19]
    for one in (donor, cache, text):
        assert np.isfinite(qwen.decode(one, 80)).all()
        one.close()


def test_grafted_entries_take_no_room(tmp_path: Path) -> None:
    language = load(tmp_path, "llama", context_length=256)
    donor, cache = language.new_cache(), language.new_cache()
    language.prefill(donor, [TextChunk(noise(0, 200), 0)], want_logits=False)
    language.prefill(cache, [TextChunk(noise(1, 10), 0)], want_logits=False)
    graft(cache, donor, 10, 200)
    language.prefill(cache, [TextChunk(noise(2, 46), 200)], want_logits=False)
    with pytest.raises(CacheFull):
        language.decode(cache, 60)
    donor.trim(0)  # ten of its entries are nobody else's
    language.prefill(cache, [TextChunk(noise(3, 10), 246)], want_logits=False)
    assert cache.num_tokens == 256
    language.close()


def test_a_model_with_states_takes_no_entries(tmp_path: Path) -> None:
    language = load(tmp_path, "lfm2")
    donor, cache = language.new_cache(), language.new_cache()
    language.prefill(donor, [TextChunk(BEFORE, 0)], want_logits=False)
    with pytest.raises(ValueError, match="state"):
        graft(cache, donor, 0, 4)
    assert cache.num_tokens == 0
    assert np.isfinite(language.decode(cache, 60)).all()
    language.close()


def test_what_a_sliding_window_has_left_is_there_after_a_trim(windowed: LanguageModel) -> None:
    expected = {kept: fresh_logits(windowed, [TextChunk((*noise(1, 398)[:kept], 60), 0)]) for kept in (390, 50)}
    hole, long = windowed.new_cache(), windowed.new_cache()
    windowed.prefill(hole, [TextChunk(noise(0, 300), 0)], want_logits=False)
    windowed.prefill(long, [TextChunk(noise(1, 398), 0)], want_logits=False)
    for token_id in BEHIND:
        windowed.decode(long, token_id)
    hole.close()
    filling = windowed.new_cache()  # finds no place of this length but where the window has left
    windowed.prefill(filling, [TextChunk(noise(2, 500), 0)], want_logits=False)
    for kept, logits in expected.items():
        fork = long.fork()
        fork.trim(kept)
        assert distance(windowed.decode(fork, 60), logits) < CELLS
        graft(fork, long, kept + 1, 400)
        assert np.isfinite(windowed.decode(fork, 70)).all()
        fork.close()
    long.close()
    filling.close()


def test_caches_of_a_model_with_a_window_give_all_their_room_back(windowed: LanguageModel) -> None:
    for _ in range(3):
        caches: list[KVCache] = []
        with pytest.raises(CacheFull) as caught:
            fill(windowed, caches)
        assert caught.value.num_tokens == 0
        assert len(caches) == 16
        for cache in caches:
            windowed.prefill(cache, [TextChunk(noise(3, 60), 0)], want_logits=False)
            windowed.decode(cache, 60)
        with pytest.raises(CacheFull):
            windowed.prefill(caches[0], [TextChunk(noise(4, 800), 61)], want_logits=False)
        for cache in caches[1:]:
            cache.close()
        windowed.prefill(caches[0], [TextChunk(noise(4, 800), 61)], want_logits=False)
        caches[0].close()


def test_the_bundled_model_says_the_same_behind_a_grafted_picture() -> None:
    language = llama_engine.load_language(find_model("bundled"), LaneOptions(threads=1))
    values = np.random.default_rng(0).standard_normal((16, language.spec.hidden_size)).astype(np.float32)
    run: list[Prefillable] = [TextChunk(BEFORE, 0), ImageEmbeds(values, "plain"), TextChunk(BEHIND, 20)]
    donor, cache = language.new_cache(), language.new_cache()
    expected = logits_of(language, donor, run)
    language.prefill(cache, run[:1], want_logits=False)
    graft(cache, donor, 4, 10)  # tokens of such a picture see only those before them
    graft(cache, donor, 10, 20)
    assert distance(logits_of(language, cache, run[2:]), expected) < CELLS
    language.close()
