"""Reading the messages of the contract, with errors that a reply can be made of."""

from __future__ import annotations

import base64
import difflib
import functools
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from edge_vl.errors import EdgeVLError
from edge_vl.mqtt.json_reading import PayloadError, kind_of, param_of, read_object, shown, top_level_texts
from edge_vl.mqtt.messages import Cancel, Claim, ImageRef, Request, StreamMessage
from edge_vl.mqtt.topics import NAME

__all__ = [
    "BadPayload",
    "checked_request",
    "decode_base64",
    "read_cancel",
    "read_claim",
    "read_message",
    "read_request",
    "read_stream",
]

Message = TypeVar("Message", bound=msgspec.Struct)

MAX_SMALL_BYTES = 8192
"""Of a cancel or a claim."""

MAX_STREAM_BYTES = 1 << 20
"""Of a message of an answer, or of what a gateway says about itself."""

_NAMES = ("id", "client", "conversation", "node")
_KNOWN_ABOUT = {"id": 64, "client": 64, "reply_to": 1024}
_PATH = re.compile(r" - at `\$\.?(.*)`$", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*)`")
_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")

_MAX_TOKENS = 32_768

_MAX_LIKE = 64
"""Characters of a key that others like it are looked for."""

_A_NAME = "1 to 64 letters, digits, _ or -"
_A_TOPIC = "a topic of 1 to 1024 characters"
_A_DURATION = "a whole number of milliseconds from 1 to 86400000"

_EXPECTED: Mapping[str, str] = {
    "v": "1, the version of the contract that this gateway speaks",
    "id": _A_NAME,
    "client": _A_NAME,
    "node": _A_NAME,
    "conversation": _A_NAME,
    "camera": f"the name of a camera, {_A_NAME}",
    "question": "a text of 1 to 16384 characters",
    "images": "an array of at most 16 objects",
    "images[]": "an object with one of camera, file, base64 and topic",
    "file": "a path of 1 to 4096 characters",
    "base64": "the encoded bytes of a picture",
    "topic": _A_TOPIC,
    "reply_to": _A_TOPIC,
    "stream": "true or false",
    "max_tokens": "a whole number from 1 to 32768",
    "temperature": "a number from 0 to 100",
    "seed": "a whole number from 0 to 9223372036854775807",
    "schema": "an object",
    "deadline_ms": _A_DURATION,
    "max_frame_age_ms": _A_DURATION,
    "boot_id": "a text of 1 to 64 characters",
    "released": "true or false",
}


class BadPayload(EdgeVLError):
    """A message cannot be used. Its words hold no value of the payload, so they may be logged.

    Attributes:
        message: what is wrong.
        param: which field, as the sender wrote it: `images[0].camera`; None: the whole.
        id: of the request, as far as it can be known.
        client: likewise; `anonymous` where the sender certainly left it out.
        reply_to: likewise; not checked.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        id: str | None = None,
        client: str | None = None,
        reply_to: str | None = None,
    ) -> None:
        """Keep all of it."""
        super().__init__(message)
        self.message = message
        self.param = param
        self.id = id
        self.client = client
        self.reply_to = reply_to


def read_request(
    payload: bytes, *, max_bytes: int = 131_072, max_tokens: int = 1024, max_image_bytes: int = 16_777_216
) -> Request:
    """Read a request. Whether its reply topic is allowed, `ReplyRule` says.

    Args:
        payload: anything at all.
        max_bytes: of it.
        max_tokens: most that it may ask for; one that does not say gets at most so many.
        max_image_bytes: of each picture in it, decoded.

    Raises:
        BadPayload: it is none, or asks for something that is not there.
    """
    try:
        request = _read(payload, Request, max_bytes)
        _check_request(request, max_tokens, max_image_bytes)
    except PayloadError as error:
        raise _bad(error, payload, max_bytes) from None
    return msgspec.structs.replace(request, max_tokens=min(request.max_tokens, max_tokens))


def checked_request(request: Request) -> Request:
    """Return a request of this side as a gateway would read it, so that nonsense is refused before it is sent.

    Raises:
        BadPayload: it holds something that no gateway takes.
    """
    try:
        try:
            content = msgspec.to_builtins(request, builtin_types=(bytes, bytearray, memoryview))
        except (TypeError, OverflowError) as error:
            raise PayloadError(f"a value of the request is of a kind that JSON has not: {error}") from None
        checked = _converted(content, Request)
        for name in _NAMES:
            _check_name(getattr(checked, name, None), name)
        _check_request(checked, _MAX_TOKENS, MAX_STREAM_BYTES)
    except PayloadError as error:
        raise BadPayload(error.message, param=error.param) from None
    return checked


def read_cancel(payload: bytes) -> Cancel:
    """Read a cancel.

    Raises:
        BadPayload: it is none.
    """
    try:
        return _read(payload, Cancel, MAX_SMALL_BYTES)
    except PayloadError as error:
        raise _bad(error, payload, MAX_SMALL_BYTES) from None


def read_claim(payload: bytes) -> Claim:
    """Read what another worker of the group has claimed or released. Fields of later versions are ignored.

    Raises:
        BadPayload: it is none.
    """
    try:
        return _read(payload, Claim, MAX_SMALL_BYTES)
    except PayloadError as error:
        raise _bad(error, payload, MAX_SMALL_BYTES) from None


def read_stream(payload: bytes, *, max_bytes: int = MAX_STREAM_BYTES) -> StreamMessage:
    """Read one message of an answer, as a client does. Fields of later versions are ignored.

    Raises:
        BadPayload: it is none.
    """
    try:
        content = read_object(payload, max_bytes=max_bytes)
        return _converted(content, StreamMessage)  # type: ignore[arg-type]
    except PayloadError as error:
        raise _bad(error, payload, max_bytes) from None


def read_message(payload: bytes, kind: type[Message], *, max_bytes: int = MAX_STREAM_BYTES) -> Message:
    """Read any other message, such as what a gateway says about itself. Fields of later versions are ignored.

    Args:
        payload: anything at all.
        kind: of message: one of `edge_vl.mqtt.node_messages`.
        max_bytes: of the payload.

    Raises:
        BadPayload: it is none.
    """
    try:
        return _read(payload, kind, max_bytes)
    except PayloadError as error:
        raise _bad(error, payload, max_bytes) from None


def decode_base64(text: str, *, max_bytes: int, param: str) -> bytes:
    """Decode a picture: the plain alphabet with its padding, no white space.

    Args:
        text: what was sent.
        max_bytes: of the picture; more is not decoded.
        param: name of the field.

    Raises:
        BadPayload: it is something else, or too large.
    """
    try:
        return _decoded(text, max_bytes, param)
    except PayloadError as error:
        raise BadPayload(error.message, param=error.param) from None


def _read(payload: bytes, kind: type[Message], max_bytes: int) -> Message:
    content = read_object(payload, max_bytes=max_bytes)
    message = _converted(content, kind)
    for name in _NAMES:  # `$` of a pattern lets a line feed pass
        _check_name(getattr(message, name, None), name)
    return message


def _converted(content: dict[str, Any], kind: type[Message]) -> Message:
    _check_keys(content, kind, "")
    images = content.get("images")
    for index, image in enumerate(images if kind is Request and isinstance(images, list) else []):
        _check_keys(image, ImageRef, f"images[{index}].")
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise _explained(str(error), content) from None


def _check_request(request: Request, max_tokens: int, max_image_bytes: int) -> None:
    """Check what types alone do not say."""
    if not request.question.strip():
        raise PayloadError("question holds no word", param="question")
    if request.schema is not None:
        raise PayloadError("structured answers are not there yet; leave schema out", param="schema")
    if request.max_tokens > max_tokens and request.max_tokens != _default("max_tokens"):
        raise PayloadError(f"max_tokens is at most {max_tokens} on this gateway", param="max_tokens")
    for index, image in enumerate(request.images):
        _check_name(image.camera, f"images[{index}].camera")
        if image.base64 is not None:
            _decoded(image.base64, max_image_bytes, f"images[{index}].base64")


def _default(name: str) -> Any:
    return next(field.default for field in msgspec.structs.fields(Request) if field.name == name)


def _check_name(value: object, param: str) -> None:
    if isinstance(value, str) and re.fullmatch(NAME, value) is None:
        raise PayloadError(f"{param} should be {_EXPECTED[_last(param)]}", param=param)


def _decoded(text: str, max_bytes: int, param: str) -> bytes:
    if text.startswith("data:"):
        raise PayloadError(f"{param} is a data: address; send only what stands behind the comma", param=param)
    if len(text) > 4 * -(-max_bytes // 3):
        raise PayloadError(f"{param} is larger than {max_bytes} bytes", param=param)
    try:
        if len(text) % 4:
            raise ValueError("the padding is missing, or too much")
        picture = base64.b64decode(text, validate=True)
    except ValueError:  # a `binascii.Error` is one
        hint = "; it has characters of the alphabet for URLs" if set(text) & set("-_") else ""
        hint = hint or ("; it has white space" if set(text) & set(" \r\n\t") else "")
        raise PayloadError(f"{param} is not valid base64{hint}", param=param) from None
    if not 0 < len(picture) <= max_bytes:
        raise PayloadError(f"{param} has {len(picture)} bytes and may have 1 to {max_bytes}", param=param)
    return picture


def _check_keys(content: Any, kind: Any, path: str) -> None:
    """See that an object has no key that its type does not know, where that counts."""
    if not isinstance(content, dict) or not isinstance(kind, type) or not _is_closed(kind):
        return
    known = _keys(kind)
    for key in content:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1) if len(key) <= _MAX_LIKE else []
            hint = f"; did you mean {close[0]}?" if close else f"; known: {', '.join(known)}"
            raise PayloadError(f"unknown field {shown(path + key)}{hint}", param=param_of(path + key))


@functools.cache
def _keys(kind: type[msgspec.Struct]) -> list[str]:
    """Return the keys that a type knows; looking them up anew is most of what reading a request takes."""
    return [field.encode_name for field in msgspec.structs.fields(kind)]


def _is_closed(kind: Any) -> bool:
    return bool(kind.__struct_config__.forbid_unknown_fields)


def _explained(words: str, content: dict[str, Any]) -> PayloadError:
    """Say in our words what the library that checks types has found."""
    path = ""
    if found := _PATH.search(words):
        path, words = found.group(1), words[: found.start()]
    if (missing := _MISSING.fullmatch(words)) is not None:
        inner = f"{path}.{missing.group(1)}" if path else missing.group(1)
        return PayloadError(f"{inner} is missing; it should be {_expected(inner)}", param=inner)
    expected = _EXPECTED.get(_last(path))
    if expected is None or not words.startswith(("Expected", "Invalid")):
        return PayloadError(f"{path}: {words}" if path else words, param=param_of(path))
    value = _at(content, path)
    got = f"a text of {len(value)} characters" if isinstance(value, str) and value else kind_of(value)
    return PayloadError(f"{path} should be {expected}, not {got}", param=path)


def _expected(path: str) -> str:
    return _EXPECTED.get(_last(path), "there")


def _last(path: str) -> str:
    return re.sub(r"\d+", "", path.rpartition(".")[2])


def _at(content: Any, path: str) -> Any:
    for index, name in _STEP.findall(path):
        content = content[int(index)] if index else content[name]
    return content


def _bad(error: PayloadError, payload: bytes, max_bytes: int) -> BadPayload:
    """Make an error that as much as can be known goes with."""
    found, is_whole = top_level_texts(payload, _KNOWN_ABOUT, max_bytes=max_bytes)
    names = {name: found.get(name) for name in ("id", "client")}
    known = {name: text if text and re.fullmatch(NAME, text) else None for name, text in names.items()}
    if is_whole and "client" not in found:
        known["client"] = "anonymous"
    return BadPayload(error.message, param=error.param, reply_to=found.get("reply_to") or None, **known)
