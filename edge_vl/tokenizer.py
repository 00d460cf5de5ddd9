"""The tokenizer of a model in the Hugging Face layout."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from edge_vl.config_values import parse_json_object
from edge_vl.errors import ModelError
from edge_vl.model_spec import ModelSpec
from edge_vl.template import MarkerRule

if TYPE_CHECKING:
    import tokenizers

__all__ = ["HFTokenizer"]

Result = TypeVar("Result")

_CONTROL_LIKE = re.compile(r"<\|[^\s<>]+\|>")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class HFTokenizer:
    """Text to token ids and back, from `tokenizer.json`. Safe to call from any thread.

    Only plain text is ever given to the `tokenizers` library: it gets the model's rules without the added tokens, and
    with every control token of the base vocabulary made unreachable. Markers are put in by id, by those who lay a
    prompt out. So no text can become a marker, whatever it says.
    """

    def __init__(self, spec: ModelSpec) -> None:
        """Read the tokenizer of a model.

        Raises:
            ModelError: the file cannot be read or says something that is not understood.
        """
        self._file = str(spec.tokenizer_file)
        rules = self._read(spec)
        pieces = self._guard(lambda: _vocabulary(rules))
        added = self._guard(lambda: _added_tokens(rules))
        ids = {text: token_id for token_id, text in pieces.items()} | {
            text: entry["id"] for text, entry in added.items()
        }
        named = _named_tokens(spec)
        self._eos = self._find_eos(spec, ids)
        controls = {text: entry["id"] for text, entry in added.items() if entry["special"] or not text.isspace()}
        controls |= {text: ids[text] for text in named if text in ids}
        controls |= {text: token_id for token_id, text in pieces.items() if _CONTROL_LIKE.fullmatch(text)}
        controls |= {text: token_id for text, token_id in ids.items() if token_id in self._eos}
        self._controls = controls
        self._control_ids = frozenset(controls.values())
        self._rules = {
            text: MarkerRule(lstrip=entry["lstrip"], rstrip=entry["rstrip"], is_single_word=entry["single_word"])
            for text, entry in added.items()
            if entry["lstrip"] or entry["rstrip"] or entry["single_word"]
        }
        self._bytes = self._guard(lambda: _all_token_bytes(rules, pieces))
        silent = {entry["id"] for entry in added.values() if entry["special"]} | self._eos
        silent |= {ids[text] for text in named if text in ids}
        silent |= {token_id for token_id, text in pieces.items() if _CONTROL_LIKE.fullmatch(text) and text not in added}
        self._bytes |= {entry["id"]: text.encode("utf-8", "replace") for text, entry in added.items()}
        self._bytes |= dict.fromkeys(silent, b"")
        self._vocab_size = 1 + max(self._bytes)
        self._plain = self._guard(lambda: _plain_tokenizer(rules, pieces, self._control_ids, set(controls)))

    @property
    def vocab_size(self) -> int:
        """One more than the highest id."""
        return self._vocab_size

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that end an answer: those of the generation config, else of the config, and the tokenizer's own."""
        return self._eos

    @property
    def special_tokens(self) -> dict[str, int]:
        """Every marker and control token, by its text, `<think>` and the like among them."""
        return dict(self._controls)

    @property
    def marker_rules(self) -> Mapping[str, MarkerRule]:
        """How markers treat the text around them, for those that do not leave it alone."""
        return self._rules

    def encode_text(self, text: str) -> list[int]:
        """Encode plain text. Never returns a marker or control token, whatever the text says.

        What the vocabulary cannot express (an unpaired surrogate, or a character without bytes for it in a tokenizer
        without byte fallback) becomes U+FFFD or is left out; the unknown token is a control token.
        """
        if not text:
            return []
        try:
            ids = self._plain.encode(text, add_special_tokens=False).ids
        except (TypeError, UnicodeEncodeError):  # an unpaired surrogate
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
            ids = self._plain.encode(text, add_special_tokens=False).ids
        if self._control_ids.isdisjoint(ids):
            return list(ids)
        return [token_id for token_id in ids if token_id not in self._control_ids]

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that a token stands for; empty for control tokens and for ids that no token has."""
        return self._bytes.get(token_id, b"")

    def _read(self, spec: ModelSpec) -> dict[str, Any]:
        try:
            text = spec.tokenizer_file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{self._file} cannot be read: {error}", file=self._file) from error
        rules = parse_json_object(text, spec.tokenizer_file)
        if not isinstance(rules.get("model"), dict):
            raise ModelError(f"{self._file} is not a tokenizer of the tokenizers library", file=self._file)
        return rules

    def _guard(self, read: Callable[[], Result]) -> Result:
        """Name the file in whatever goes wrong with its content; the library raises bare exceptions."""
        try:
            return read()
        except ModelError:
            raise
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise  # a person's Ctrl-C; a panic of the library derives from BaseException too
            raise ModelError(f"{self._file} cannot be used: {error!r}", file=self._file) from error

    def _find_eos(self, spec: ModelSpec, ids: Mapping[str, int]) -> frozenset[int]:
        text_config = spec.config.get("text_config")
        places = (spec.generation, spec.config, text_config if isinstance(text_config, Mapping) else {})
        values: Any = next((place["eos_token_id"] for place in places if place.get("eos_token_id") is not None), [])
        entries: list[Any] = values if isinstance(values, list) else [values]
        if any(isinstance(value, bool) or not isinstance(value, int) or value < 0 for value in entries):
            raise ModelError(f"{spec.path}: eos_token_id is {values!r}, not ids", file=str(spec.path))
        found = set(entries)
        own = _token_text(spec.tokenizer_config.get("eos_token"))
        if own in ids:
            found.add(ids[own])
        return frozenset(found)


def _token_text(value: object) -> str:
    """Return the text of a token that a config gives as text or as an object; empty if it gives none."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else ""


def _named_tokens(spec: ModelSpec) -> set[str]:
    config = spec.tokenizer_config
    named = {_token_text(config.get(name)) for name in _NAMED_TOKENS}
    for key in ("additional_special_tokens", "extra_special_tokens"):
        values = config.get(key)
        if values is not None and not isinstance(values, (Mapping, list)):
            file = str(spec.path / "tokenizer_config.json")
            raise ModelError(f"{file}: {key} should be a list or an object, not {values!r:.80}", file=file)
        entries: Iterable[Any] = values.values() if isinstance(values, Mapping) else values or ()
        named |= {_token_text(entry) for entry in entries}
    return named - {""}


def _vocabulary(rules: Mapping[str, Any]) -> dict[int, str]:
    """Return the base vocabulary: ids to pieces."""
    vocabulary = rules["model"]["vocab"]
    if isinstance(vocabulary, Mapping):
        return {int(token_id): str(piece) for piece, token_id in vocabulary.items()}
    return {token_id: str(piece) for token_id, (piece, _) in enumerate(vocabulary)}


def _added_tokens(rules: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the added tokens by their text, every flag present."""
    flags = ("special", "lstrip", "rstrip", "single_word", "normalized")
    return {
        str(entry["content"]): {"id": int(entry["id"]), **{flag: bool(entry.get(flag, False)) for flag in flags}}
        for entry in rules.get("added_tokens") or ()
        if entry["content"]
    }


def _plain_tokenizer(
    rules: Mapping[str, Any], pieces: Mapping[int, str], control_ids: frozenset[int], control_texts: set[str]
) -> tokenizers.Tokenizer:
    """Build a tokenizer that cannot produce control tokens and adds nothing to what it is given.

    Control tokens keep their ids under names that nobody can guess, and stand in no merge. Added tokens that are only
    white space are no markers and stay as they are.
    """
    from tokenizers import Tokenizer

    nonce = secrets.token_hex(16)
    model = dict(rules["model"])
    hidden = {piece: f"\ufffe{nonce}{token_id}" for token_id, piece in pieces.items() if token_id in control_ids}
    if isinstance(model["vocab"], Mapping):
        model["vocab"] = {hidden.get(piece, piece): token_id for piece, token_id in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(piece, piece), score] for piece, score in model["vocab"]]
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if hidden.keys().isdisjoint(_merged(merge))]
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    added = [
        {**entry, "content": f"\ufffe{nonce}{entry['id']}"} if entry["content"] in control_texts else entry
        for entry in rules.get("added_tokens") or ()
    ]
    rest = {"model": model, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}
    return Tokenizer.from_str(json.dumps({**rules, **rest}, ensure_ascii=False))


def _merged(merge: str | list[str]) -> tuple[str, str, str]:
    """Return both halves of a merge, written as text or as a pair, and what they become."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left, right, left + right


def _all_token_bytes(rules: Mapping[str, Any], pieces: Mapping[int, str]) -> dict[int, bytes]:
    """Return the bytes of every base token, as the decoder in the file tells.

    Raises:
        ValueError: the decoder has a step that is not understood.
    """
    decoder = rules.get("decoder")
    steps = _decoder_steps(decoder)
    if any(step["type"] == "ByteLevel" for step in steps):
        table = _byte_of_character()
        return {token_id: _byte_level(piece, table) for token_id, piece in pieces.items()}
    replacements: list[tuple[str, str]] = []
    has_byte_tokens = False
    for step in steps:
        kind = step["type"]
        if kind == "ByteFallback":
            has_byte_tokens = True
        elif kind == "Replace" and isinstance(step["pattern"].get("String"), str):
            replacements.append((step["pattern"]["String"], step["content"]))
        elif kind == "Metaspace":
            replacements.append((step["replacement"], " "))
        elif kind not in ("Fuse", "Strip"):  # they concern whole answers, not tokens
            raise ValueError(f"decoder step {kind!r} is not understood")
    result: dict[int, bytes] = {}
    for token_id, piece in pieces.items():
        byte = _BYTE_TOKEN.fullmatch(piece) if has_byte_tokens else None
        if byte:
            result[token_id] = bytes([int(byte[1], 16)])
            continue
        for old, new in replacements:
            piece = piece.replace(old, new)
        result[token_id] = piece.encode("utf-8", "replace")
    return result


def _decoder_steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        return []
    if decoder["type"] == "Sequence":
        return [step for entry in decoder["decoders"] for step in _decoder_steps(entry)]
    return [decoder]


def _byte_level(piece: str, table: Mapping[str, int]) -> bytes:
    try:
        return bytes([table[character] for character in piece])
    except KeyError:  # a piece that was put in by hand, outside the byte alphabet
        return piece.encode("utf-8", "replace")


def _byte_of_character() -> dict[str, int]:
    """Return the alphabet of byte-level BPE: printable bytes stand for themselves, the others for U+0100 and up.

    Source:
        `bytes_to_unicode` of openai/gpt-2, encoder.py.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}
