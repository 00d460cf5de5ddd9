"""The published schemas of the MQTT messages, for judging what is really sent."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema

__all__ = ["schema_faults", "stream_schema_faults", "topic_schema"]

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "mqtt"

_BY_TOPIC = (
    (r"/(?!group/)[^/]+/request$|/group/[^/]+/request$", "request"),
    (r"/cancel$", "cancel"),
    (r"/group/[^/]+/claims$", "claim"),
    (r"/camera/[^/]+/state$", "camera-state"),
    (r"/camera/[^/]+/event$", "camera-event"),
    (r"/camera/[^/]+/answer(/last)?$", "camera-answer"),
    (r"/info$", "info"),
    (r"/stats$", "stats"),
    (r"/response/[^/]+/[^/]+$", "stream"),
)


def topic_schema(topic: str) -> str | None:
    """Return the name of the schema of what is sent on a topic; None where it is no JSON object."""
    return next((name for pattern, name in _BY_TOPIC if re.search(pattern, topic)), None)


def schema_faults(name: str, message: Mapping[str, Any]) -> Iterator[str]:
    """Say what a schema does not allow in a message."""
    for error in _validator(name).iter_errors(dict(message)):
        yield f"{name}.schema.json at {error.json_path}: {error.message[:300]}"


def stream_schema_faults(message: Mapping[str, Any]) -> Iterator[str]:
    """Say what the schema of a stream does not allow in a message of it."""
    return schema_faults("stream", message)


@functools.cache
def _validator(name: str) -> Any:
    schema = json.loads((FOLDER / f"{name}.schema.json").read_text(encoding="utf-8"))
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)
