"""The tokenizer of a GGUF file, and whether another one fits its vocabulary."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator

import numpy as np

from edge_vl.errors import EngineFault, ModelError
from edge_vl.tokenizer import HFTokenizer
from edge_vl_llama_cpp.library import ENGINE
from edge_vl_llama_cpp.native_model import NativeModel

__all__ = ["GGUFTokenizer", "check_tokenizer"]

_CONTROL, _USER_DEFINED, _UNKNOWN = 1 << 3, 1 << 4, 1 << 0  # llama_token_attr
_NUM_COMPARED = 500
_MAX_PIECE_BYTES = 1 << 31
_MAX_PIECE = 2048
_GAP = re.compile(r" (?=\w)(?<=\w )")


class GGUFTokenizer:
    """Text to token ids and back, from a GGUF file's own vocabulary. Safe to call from any thread.

    llama.cpp is never told to parse markers. It matches user-defined tokens all the same, so text that spells one is
    cut in two inside of it.
    """

    def __init__(self, model: NativeModel) -> None:
        """Read the vocabulary.

        Args:
            model: whose vocabulary it is; `encode_text` needs it open.
        """
        llama = model.library.llama
        self._model = model
        self._bytes = [_piece(model, token_id) for token_id in range(model.vocab_size)]
        self._eos = frozenset(
            token_id for token_id in range(model.vocab_size) if llama.llama_vocab_is_eog(model.vocabulary, token_id)
        )
        self._markers: dict[str, int] = {}
        matched: list[str] = []
        for token_id in range(model.vocab_size):
            attributes = llama.llama_vocab_get_attr(model.vocabulary, token_id)
            if not attributes & (_CONTROL | _USER_DEFINED | _UNKNOWN) and token_id not in self._eos:
                continue
            text = _text(model, token_id)
            if not text or (text.isspace() and attributes & _USER_DEFINED):
                continue  # white space that the vocabulary keeps together is no marker
            self._markers[text] = token_id
            if attributes & _USER_DEFINED:
                matched.append(text)
        for token_id in self._eos:
            self._bytes[token_id] = b""
        self._marker_ids = frozenset(self._markers.values())
        longest_first = sorted(matched, key=len, reverse=True)
        self._matched = re.compile("|".join(map(re.escape, longest_first))) if matched else None
        self._uses_patterns = llama.llama_vocab_type(model.vocabulary) == llama.LLAMA_VOCAB_TYPE_BPE
        has_bos = bool(llama.llama_vocab_get_add_bos(model.vocabulary))
        bos = int(llama.llama_vocab_bos(model.vocabulary))
        self._opening = (bos,) if has_bos and 0 <= bos < model.vocab_size else ()

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return len(self._bytes)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer: all that llama.cpp takes for an end of generation."""
        return self._eos

    @property
    def special_tokens(self) -> dict[str, int]:
        """Every marker and control token, by its text."""
        return dict(self._markers)

    @property
    def opening_token_ids(self) -> tuple[int, ...]:
        """Tokens that stand at the beginning of every sequence, whatever the template says."""
        return self._opening

    def encode_text(self, text: str) -> list[int]:
        """Encode plain text. Never returns a marker or control token, whatever the text says.

        Raises:
            EngineFault: the model is closed.
        """
        parts = (piece for part in self._cut(text) for piece in (_pieces(part) if self._uses_patterns else (part,)))
        ids = [token_id for part in parts for token_id in self._encode(part)]
        if self._marker_ids.isdisjoint(ids):
            return ids
        return [token_id for token_id in ids if token_id not in self._marker_ids]

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token stands for; empty for control tokens and for ids that no token has."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def _cut(self, text: str) -> list[str]:
        """Cut text behind the first character of whatever spells a user-defined token."""
        if self._matched is None:
            return [text]
        parts: list[str] = []
        start = 0
        while found := self._matched.search(text, start):
            parts.append(text[start : found.start() + 1])
            start = found.start() + 1
        return [*parts, text[start:]]

    def _encode(self, text: str) -> list[int]:
        if not text:
            return []
        try:
            data = text.encode()
        except UnicodeEncodeError:  # an unpaired surrogate
            data = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
        llama = self._model.library.llama
        room = len(data) + 8
        with self._model.hold():
            for _ in range(2):
                buffer = (llama.llama_token * room)()
                count = llama.llama_tokenize(self._model.vocabulary, data, len(data), buffer, room, False, False)
                if count >= 0:
                    return list(buffer[:count])
                room = -count
                if room >= _MAX_PIECE_BYTES:
                    break
        raise EngineFault(ENGINE, "tokenize", f"a text of {len(data)} bytes cannot be tokenized")


def _pieces(text: str) -> Iterator[str]:
    """Cut a long text between two words.

    llama.cpp splits the text of byte-level vocabularies with patterns of the C++ library, whose depth of recursion is
    the length of a match: some tens of thousands of equal characters overflow the stack. A text without words is cut
    where it becomes too long.
    """
    start = 0
    while len(text) - start > _MAX_PIECE:
        end = start + _MAX_PIECE
        for gap in _GAP.finditer(text, start + 1, end):
            end = gap.start()
        yield text[start:end]
        start = end
    yield text[start:]


def check_tokenizer(tokenizer: HFTokenizer, model: NativeModel, file: str) -> None:
    """Refuse a `tokenizer.json` that does not belong to the vocabulary of a GGUF file.

    Compares the number of tokens, every marker's text, and the bytes of 500 tokens spread over the vocabulary.

    Args:
        tokenizer: read from `tokenizer.json`.
        model: whose vocabulary it should have.
        file: that the tokenizer came from.

    Raises:
        ModelError: it says what differs.
    """
    differences: list[str] = []
    if tokenizer.vocab_size > model.vocab_size:
        differences.append(f"it has ids up to {tokenizer.vocab_size - 1}, and the model {model.vocab_size} tokens")
    markers = tokenizer.special_tokens
    for text, token_id in markers.items():
        found = _text(model, token_id) if token_id < model.vocab_size else "none"
        if found != text:
            differences.append(f"token {token_id} is {text!r} in it and {found!r} in the model")
    last = min(tokenizer.vocab_size, model.vocab_size) - 1
    marker_ids = set(markers.values())
    for token_id in np.unique(np.linspace(0, last, _NUM_COMPARED).astype(int)).tolist():
        if token_id in marker_ids:
            continue
        expected, piece = tokenizer.token_bytes(token_id), _piece(model, token_id)
        if expected and expected != piece:
            differences.append(f"token {token_id} stands for {expected!r} in it and for {piece!r} in the model")
    if differences:
        more = f" (and {len(differences) - 3} differences more)" if len(differences) > 3 else ""
        raise ModelError(
            f"{file} does not belong to {model.path}: {'; '.join(differences[:3])}{more}; download both from one place",
            file=file,
        )


def _piece(model: NativeModel, token_id: int) -> bytes:
    """Return the bytes of a token; empty for control tokens."""
    llama = model.library.llama
    size = 64
    for _ in range(2):
        buffer = ctypes.create_string_buffer(size)
        length = llama.llama_token_to_piece(model.vocabulary, token_id, buffer, size, 0, False)
        if length >= 0:
            return buffer.raw[:length]
        size = -length
    return b""


def _text(model: NativeModel, token_id: int) -> str:
    """Return the text of a token as the vocabulary has it."""
    text: bytes | None = model.library.llama.llama_vocab_get_text(model.vocabulary, token_id)
    return (text or b"").decode("utf-8", "replace")
