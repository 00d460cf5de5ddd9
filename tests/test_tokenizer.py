"""The tokenizer: plain text stays plain, and every token has its exact bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from edge_vl.engine import Tokenizer as TokenizerProtocol
from edge_vl.errors import ModelError
from edge_vl.model_spec import ModelSpec, read_model_spec
from edge_vl.tokenizer import HFTokenizer
from tests.smolvlm_files import BASE_CONTROLS, MARKERS, make_tokenizer_json, write_model_folder

BUNDLED = Path(__file__).parents[1] / "edge_vl" / "bundled_model"
ODD_TEXTS = (
    "",
    " ",
    "hello",
    "Grüße\n\n 12 画像 😀 👩‍👩‍👧",
    "a\0b",
    "\ufffe\U000f0000",
    "\r\n\t",
    "<",
    "<|",
    "x" * 3000,
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """Write SmolVLM's files with a small tokenizer."""
    return write_model_folder(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="module")
def tokenizer(spec: ModelSpec) -> HFTokenizer:
    """Read that tokenizer."""
    return HFTokenizer(spec)


def written(folder: Path, content: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> HFTokenizer:
    """Read a tokenizer from a JSON object."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(content))
    return HFTokenizer(
        ModelSpec("test", folder, "idefics3", {}, {}, {}, "", file, config if config is not None else {})
    )


def joined(tokenizer: TokenizerProtocol, ids: list[int]) -> bytes:
    """Return the bytes of several tokens."""
    return b"".join(tokenizer.token_bytes(token_id) for token_id in ids)


def byte_fallback_json() -> dict[str, Any]:
    """Write the kind of tokenizer that Llama 2 and Gemma have: U+2581 for a space, and a token for every byte."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        "h",
        "i",
        "\u2581h",
        "\u2581hi",
    ]
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": index, "content": text, "special": True, "lstrip": False, "rstrip": False, "single_word": False,
             "normalized": False}
            for index, text in enumerate(pieces[:3])
        ],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ],
        },
        "model": {
            "type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True,
            "vocab": {piece: index for index, piece in enumerate(pieces)},
            "merges": ["\u2581 h", "\u2581h i"],
        },
    }  # fmt: skip


class TestPlainText:
    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(
            st.one_of(st.text(max_size=8), st.sampled_from([*BASE_CONTROLS, *MARKERS, "<think>", "</think>"])),
            max_size=6,
        )
    )
    def test_no_text_becomes_a_marker_and_no_byte_is_lost(self, tokenizer: HFTokenizer, parts: list[str]) -> None:
        text = "".join(parts)
        ids = tokenizer.encode_text(text)
        assert set(ids).isdisjoint(tokenizer.special_tokens.values())
        assert joined(tokenizer, ids) == text.encode()

    @pytest.mark.parametrize("text", ODD_TEXTS)
    def test_plain_text_gets_the_ids_of_the_whole_tokenizer(
        self, spec: ModelSpec, tokenizer: HFTokenizer, text: str
    ) -> None:
        whole = Tokenizer.from_file(str(spec.tokenizer_file))
        assert tokenizer.encode_text(text) == whole.encode(text, add_special_tokens=False).ids

    def test_every_special_token_alone_is_plain_text(self, tokenizer: HFTokenizer) -> None:
        for marker in tokenizer.special_tokens:
            assert len(tokenizer.encode_text(marker)) > 1

    def test_unpaired_surrogates_are_replaced(self, tokenizer: HFTokenizer) -> None:
        assert joined(tokenizer, tokenizer.encode_text("a\ud800b")) == "a\ufffdb".encode()
        assert joined(tokenizer, tokenizer.encode_text("\ud83d\ude00")) == "😀".encode()

    @pytest.mark.parametrize("kind", ["BPE that takes whole words", "Unigram", "WordLevel"])
    def test_models_that_look_whole_words_up_cannot_be_tricked(self, kind: str, tmp_path: Path) -> None:
        if kind == "Unigram":
            model: Any = models.Unigram([("<unk>", 0.0), ("</s>", 0.0), *((c, -5.0) for c in "<>/s ax")], unk_id=0)
        elif kind == "WordLevel":
            model = models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2}, unk_token="<unk>")
        else:
            model = models.BPE({"<unk>": 0, "</s>": 1, "<": 2, "/": 3, "s": 4, ">": 5, "a": 6}, [], ignore_merges=True)
        content = json.loads(Tokenizer(model).to_str())
        tokenizer = written(tmp_path, content, {"eos_token": "</s>", "unk_token": "<unk>"})
        assert Tokenizer.from_str(json.dumps(content)).encode("</s>").ids == [1]
        for text in ("</s>", "a</s>", "<unk>", "日", "a"):
            assert set(tokenizer.encode_text(text)).isdisjoint({0, 1})
        assert tokenizer.encode_text("a")

    @pytest.mark.parametrize("merges", [["< s", "<s >"], [["<", "s"], ["<s", ">"]]])
    def test_merges_that_end_in_a_control_token_are_left_out(self, merges: list[Any], tmp_path: Path) -> None:
        pieces = ["<", "s", ">", "<s", "<s>"]
        content = json.loads(Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, [])).to_str())
        content["model"]["merges"] = merges
        assert Tokenizer.from_str(json.dumps(content)).encode("<s>").ids == [4]
        assert written(tmp_path, content, {"bos_token": "<s>"}).encode_text("<s>") == [3, 2]

    def test_white_space_among_the_added_tokens_stays_text_with_its_own_id(self, tmp_path: Path) -> None:
        content = make_tokenizer_json()
        first_free = 1 + max(entry["id"] for entry in content["added_tokens"])
        flags = {"special": False, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False}
        content["added_tokens"].append({"id": first_free, "content": "    ", **flags})
        tokenizer = written(tmp_path, content)
        assert first_free in tokenizer.encode_text("a    b")
        assert tokenizer.token_bytes(first_free) == b"    "
        assert "    " not in tokenizer.special_tokens

    def test_a_post_processor_adds_nothing(self, tmp_path: Path) -> None:
        tokenizer = written(tmp_path, byte_fallback_json())
        assert tokenizer.encode_text("") == []
        assert tokenizer.token_bytes(tokenizer.encode_text(" hi")[0]) == b" hi"

    def test_truncation_and_padding_of_the_file_are_ignored(self, tmp_path: Path) -> None:
        content = make_tokenizer_json()
        content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
        content["padding"] = {
            "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 2, "pad_type_id": 0,
            "pad_token": "<|im_end|>",
        }  # fmt: skip
        tokenizer = written(tmp_path, content)
        assert joined(tokenizer, tokenizer.encode_text("a long enough text")) == b"a long enough text"


class TestTokenBytes:
    def test_every_single_byte_has_a_token(self, tokenizer: HFTokenizer) -> None:
        found = {tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)}
        assert {bytes([byte]) for byte in range(256)} <= found

    def test_special_tokens_are_silent_and_other_added_tokens_are_not(self, tokenizer: HFTokenizer) -> None:
        for marker in (*BASE_CONTROLS, *MARKERS):
            assert tokenizer.token_bytes(tokenizer.special_tokens[marker]) == b""
        assert tokenizer.token_bytes(tokenizer.special_tokens["<think>"]) == b"<think>"

    def test_ids_that_no_token_has_are_silent(self, tokenizer: HFTokenizer) -> None:
        for token_id in (tokenizer.vocab_size, 10**9, -1):
            assert tokenizer.token_bytes(token_id) == b""

    def test_byte_fallback_and_the_underline_for_a_space_are_undone(self, tmp_path: Path) -> None:
        tokenizer = written(tmp_path, byte_fallback_json())
        for text in (" hi", "hi", "日本", "😀 hi", "  i"):
            assert joined(tokenizer, tokenizer.encode_text(text)) == text.encode()
        assert tokenizer.token_bytes(3 + 0xE6) == b"\xe6"
        assert tokenizer.token_bytes(1) == b""

    def test_a_decoder_that_is_not_understood_is_refused(self, tmp_path: Path) -> None:
        content = byte_fallback_json() | {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}}
        with pytest.raises(ModelError, match="WordPiece"):
            written(tmp_path, content)


class TestEndOfAnswer:
    @pytest.mark.parametrize(
        ("generation", "config", "wanted"),
        [
            ({"eos_token_id": 7}, {"eos_token_id": 8}, {7}),
            ({"eos_token_id": [7, 9]}, {}, {7, 9}),
            ({}, {"eos_token_id": 8}, {8}),
            ({}, {"text_config": {"eos_token_id": [5]}}, {5}),
            ({}, {}, set()),
        ],
    )
    def test_it_is_looked_for_from_generation_config_to_text_config(
        self, spec: ModelSpec, generation: dict[str, Any], config: dict[str, Any], wanted: set[int]
    ) -> None:
        changed = replace(spec, generation=generation, config=config, tokenizer_config={})
        assert HFTokenizer(changed).eos_token_ids == wanted

    def test_the_tokenizers_own_is_always_among_them(self, spec: ModelSpec) -> None:
        tokenizer = HFTokenizer(replace(spec, generation={"eos_token_id": 2}))
        assert tokenizer.eos_token_ids == {2, tokenizer.special_tokens["<end_of_utterance>"]}

    @pytest.mark.parametrize("value", ["2", 1.5, True, [-1], [None]])
    def test_values_that_are_no_ids_are_refused(self, spec: ModelSpec, value: object) -> None:
        with pytest.raises(ModelError, match="eos_token_id"):
            HFTokenizer(replace(spec, generation={"eos_token_id": value}))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": {"type": "BPE"}}', '{"model": {"vocab": {"a": "x"}}}'])
def test_a_broken_file_is_a_model_error(content: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        HFTokenizer(ModelSpec("test", tmp_path, "idefics3", {}, {}, {}, "", tmp_path / "tokenizer.json", {}))


def test_the_bundled_tokenizer_is_read() -> None:
    tokenizer = HFTokenizer(read_model_spec(BUNDLED))
    assert tokenizer.eos_token_ids == {tokenizer.special_tokens["<end_of_utterance>"]}
    assert tokenizer.vocab_size == 1 + max(tokenizer.special_tokens.values())
    assert joined(tokenizer, tokenizer.encode_text("What is <image>?")) == b"What is <image>?"


@pytest.mark.parametrize("value", [{"a": 1}, [{"a": 1}], [[1]], "x", True])
def test_ends_that_cannot_be_ids_are_refused_whatever_they_are(spec: ModelSpec, value: object) -> None:
    with pytest.raises(ModelError, match="eos_token_id"):
        HFTokenizer(replace(spec, generation={"eos_token_id": value}))


@pytest.mark.parametrize("key", ["additional_special_tokens", "extra_special_tokens"])
@pytest.mark.parametrize("value", [5, True, "x"])
def test_special_tokens_that_are_no_list_are_refused(spec: ModelSpec, key: str, value: object) -> None:
    with pytest.raises(ModelError, match=rf"tokenizer_config\.json: {key}"):
        HFTokenizer(replace(spec, tokenizer_config={**spec.tokenizer_config, key: value}))


def test_a_panic_of_the_library_is_a_model_error(tmp_path: Path) -> None:
    content = make_tokenizer_json()
    content["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    with pytest.raises(ModelError, match=r"tokenizer\.json"):
        written(tmp_path, content)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_a_tokenizer_is_read_passes(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch, interrupt: type[BaseException]
) -> None:
    def interrupted(*_: object) -> None:
        raise interrupt

    monkeypatch.setattr("edge_vl.tokenizer._plain_tokenizer", interrupted)
    with pytest.raises(interrupt):
        HFTokenizer(spec)


def test_a_tokenizer_nested_without_end_is_a_model_error(spec: ModelSpec, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("[" * 200_000)
    with pytest.raises(ModelError, match="not valid JSON"):
        HFTokenizer(replace(spec, tokenizer_file=file))
