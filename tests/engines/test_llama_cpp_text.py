"""Text models: a real one that chats, and one that keeps states which cannot be trimmed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_vl.engine import Engine, KVCache, LaneOptions, LanguageModel
from edge_vl.errors import CacheFull, RequestError
from edge_vl.families.native import Native
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec, read_model_spec
from edge_vl.plan import TextChunk
from edge_vl.testing import EngineContract
from edge_vl_llama_cpp import engine as llama_engine
from tests.engines.test_llama_cpp import CELLS, fill
from tests.engines.test_llama_cpp_tokenizer import smollm2_file
from tests.engines.tiny_gguf import write_text_model

ONE_THREAD = LaneOptions(threads=1)


class TestTinyTextModel(EngineContract):
    has_vision = False
    tolerance = CELLS

    @pytest.fixture(autouse=True)
    def _write(self, tmp_path: Path) -> None:
        self._spec = write_text_model(tmp_path, "llama")

    def engine(self) -> Engine:
        return llama_engine

    def model(self) -> ModelSpec:
        return self._spec


class TestTinyGemma(TestTinyTextModel):
    @pytest.fixture(autouse=True)
    def _write(self, tmp_path: Path) -> None:
        self._spec = write_text_model(tmp_path, "gemma3", add_bos=True)


class TestTinyQwen(TestTinyTextModel):
    @pytest.fixture(autouse=True)
    def _write(self, tmp_path: Path) -> None:
        self._spec = write_text_model(tmp_path, "qwen2vl")


@pytest.fixture(scope="module")
def smollm2() -> Iterator[tuple[ModelSpec, LanguageModel]]:
    spec = read_model_spec(smollm2_file())
    language = llama_engine.load_language(spec, LaneOptions(threads=1, context_length=512))
    yield spec, language
    language.close()


def prefill(language: LanguageModel, cache: KVCache, token_ids: tuple[int, ...]) -> NDArray[np.float32]:
    """Append text and return its logits."""
    logits = language.prefill(cache, [TextChunk(token_ids, cache.next_position)])
    assert logits is not None
    return logits


def answer(language: LanguageModel, token_ids: tuple[int, ...], most: int) -> list[int]:
    """Answer greedily."""
    cache = language.new_cache()
    logits = language.prefill(cache, [TextChunk(token_ids, 0)])
    found: list[int] = []
    while len(found) < most:
        assert logits is not None
        token_id = int(logits.argmax())
        if token_id in language.tokenizer.eos_token_ids:
            break
        found.append(token_id)
        logits = language.decode(cache, token_id)
    cache.close()
    return found


def test_a_real_model_chats_as_llama_cpp_pythons_own_class_does(smollm2: tuple[ModelSpec, LanguageModel]) -> None:
    from llama_cpp import Llama

    spec, language = smollm2
    own: Any = Llama(str(spec.file), n_ctx=512, n_threads=1, flash_attn=True, verbose=False)
    family = Native(spec, None, "any")
    for question in ("What is two plus two?", "Name a fruit.", "Say <|im_end|> twice."):
        (chunk,) = family.layout([Message("user", (question,))], language.tokenizer).chunks
        assert isinstance(chunk, TextChunk)
        ids = answer(language, chunk.token_ids, 16)
        own.reset()
        expected: list[int] = []
        for token_id in own.generate(list(chunk.token_ids), temp=0.0):
            if token_id in language.tokenizer.eos_token_ids or len(expected) == 16:
                break
            expected.append(int(token_id))
        assert ids == expected
        assert b"".join(language.tokenizer.token_bytes(token_id) for token_id in ids).decode().strip()
    own.close()


def test_four_bit_weights_name_their_precision(smollm2: tuple[ModelSpec, LanguageModel]) -> None:
    spec, language = smollm2
    assert llama_engine.describe(spec)["language_dtypes"] == ["q4_1"]
    assert (language.spec.dtype, language.spec.num_layers, language.spec.num_kv_heads) == ("q4_1", 30, 3)
    assert (language.spec.hidden_size, language.spec.head_dim) == (576, 64)


def test_heads_that_are_no_whole_blocks_have_no_quantised_cache(tmp_path: Path) -> None:
    spec = write_text_model(tmp_path, "llama")
    with pytest.raises(RequestError, match="heads of 16"):
        llama_engine.load_language(spec, LaneOptions(threads=1, kv=parse_kv_policy("int8")))


@pytest.fixture(scope="module")
def stateful(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    """A model with a convolution, whose state the next token changes for good."""
    spec = write_text_model(tmp_path_factory.mktemp("lfm2"), "lfm2")
    language = llama_engine.load_language(spec, LaneOptions(threads=1, context_length=1024))
    yield language
    language.close()


def test_states_can_only_be_forgotten_whole(stateful: LanguageModel) -> None:
    assert stateful.spec.rollback == "whole"
    cache = stateful.new_cache()
    expected = prefill(stateful, cache, (20, 30, 40))
    cache.trim(3)
    with pytest.raises(ValueError, match="only all of them"):
        cache.trim(2)
    assert cache.num_tokens == 3
    cache.trim(0)
    np.testing.assert_allclose(prefill(stateful, cache, (20, 30, 40)), expected, atol=1e-3)
    cache.close()


def test_forks_have_states_of_their_own(stateful: LanguageModel) -> None:
    trunk = stateful.new_cache()
    stateful.prefill(trunk, [TextChunk((20, 30, 40), 0)])
    fork = trunk.fork()
    stateful.decode(fork, 50)
    found = stateful.decode(trunk, 60)
    fresh = stateful.new_cache()
    np.testing.assert_allclose(prefill(stateful, fresh, (20, 30, 40, 60)), found, atol=2e-2)
    for cache in (trunk, fork, fresh):
        cache.close()


def test_a_failed_run_gives_the_state_from_before_back(stateful: LanguageModel) -> None:
    full, cache, fresh = stateful.new_cache(), stateful.new_cache(), stateful.new_cache()
    prefill(stateful, fresh, (20, 30, 40))
    expected = stateful.decode(fresh, 60)
    fresh.close()
    stateful.prefill(full, [TextChunk(tuple([50] * 400), 0)], want_logits=False)
    stateful.prefill(cache, [TextChunk((20, 30, 40), 0)])
    for _ in range(3):
        with pytest.raises(CacheFull):  # the first 512 find room, the rest does not
            stateful.prefill(cache, [TextChunk(tuple([70] * 800), 3)])
        assert cache.num_tokens == 3
    np.testing.assert_allclose(stateful.decode(cache, 60), expected, atol=2e-2)
    full.close()
    cache.close()


def test_there_are_fewer_caches_with_states_and_each_can_still_be_filled(stateful: LanguageModel) -> None:
    caches: list[KVCache] = []
    with pytest.raises(CacheFull):
        fill(stateful, caches)
    for cache in caches:
        stateful.prefill(cache, [TextChunk((20, 30), 0)], want_logits=False)
        stateful.prefill(cache, [TextChunk((40, 50), 2)])
        stateful.decode(cache, 60)
    for cache in caches:
        cache.close()
