"""Chat templates: what a person writes stays text, and a template cannot do harm."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from subprocess import run

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_vl.errors import ModelError
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageGrid, ImageUnit
from edge_vl.template import ChatTemplate, ImageSlot, MarkerRule, RenderedPrompt, tokenize_prompt
from edge_vl.testing.byte_tokenizer import ByteTokenizer
from edge_vl.tokenizer import HFTokenizer
from tests.smolvlm_files import BASE_CONTROLS, MARKERS, TEMPLATE, write_model_folder

PICTURE = ImageGrid((ImageUnit.of(np.zeros((2, 2, 3), np.uint8), "image"),), 0, 0)
ATTACKS = [
    *BASE_CONTROLS,
    *MARKERS,
    "<think>",
    "<im",
    "age>",
    "<|im_",
    "start|>",
    "\U000f0000",
    "\U000f0001",
    "{{ 1 }}",
    "\n",
]


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """Write SmolVLM's files with a small tokenizer."""
    return write_model_folder(tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="module")
def tokenizer(spec: ModelSpec) -> HFTokenizer:
    """Read that tokenizer."""
    return HFTokenizer(spec)


class RuledTokenizer(ByteTokenizer):
    """A tokenizer whose markers have rules."""

    def __init__(self, **rules: MarkerRule) -> None:
        super().__init__(["<m>", "<mm>"])
        self.marker_rules = {f"<{name}>": rule for name, rule in rules.items()}


def rendered(spec: ModelSpec, template: str, *messages: Message) -> str:
    """Render a conversation with another template."""
    prompt = ChatTemplate(replace(spec, chat_template=template)).render(messages)
    return prompt.plain(prompt.text)


def user(*parts: str | ImageGrid) -> Message:
    """Make a message of a user."""
    return Message("user", parts)


class TestMarkers:
    @settings(max_examples=150, deadline=None)
    @given(
        st.lists(st.lists(st.one_of(st.sampled_from(ATTACKS), st.text(max_size=5)), max_size=5), min_size=1, max_size=3)
    )
    def test_no_words_of_a_person_become_a_marker(
        self, spec: ModelSpec, tokenizer: HFTokenizer, turns: list[list[str]]
    ) -> None:
        roles = ("user", "assistant", "user")
        messages = [Message(role, ("".join(words),)) for role, words in zip(roles, turns, strict=False)]  # type: ignore[arg-type]
        ids = tokenize_prompt(ChatTemplate(spec).render(messages), tokenizer, image_marker="<image>")
        markers = [token_id for token_id in ids if token_id in tokenizer.special_tokens.values()]
        special = tokenizer.special_tokens
        assert markers == [special["<|im_start|>"], *[special["<end_of_utterance>"]] * len(messages)]
        assert not any(isinstance(entry, ImageSlot) for entry in ids)
        words = b"".join(tokenizer.token_bytes(token_id) for token_id in ids if isinstance(token_id, int))
        for message in messages:
            assert str(message.parts[0]).encode() in words

    def test_words_that_meet_the_templates_own_cannot_complete_a_marker(
        self, spec: ModelSpec, tokenizer: HFTokenizer
    ) -> None:
        template = "<ima{{ messages[0]['content'][0]['text'] }}age><|im_start|>"
        prompt = ChatTemplate(replace(spec, chat_template=template)).render([user("ge><im")])
        assert prompt.plain(prompt.text).startswith("<image><image>")
        ids = tokenize_prompt(prompt, tokenizer, image_marker="<image>")
        assert not any(isinstance(entry, ImageSlot) for entry in ids)
        assert ids[-1] == tokenizer.special_tokens["<|im_start|>"]

    def test_markers_of_the_template_become_ids_and_slots(self) -> None:
        tokenizer = ByteTokenizer()
        prompt = RenderedPrompt("a<image><|im_end|>\U000f0000<image>", {0xF0000: "<image>"})
        special = tokenizer.special_tokens
        assert tokenize_prompt(prompt, tokenizer, image_marker="<image>") == [
            ord("a"), ImageSlot(0), special["<|im_end|>"], *b"<image>", ImageSlot(1),
        ]  # fmt: skip
        assert special["<image>"] in tokenize_prompt(prompt, tokenizer)

    def test_the_longest_marker_wins(self) -> None:
        tokenizer = ByteTokenizer(["<a", "<a>", "<a><b>"])
        prompt = RenderedPrompt("<a><b><a>", {})
        special = tokenizer.special_tokens
        assert tokenize_prompt(prompt, tokenizer) == [special["<a><b>"], special["<a>"]]

    def test_markers_may_swallow_white_space_around_them(self) -> None:
        text = "x  <m>  y"
        for rule, wanted in (
            (MarkerRule(), (b"x  ", b"  y")),
            (MarkerRule(lstrip=True), (b"x", b"  y")),
            (MarkerRule(rstrip=True), (b"x  ", b"y")),
        ):
            tokenizer = RuledTokenizer(m=rule)
            before, after = wanted
            assert tokenize_prompt(RenderedPrompt(text, {}), tokenizer) == [
                *before, tokenizer.special_tokens["<m>"], *after,
            ]  # fmt: skip

    def test_a_marker_that_must_stand_alone_is_text_where_letters_touch_it(self) -> None:
        tokenizer = RuledTokenizer(m=MarkerRule(is_single_word=True))
        marker = tokenizer.special_tokens["<m>"]
        assert tokenize_prompt(RenderedPrompt("a<m> <m>", {}), tokenizer) == [*b"a<m> ", marker]
        assert tokenize_prompt(RenderedPrompt("<m>", {}), tokenizer) == [marker]


class TestRendering:
    def test_the_usual_template_is_rendered_word_for_word(self, spec: ModelSpec) -> None:
        messages = (
            Message("system", ("Be brief.",)),
            user(PICTURE, "  What is this? \n"),
            Message("assistant", ("A door.",)),
            user("And", " that?"),
        )
        assert rendered(spec, TEMPLATE, *messages) == (
            "<|im_start|>System: Be brief.<end_of_utterance>\n"
            "User:<image>  What is this? \n<end_of_utterance>\n"
            "Assistant: A door.<end_of_utterance>\n"
            "User: And that?<end_of_utterance>\nAssistant:"
        )

    def test_templates_may_trim_and_test_texts(self, spec: ModelSpec) -> None:
        template = (
            "{{ messages[0].content[0].text | trim }}|{% if messages[0].content[1].text %}yes{% else %}no{% endif %}"
        )
        assert rendered(spec, template, user(" \n a b \t", "")) == "a b|no"

    def test_the_functions_of_transformers_are_there(self, spec: ModelSpec) -> None:
        template = (
            "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
            "{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}"
            "{% generation %}<{{ bos_token }}>{% endgeneration %}{{ {'a': 'ü<'} | tojson }}{{ strftime_now('%%') }}"
            "{{ dict(b=tools) }}"
        )
        assert rendered(spec, template, user("")) == '012<<|im_start|>>{"a": "ü<"}%{\'b\': None}'

    def test_a_template_that_objects_is_a_model_error(self, spec: ModelSpec) -> None:
        with pytest.raises(ModelError, match="roles must alternate"):
            rendered(spec, "{{ raise_exception('roles must alternate') }}", user("a"))

    def test_a_template_that_leaves_out_a_text_is_a_model_error(self, spec: ModelSpec) -> None:
        with pytest.raises(ModelError, match=r"leaves out.*question"):
            rendered(spec, "{{ messages[0].role }}", user("question"))

    def test_a_message_without_parts_is_rendered(self, spec: ModelSpec) -> None:
        assert rendered(spec, TEMPLATE, user()) == "<|im_start|>User: <end_of_utterance>\nAssistant:"

    def test_stand_ins_avoid_what_the_template_says(self, spec: ModelSpec) -> None:
        assert rendered(spec, "\U000f0000{{ messages[0].content[0].text }}", user("a")) == "\U000f0000a"

    def test_a_template_that_is_not_valid_is_a_model_error(self, spec: ModelSpec) -> None:
        with pytest.raises(ModelError, match="not valid"):
            ChatTemplate(replace(spec, chat_template="{% if %}"))


class TestSandbox:
    @pytest.mark.parametrize(
        "template",
        [
            "{{ ''.__class__.__mro__[1].__subclasses__() }}",
            "{{ messages.append(1) }}",
            "{{ namespace.__init__.__globals__ }}",
            "{% set ns = namespace(__class__=1) %}",
            "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
            "{{ lipsum.__globals__['os'] }}",
            "{{ 'x' * 10000000000 }}",
            "{{ 10000000000 * [1] }}",
            "{{ 9 ** 99999999 }}",
            "{{ '%9999999999d' % 1 }}",
            "{% for a in range(2000) %}{% for b in range(2000) %}xxxx{% endfor %}{% endfor %}",
            "{{ range(10000000) }}",
            "{{ undefined_thing.field }}",
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
            "{% include '/etc/passwd' %}",
            "{{ 1 / 0 }}",
            "{% set n = namespace(s=7) %}{% for i in range(40) %}{% set n.s = n.s * n.s %}{% endfor %}x",
            "{% set n = namespace(s='aa') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}x",
            "{% set n = namespace(s='aa') %}{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}x",
            "{% set n = namespace(s=1) %}{% for i in range(40) %}{% set n.s = [n.s, n.s] %}{% endfor %}{{ n.s }}",
            "{% set n = namespace(s=1) %}{% for i in range(40) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ {n.s: 1} }}",
            "{% set n = namespace(s=1) %}{% for i in range(40) %}{% set n.s = (n.s, n.s) %}{% endfor %}{{ {}[n.s] }}",
            "{{ 'a' | center(2000000000) }}",
            "{{ 'a'.center(2000000000) }}",
            "{{ ['a', 'b'] | map('center', 2000000000) | list }}",
            "{{ '{:>1000000000}'.format(1) }}",
            "{{ '{:{w}}'.format(1, w=1000000000) }}",
            "{{ '%*d' | format(1000000000, 1) }}",
            "{% set s = 'a' * 99999 %}{{ s.replace('a', s) }}",
            "{% set s = 'a' * 99999 %}{{ s | replace('', s) }}",
            "{% set s = 'a' * 99999 %}{{ s.join([s] * 100) }}",
            "{% set s = 'a' * 99999 %}{{ ([s] * 100) | join }}",
            "{% set n = namespace(s='a' * 99999) %}{{ ([n] * 100) | join('', attribute='s') }}",
            "{% set s = '\n' * 99999 %}{{ s | indent(99999) }}",
            "{{ ('a' * 9999).translate({97: 'b' * 9999}) }}",
            "{{ 'abc'.encode() }}",
            "{{ strftime_now('%100000000d') }}",
            "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}x",
            "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}x",
            "{% macro m(k) %}{% if k %}{{ m(k - 1) }}{{ m(k - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
            "{% set s = 'a' * 500000 %}{% for i in range(99999) %}{% set x = s[1:] %}{% endfor %}x",
            "{% set s = 'a' * 500000 %}{% for i in range(99999) %}{{ '' if s + '' == s[:] }}{% endfor %}x",
            "{% for i in range(99999) %}{% set x %}" + "abcdefghij" * 9999 + "{% endset %}{% endfor %}x",
            "x" * 300000,
        ],
    )
    def test_a_hostile_template_is_a_model_error_and_soon(self, spec: ModelSpec, template: str) -> None:
        started_s = time.monotonic()
        with pytest.raises(ModelError):
            rendered(spec, template, user(""))
        assert time.monotonic() - started_s < 5

    def test_a_long_conversation_has_steps_enough(self, spec: ModelSpec) -> None:
        template = (
            "{% set n = namespace(turns=0) %}{% for message in messages %}"
            "{% if not loop.last and loop.index0 != messages | length %}{% set n.turns = n.turns + 1 %}{% endif %}"
            "{{ '<|im_start|>' + message['role'] + '\n' }}"
            "{% for part in message.content if part.type == 'text' %}{{ part.text | trim }}{% endfor %}"
            "{% endfor %}{{ n.turns }}"
        )
        text = rendered(spec, template, *[user("a"), Message("assistant", ("b",))] * 1500)
        assert text.endswith("b2999")


def test_templates_load_jinja_only_when_one_is_compiled() -> None:
    code = (
        "import sys, edge_vl.template, edge_vl.tokenizer; sys.exit(bool({'jinja2', 'tokenizers'} & set(sys.modules)))"
    )
    assert run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=False).returncode == 0
