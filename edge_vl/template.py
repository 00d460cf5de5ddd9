"""A model's chat template, rendered so that no text of a person can become a marker."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from edge_vl.engine import Tokenizer
from edge_vl.errors import ModelError, RequestError
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec

__all__ = ["ChatTemplate", "HasMarkerRules", "ImageSlot", "MarkerRule", "RenderedPrompt", "tokenize_prompt"]

_FIRST_STAND_IN = 0xF0000  # two planes for private use: 131,000 texts
_LAST_STAND_IN = 0x10FFFD
_VARIABLE_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class MarkerRule:
    """How a marker treats the text around it.

    Attributes:
        lstrip: it swallows white space before it.
        rstrip: it swallows white space after it.
        is_single_word: it is a marker only where no letter or digit touches it.
    """

    lstrip: bool = False
    rstrip: bool = False
    is_single_word: bool = False


@runtime_checkable
class HasMarkerRules(Protocol):
    """A tokenizer that knows such rules; one that does not is taken to have none."""

    @property
    def marker_rules(self) -> Mapping[str, MarkerRule]:
        """Rules by marker, for markers that have any."""
        ...


@dataclass(frozen=True, slots=True)
class ImageSlot:
    """Where the image tokens of one unit go.

    Attributes:
        index: counts the slots of a prompt from 0.
    """

    index: int


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered template in which every text of a person is still a single stand-in character.

    So whatever looks like a marker in `text` was written by the template.

    Attributes:
        text: the rendered template.
        texts: what the stand-ins stand for, by code point.
    """

    text: str
    texts: Mapping[int, str]

    def replace(self, marker: str, replacements: Sequence[str]) -> RenderedPrompt:
        """Put one replacement after the other where the template wrote a marker.

        Raises:
            ValueError: there are more or fewer markers than replacements.
        """
        pieces = self.text.split(marker)
        if len(pieces) != len(replacements) + 1:
            raise ValueError(f"{len(pieces) - 1} times {marker} for {len(replacements)} pictures")
        joined = [pieces[0]]
        for replacement, piece in zip(replacements, pieces[1:], strict=True):
            joined += (replacement, piece)
        return RenderedPrompt("".join(joined), self.texts)

    def plain(self, piece: str) -> str:
        """Return a piece of the text with the persons' words in it."""
        return piece.translate(self.texts)


class ChatTemplate:
    """A model's chat template. Safe to call from any thread.

    A template sees the beginning and end of a person's text (white space, which many templates trim) and one character
    for all between; what it decides by words inside a text, it decides as if they were not there.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """Compile the template of a model.

        Raises:
            ModelError: it is not a valid template.
        """
        from edge_vl.template_sandbox import compile_template

        self._file = str(spec.path / "chat_template.jinja")
        self._source = spec.chat_template
        self._variables = _token_variables(spec.tokenizer_config)
        try:
            self._render = compile_template(self._source)
        except Exception as error:
            raise ModelError(f"the chat template of {spec.name} is not valid: {error}", file=self._file) from error

    def render(self, messages: Sequence[Message]) -> RenderedPrompt:
        """Render a conversation up to where the model is to answer.

        Raises:
            ModelError: the template fails, renders too much, or leaves out a text.
        """
        stand_ins = _StandIns(self._source)
        conversation = [
            {"role": message.role, "content": [stand_ins.content(part) for part in message.parts or ("",)]}
            for message in messages
        ]
        text = self._rendered(conversation)
        self._check_complete(text, stand_ins)
        return RenderedPrompt(text, stand_ins.texts)

    def render_marked(self, messages: Sequence[Message]) -> tuple[RenderedPrompt, str]:
        """Render a conversation with a marker of our own in place of each picture, whatever the template does for one.

        The content of a message is a string first, which templates that know pictures pass on as it is; where the
        template loses a part of it, it is a list with one text.

        Returns:
            The prompt and the marker.

        Raises:
            ModelError: the template fails, renders too much, or leaves out a text or a picture either way.
        """
        stand_ins = _StandIns(self._source)
        marker = stand_ins.take()
        contents = [
            "".join(stand_ins.content(part)["text"] if isinstance(part, str) else marker for part in message.parts)
            for message in messages
        ]
        num_pictures = sum(content.count(marker) for content in contents)
        trouble: ModelError | None = None
        for content_of in (lambda content: content, lambda content: [{"type": "text", "text": content}]):
            conversation = [
                {"role": message.role, "content": content_of(content)}
                for message, content in zip(messages, contents, strict=True)
            ]
            try:
                text = self._rendered(conversation)
                self._check_complete(text, stand_ins)
            except ModelError as error:
                trouble = trouble or error
                continue
            if text.count(marker) == num_pictures:
                return RenderedPrompt(text, stand_ins.texts), marker
        raise trouble or ModelError("the chat template leaves out a picture of the conversation", file=self._file)

    def _rendered(self, conversation: Sequence[Mapping[str, Any]]) -> str:
        try:
            return self._render(
                {
                    **self._variables,
                    "messages": conversation,
                    "tools": None,
                    "documents": None,
                    "add_generation_prompt": True,
                }
            )
        except Exception as error:  # a template can make Jinja raise anything
            raise ModelError(f"the chat template cannot render this conversation: {error}", file=self._file) from error

    def _check_complete(self, text: str, stand_ins: _StandIns) -> None:
        missing = [words for code, words in stand_ins.texts.items() if chr(code) not in text]
        if missing:
            raise ModelError(
                f"the chat template leaves out a text of the conversation: {missing[0]!r:.80}", file=self._file
            )


def tokenize_prompt(prompt: RenderedPrompt, tokenizer: Tokenizer, *, image_marker: str = "") -> list[int | ImageSlot]:
    """Turn a rendered prompt into ids.

    Markers that the template wrote become their ids, the longest where several begin at the same place. What stands
    between two of them, words of the template and of persons together, is encoded in one go as plain text, which gives
    the ids that transformers gives where persons wrote no markers.

    Args:
        prompt: the rendered prompt.
        tokenizer: of the model.
        image_marker: becomes a slot instead of an id.
    """
    markers = tokenizer.special_tokens
    rules = tokenizer.marker_rules if isinstance(tokenizer, HasMarkerRules) else {}
    longest_first = sorted((marker for marker in {*markers, image_marker} if marker), key=len, reverse=True)
    result: list[int | ImageSlot] = []
    start, num_slots, strips_left = 0, 0, False
    text = prompt.text

    def add_text(end: int, *, strips_right: bool) -> None:
        piece = prompt.plain(text[start:end])
        piece = piece.lstrip() if strips_left else piece
        result.extend(tokenizer.encode_text(piece.rstrip() if strips_right else piece))

    for match in re.finditer("|".join(map(re.escape, longest_first)), text) if longest_first else ():
        rule = rules.get(match[0], MarkerRule())
        if rule.is_single_word and _touches_word(text, match):
            continue
        add_text(match.start(), strips_right=rule.lstrip)
        if match[0] == image_marker:
            result.append(ImageSlot(num_slots))
            num_slots += 1
        else:
            result.append(markers[match[0]])
        start, strips_left = match.end(), rule.rstrip
    add_text(len(text), strips_right=False)
    return result


class _StandIns:
    """Hands out characters that the template does not use."""

    def __init__(self, source: str) -> None:
        self.texts: dict[int, str] = {}
        self._source = source
        self._next = _FIRST_STAND_IN

    def content(self, part: object) -> dict[str, Any]:
        """Describe a part of a message as templates expect it."""
        if not isinstance(part, str):
            return {"type": "image"}
        words = part.strip()
        if not words:
            return {"type": "text", "text": part}
        stand_in = self.take()
        self.texts[ord(stand_in)] = words
        before = part[: len(part) - len(part.lstrip())]
        after = part[len(part.rstrip()) :]
        return {"type": "text", "text": f"{before}{stand_in}{after}"}

    def take(self) -> str:
        """Return the next character."""
        code = next((code for code in range(self._next, _LAST_STAND_IN) if chr(code) not in self._source), 0)
        if not code:
            raise RequestError("the conversation has more than 131,000 texts", field="messages")
        self._next = code + 1
        return chr(code)


def _touches_word(text: str, match: re.Match[str]) -> bool:
    around = text[match.start() - 1 : match.start()] + text[match.end() : match.end() + 1]
    return any(character.isalnum() or character == "_" for character in around)


def _token_variables(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of tokens that templates may use, as transformers passes them."""
    variables: dict[str, str] = {}
    for name in _VARIABLE_TOKENS:
        value = config.get(name)
        value = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(value, str):
            variables[name] = value
    return variables
