"""Writing a message of the contract as JSON."""

from __future__ import annotations

import msgspec

__all__ = ["encode"]


def encode(message: msgspec.Struct) -> bytes:
    """Return a message as JSON in UTF-8. What is not a number becomes null, half of a character a question mark.

    Args:
        message: of `edge_vl.mqtt.messages` or `edge_vl.mqtt.node_messages`.
    """
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:  # such as the name of a file that is no UTF-8, in an error's words
        return msgspec.json.encode(_writable(msgspec.to_builtins(message)))


def _writable(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", errors="replace").decode("utf-8")
    if isinstance(value, dict):
        return {_writable(key): _writable(member) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_writable(member) for member in value]
    return value
