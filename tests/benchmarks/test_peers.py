"""What the first token is compared with, asked with the bundled model's own files."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Iterator

import pytest

from benchmarks.peers import Mtmd, Xllamacpp, gguf_pair, messages
from benchmarks.soft_pictures import as_png, soft_picture
from edge_vl.families import family_of
from edge_vl.message import Message
from edge_vl.models import find_model
from edge_vl.pictures import load_picture
from edge_vl.tokenizer import HFTokenizer

BUNDLED = find_model("bundled")
QUESTION = "What is at the top left?"
PNG = as_png(soft_picture(0))


@pytest.fixture(scope="module")
def xllamacpp() -> Iterator[Xllamacpp]:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp is not installed")
    peer = Xllamacpp(*gguf_pair(BUNDLED.path, "f16", "f16"), threads=1, context_length=2048)
    yield peer
    peer.close()


def our_prompt_tokens(question: str) -> int:
    family = family_of(BUNDLED)
    assert family is not None
    grid = family.tile(load_picture(PNG))
    return family.layout([Message("user", (grid, question))], HFTokenizer(BUNDLED)).num_tokens


def test_a_conversation_has_the_picture_before_its_first_question() -> None:
    prompt = messages(PNG, "And now?", [("What is it?", "a dog")])

    assert [turn["role"] for turn in prompt] == ["user", "assistant", "user"]
    assert [part["type"] for turn in prompt for part in turn["content"]] == ["image_url", "text", "text", "text"]
    assert [part["text"] for turn in prompt for part in turn["content"] if "text" in part] == [
        "What is it?",
        "a dog",
        "And now?",
    ]
    head, _, data = prompt[0]["content"][0]["image_url"]["url"].partition(",")
    assert (head, base64.b64decode(data)) == ("data:image/png;base64", PNG)


def test_a_folder_without_the_wanted_files_is_refused_by_name() -> None:
    with pytest.raises(FileNotFoundError, match=r"q8_0 and one mmproj file in f16, found .*mmproj-edge-vl"):
        gguf_pair(BUNDLED.path, "q8_0", "f16")


def test_the_server_keeps_what_is_equal_and_says_how_much(xllamacpp: Xllamacpp) -> None:
    fresh = as_png(soft_picture(1))

    cold = xllamacpp.first_token(messages(fresh, QUESTION))
    warm = xllamacpp.first_token(messages(fresh, "What is at the bottom right?"))
    other = xllamacpp.first_token(messages(as_png(soft_picture(2)), QUESTION))

    assert min(cold.first_token_s, warm.first_token_s) > 0
    assert cold.kept_tokens < 10 < 80 < warm.kept_tokens < warm.prompt_tokens
    assert other.kept_tokens < 10


def test_the_server_answers_in_several_tokens_and_continues_from_its_answer(xllamacpp: Xllamacpp) -> None:
    answer = xllamacpp.ask(messages(PNG, QUESTION), max_tokens=8)
    next_turn = xllamacpp.first_token(messages(PNG, "How many?", [(QUESTION, answer.text)]))

    assert answer.text.strip()
    assert next_turn.prompt_tokens > answer.prompt_tokens
    assert next_turn.kept_tokens > 80


def test_both_peers_are_asked_what_edge_vl_asks(xllamacpp: Xllamacpp) -> None:
    ours = our_prompt_tokens(QUESTION)
    mtmd = Mtmd(*gguf_pair(BUNDLED.path, "f16", "f16"), threads=1, context_length=2048)
    try:
        theirs = [peer.first_token(messages(PNG, QUESTION)).prompt_tokens for peer in (mtmd, xllamacpp)]
    finally:
        mtmd.close()

    # Their picture is a text for the chat template, which then writes a space before it.
    assert theirs == [ours + 1, ours + 1]


def test_an_error_of_the_server_is_told_and_it_lives_on(xllamacpp: Xllamacpp) -> None:
    with pytest.raises(RuntimeError, match="Failed to load image"):
        xllamacpp.first_token(messages(b"no picture", QUESTION))

    assert xllamacpp.first_token(messages(PNG, QUESTION)).prompt_tokens > 80


@pytest.mark.skipif(importlib.util.find_spec("xllamacpp") is None, reason="xllamacpp is not installed")
def test_a_process_that_ends_takes_what_it_said_last_into_the_error() -> None:
    text, mmproj = gguf_pair(BUNDLED.path, "f16", "f16")

    with pytest.raises(RuntimeError, match=r"(?s)has ended: .*Failed to init server"):
        Xllamacpp(text.with_name("missing.gguf"), mmproj, threads=1, context_length=2048)


def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(RuntimeError, match="pip install xllamacpp"):
        Xllamacpp(*gguf_pair(BUNDLED.path, "f16", "f16"), threads=1, context_length=2048)
