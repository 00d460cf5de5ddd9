"""The contract as an AsyncAPI document: every topic, who sends what there, with which quality of service."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from edge_vl.mqtt.json_writing import encode
from edge_vl.mqtt.message_examples import EXAMPLES
from edge_vl.mqtt.schemas import TYPES, definitions
from edge_vl.mqtt.topics import NAME

__all__ = ["async_api"]

_JSON = "application/json"


@dataclass(frozen=True, slots=True)
class _Channel:
    """One topic.

    Attributes:
        name: of the channel.
        address: of the topic, with parameters.
        action: what the gateway does there.
        message: name of the message.
        summary: what it is for.
        qos: with which the gateway subscribes or publishes.
        is_retained: whether the broker keeps the last message.
        reply: name of the channel of the answer.
    """

    name: str
    address: str
    action: Literal["send", "receive", "both"]
    message: str
    summary: str
    qos: int = 1
    is_retained: bool = False
    reply: str = ""


_NODE = "{prefix}/{node}"
_GROUP = "{prefix}/group/{group}"
_CAMERA = f"{_NODE}/camera/{{camera}}"

_CHANNELS = (
    _Channel("status", f"{_NODE}/status", "send", "status", "Whether the gateway is there.", is_retained=True),
    _Channel("info", f"{_NODE}/info", "send", "info", "What the gateway is.", is_retained=True),
    _Channel("stats", f"{_NODE}/stats", "send", "stats", "How the gateway does, again and again.", qos=0),
    _Channel("request", f"{_NODE}/request", "receive", "request", "Ask this gateway.", reply="answer"),
    _Channel(
        "groupRequest",
        f"{_GROUP}/request",
        "receive",
        "request",
        "Ask whichever worker of a group is free. Workers listen by the shared subscription "
        "$share/{group}/{prefix}/group/{group}/request.",
        reply="answer",
    ),
    _Channel("cancel", f"{_NODE}/cancel", "receive", "cancel", "End a request of this gateway."),
    _Channel(
        "groupCancel", f"{_GROUP}/cancel", "receive", "cancel", "End a request of a group; every worker hears it."
    ),
    _Channel(
        "claims", f"{_GROUP}/claims", "both", "claim", "What a worker has taken from its group, and what it has ended."
    ),
    _Channel(
        "answer",
        f"{_NODE}/response/{{client}}/{{id}}",
        "send",
        "stream",
        "The answer to one request, message by message; goes to the request's reply_to instead if it has one.",
    ),
    _Channel(
        "image",
        f"{_NODE}/image/{{client}}/{{id}}",
        "receive",
        "picture",
        "The bytes of a picture, sent before the request that names this topic.",
    ),
    _Channel(
        "cameraState",
        f"{_CAMERA}/state",
        "send",
        "camera-state",
        "What a camera does at this moment.",
        is_retained=True,
    ),
    _Channel("cameraEvent", f"{_CAMERA}/event", "send", "camera-event", "Something happened to a camera."),
    _Channel("cameraAnswer", f"{_CAMERA}/answer", "send", "camera-answer", "An answer about a camera's newest frame."),
    _Channel(
        "cameraLastAnswer",
        f"{_CAMERA}/answer/last",
        "send",
        "camera-answer",
        "The last such answer, for those who come later.",
        is_retained=True,
    ),
    _Channel(
        "cameraSnapshot",
        f"{_CAMERA}/snapshot",
        "send",
        "snapshot",
        "The frame that an answer is about; only where the gateway file wants it.",
        qos=0,
    ),
    _Channel("cameraCommand", f"{_CAMERA}/{{setting}}/set", "receive", "setting", "Change a setting of a camera."),
    _Channel(
        "cameraSetting",
        f"{_CAMERA}/{{setting}}/state",
        "send",
        "setting",
        "What a setting of a camera is now.",
        is_retained=True,
    ),
    _Channel(
        "action",
        f"{_NODE}/action/{{name}}",
        "send",
        "action",
        "Reserved for what an agent does; nothing is sent there yet.",
    ),
)

_A_NAME = f"A name: {NAME}"

_PARAMETERS: dict[str, dict[str, Any]] = {
    "prefix": {
        "description": "What all topics of an installation begin with: one or two names with a / between them.",
        "default": "edge_vl",
    },
    "node": {"description": f"The gateway. {_A_NAME}"},
    "group": {"description": f"A group of workers. {_A_NAME}"},
    "client": {"description": f"Who asks. {_A_NAME}", "default": "anonymous"},
    "id": {"description": f"Of the request. {_A_NAME}"},
    "camera": {"description": f"One of the gateway's cameras. {_A_NAME}"},
    "setting": {"description": "What is set.", "enum": ["enabled", "question", "every_s", "ask"]},
    "name": {"description": f"Of the action. {_A_NAME}"},
}

_PLAIN_MESSAGES: dict[str, dict[str, Any]] = {
    "status": {
        "contentType": "text/plain",
        "summary": "`stopped` after a clean exit; `offline` is the last will.",
        "payload": {"type": "string", "enum": ["online", "stopped", "offline"]},
    },
    "picture": {
        "contentType": "application/octet-stream",
        "summary": "A JPEG, PNG, WebP or other picture, as it is in its file.",
        "payload": {"type": "string", "format": "binary"},
    },
    "snapshot": {"contentType": "image/jpeg", "payload": {"type": "string", "format": "binary"}},
    "setting": {
        "contentType": "text/plain",
        "summary": "`enabled`: ON or OFF. `question`: the text. `every_s`: a number. `ask`: anything, or a question.",
        "payload": {"type": "string"},
    },
    "action": {"contentType": _JSON, "payload": {"type": "object"}},
}


def async_api() -> dict[str, Any]:
    """Return the document, version 3.0.0."""
    references, schemas = definitions(list(TYPES), "#/components/schemas/{name}")
    messages: dict[str, Any] = {
        name: {
            "contentType": _JSON,
            "payload": reference,
            "examples": [{"payload": json.loads(encode(example))} for example in EXAMPLES[name]],
        }
        for name, reference in zip(TYPES, references, strict=True)
    }
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "edge_vl gateway",
            "version": "1.0.0",
            "description": "Questions about what cameras see, and their answers, over MQTT 3.1.1 and 5. On MQTT 5 the "
            "response topic, the correlation data (the request's id), the content type, the message expiry and the "
            "user property v=1 say the same as the payload.",
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": _JSON,
        "channels": {channel.name: _channel(channel) for channel in _CHANNELS},
        "operations": dict(operation for channel in _CHANNELS for operation in _operations(channel)),
        "components": {
            "messages": {**messages, **_PLAIN_MESSAGES},
            "parameters": _PARAMETERS,
            "schemas": schemas,
        },
    }


def _channel(channel: _Channel) -> dict[str, Any]:
    named = [name for name in _PARAMETERS if f"{{{name}}}" in channel.address]
    return {
        "address": channel.address,
        "summary": channel.summary,
        "messages": {channel.message: {"$ref": f"#/components/messages/{channel.message}"}},
        "parameters": {name: {"$ref": f"#/components/parameters/{name}"} for name in named},
    }


def _operations(channel: _Channel) -> list[tuple[str, dict[str, Any]]]:
    """Return what the gateway does at a channel."""
    actions = ("send", "receive") if channel.action == "both" else (channel.action,)
    made = []
    for action in actions:
        operation: dict[str, Any] = {
            "action": action,
            "channel": {"$ref": f"#/channels/{channel.name}"},
            "bindings": {"mqtt": _binding(channel, action)},
        }
        if channel.reply:
            operation["reply"] = {"channel": {"$ref": f"#/channels/{channel.reply}"}}
        made.append((f"{action}{channel.name[0].upper()}{channel.name[1:]}", operation))
    return made


def _binding(channel: _Channel, action: str) -> dict[str, Any]:
    return {"qos": channel.qos, **({"retain": channel.is_retained} if action == "send" else {})}
