"""JSON schemas of every message of the contract, made from its types.

`python -m edge_vl.mqtt.schemas docs/mqtt` writes them, and the AsyncAPI document, into a folder.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from edge_vl.mqtt import messages, node_messages
from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.message_examples import EXAMPLES
from edge_vl.mqtt.messages import Cancel, Claim, Request, StreamMessage
from edge_vl.mqtt.node_messages import CameraAnswer, CameraEvent, CameraStateMessage, Info, Stats

__all__ = ["TYPES", "definitions", "documents", "schema"]

DRAFT = "https://json-schema.org/draft/2020-12/schema"

TYPES: Mapping[str, Any] = {
    "request": Request,
    "cancel": Cancel,
    "claim": Claim,
    "stream": StreamMessage,
    "info": Info,
    "stats": Stats,
    "camera-state": CameraStateMessage,
    "camera-event": CameraEvent,
    "camera-answer": CameraAnswer,
}
"""What carries JSON, by the name of its schema."""

_TITLES = {"stream": "One message of an answer"}

_FROM_PEERS = frozenset({"Request", "ImageRef", "Cancel"})
"""What comes from clients: they may leave out what has a default. A gateway writes all of its own messages."""

_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n        .*)*)", re.MULTILINE)


def schema(name: str) -> dict[str, Any]:
    """Return the schema of one message, complete in itself.

    Args:
        name: one of `TYPES`.
    """
    (outer,), inner = definitions([name], "#/$defs/{name}")
    head = {"$schema": DRAFT, "$id": f"urn:edge-vl:mqtt:1:{name}"}
    if set(outer) == {"$ref"}:
        own = outer["$ref"].rpartition("/")[2]
        outer = inner.pop(own)
    else:
        outer = {"title": _TITLES[name], **outer}
    examples = [json.loads(encode(example)) for example in EXAMPLES[name]]
    return {**head, **outer, "examples": examples, **({"$defs": inner} if inner else {})}


def definitions(names: list[str], template: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return a reference to each message, and the definitions that they refer to.

    Args:
        names: of `TYPES`.
        template: of a reference, with `{name}` in it.
    """
    outer, inner = msgspec.json.schema_components([TYPES[name] for name in names], ref_template=template)
    for own in inner:
        inner[own] = _finished(own, inner[own])
    plain = [{key: value for key, value in one.items() if key != "discriminator"} for one in outer]
    return plain, dict(sorted(inner.items()))


def documents() -> Iterator[tuple[str, str]]:
    """Yield every document's file name and content."""
    from edge_vl.mqtt.async_api import async_api
    from edge_vl.mqtt.yaml_writing import to_yaml

    for name in TYPES:
        yield f"{name}.schema.json", json.dumps(schema(name), indent=2, ensure_ascii=False) + "\n"
    yield "asyncapi.yaml", to_yaml(async_api())


def _finished(name: str, made: dict[str, Any]) -> dict[str, Any]:
    """Add what types alone do not say: what attributes mean, what must be there, what goes together."""
    said = _said_of_attributes(name)
    properties = {
        key: {**value, "description": said[key]} if key in said else dict(value)
        for key, value in made["properties"].items()
    }
    text = made.get("description", "").partition("Attributes:")[0]
    made = {**made, "description": " ".join(text.split()), "properties": properties}
    if name not in _FROM_PEERS:
        made["required"] = list(properties)
    if name == "Request":
        properties["question"]["pattern"] = r"\S"
        properties["schema"] = {"type": "null", "description": "structured answers are not there yet"}
    if name == "ImageRef":
        made["oneOf"] = [{"required": [key], "properties": {key: {"type": "string"}}} for key in properties]
    if not made.get("required"):
        made.pop("required", None)
    return made


def _said_of_attributes(name: str) -> dict[str, str]:
    """Return what the docstrings of a type and its bases say of its attributes."""
    said: dict[str, str] = {}
    for kind in reversed(_KINDS[name].__mro__):
        attributes = inspect.getdoc(kind) if issubclass(kind, msgspec.Struct) else ""
        for match in _ATTRIBUTE.finditer((attributes or "").partition("Attributes:\n")[2]):
            said[match.group(1)] = " ".join(match.group(2).split())
    return said


_KINDS: Mapping[str, type] = {
    name: kind
    for module in (messages, node_messages)
    for name, kind in vars(module).items()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
}


def main() -> None:
    """Write all documents into a folder."""
    parser = argparse.ArgumentParser(prog="python -m edge_vl.mqtt.schemas", description=main.__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in documents():
        (folder / name).write_text(content, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
