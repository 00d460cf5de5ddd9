"""Every key that a gateway file may have. `docs/gateway_file.md` explains them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from edge_vl.gateway.camera_commands import MAX_QUESTION_CHARS
from edge_vl.mqtt.topics import NAME
from edge_vl.toml_file import Kind, flag, number, numbers, refused, text, whole

__all__ = ["KEYS", "RENAMED"]

_A_NAME = "1 to 64 letters, digits, _ or -"
_A_PATH = "the path of a file"
_NO_PASSWORD = (
    "left out: a password does not belong in this file; name a variable with password_env, or a file with it "
)
_NO_PASSWORD += "with password_file"
_DAY_S = 86_400

_name = text(NAME, _A_NAME)
_required_name = text(NAME, _A_NAME, is_required=True)


def _maybe_empty(max_characters: int) -> Kind:
    return Kind(
        f"a text of at most {max_characters} characters on one line",
        lambda value: isinstance(value, str) and len(value) <= max_characters and value.isprintable(),
    )


def _paths() -> Kind:
    return Kind("a list of paths", lambda value: isinstance(value, list) and all(map(_is_text, value)))


def _source() -> Kind:
    def accepts(value: Any) -> bool:
        is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
        return is_number or _is_text(value)

    expected = "what opens the camera, such as rtsp://host/path, or the number of a webcam"
    return Kind(expected, accepts, is_required=True, is_secret=True)


def _topics() -> Kind:
    return Kind(
        "a list of topics, without wildcards", lambda value: isinstance(value, list) and all(map(_topic, value))
    )


def _topic(value: Any) -> bool:
    return (
        _is_text(value) and re.fullmatch(r"[^$/+#\s\x00-\x1f][^/+#\x00-\x1f]*(/[^/+#\x00-\x1f]+)*/?", value) is not None
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _one_of(*words: str) -> Kind:
    return Kind(f"one of {', '.join(words)}", lambda value: value in words)


KEYS: Mapping[str, Kind] = {
    "broker.url": text(words="mqtt://host:port or mqtts://host:port", is_required=True, is_secret=True),
    "broker.username": text(),
    "broker.password_env": text(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable", is_secret=True),
    "broker.password_file": text(words=_A_PATH, is_secret=True),
    "broker.password": refused(_NO_PASSWORD),
    "broker.ca": text(words=_A_PATH),
    "broker.cert": text(words=_A_PATH),
    "broker.key": text(words=_A_PATH),
    "broker.client_id": text(r"[^\x00-\x1f]{1,128}", "1 to 128 characters"),
    "broker.protocol": _one_of("auto", "5", "3.1.1"),
    "broker.keepalive_s": whole(5, 3600),
    "broker.connect_timeout_s": number(0.5, 120),
    "broker.retry_first_s": number(0.05, 60),
    "broker.retry_max_s": number(0.05, 3600),
    "node.name": _name,
    "node.prefix": text(f"{NAME}(/{NAME})?", "one or two names with a / between them"),
    "node.group": _name,
    "node.state_dir": text(words="the path of a folder"),
    "node.folders": _paths(),
    "node.reply_prefixes": _topics(),
    "node.stats_every_s": number(1, _DAY_S),
    "model.name": text(),
    "model.vision_engine": text(),
    "model.language_engine": text(),
    "model.vision_dtype": text(),
    "model.language_dtype": text(),
    "model.kv": text(),
    "model.threads": whole(1, 1024),
    "model.context_length": whole(1, 1 << 22),
    "model.memory_budget_mib": whole(1, 1 << 24),
    "model.keep_mib": whole(0, 1 << 20),
    "model.mode": _one_of("profile", "auto", "serial", "interleaved", "overlapped"),
    "model.profile": refused("left out: say it in [profile], as id"),
    "profile.id": text(words="auto, the id of a device profile, or the path of a .toml file"),
    "camera[].name": _required_name,
    "camera[].source": _source(),
    "camera[].question": _maybe_empty(MAX_QUESTION_CHARS),
    "camera[].every_s": number(0, _DAY_S),
    "camera[].on_motion": flag(),
    "camera[].max_silence_s": number(1, _DAY_S),
    "camera[].max_tokens": whole(1, 32_768),
    "camera[].deadline_s": number(0.1, 3600),
    "camera[].max_frame_age_s": number(0.1, 3600),
    "camera[].reuse": _one_of("exact", "perceptual", "approximate"),
    "camera[].share": number(0.01, 100),
    "camera[].enabled": flag(),
    "camera[].snapshot": flag(),
    "camera[].snapshot_max_px": whole(64, 4096),
    "camera[].username": text(),
    "camera[].password_env": text(r"[A-Za-z_][A-Za-z0-9_]*", "the name of an environment variable", is_secret=True),
    "camera[].password_file": text(words=_A_PATH, is_secret=True),
    "camera[].password": refused(_NO_PASSWORD),
    "camera[].rotate_deg": Kind("0, 90, 180 or 270", lambda value: value in (0, 90, 180, 270) and value is not False),
    "camera[].region": numbers(4, 0, 1),
    "camera[].max_fps": number(0, 1000),
    "camera[].open_timeout_s": number(0.5, 120),
    "camera[].read_timeout_s": number(0.5, 120),
    "camera[].retry_first_s": number(0.05, 60),
    "camera[].retry_max_s": number(0.05, 3600),
    "camera[].when[].name": _required_name,
    "camera[].when[].question": text(
        rf".{{1,{MAX_QUESTION_CHARS}}}",
        f"a question to be answered with yes or no, of at most {MAX_QUESTION_CHARS} characters on one line",
        is_required=True,
    ),
    "camera[].when[].after": whole(1, 100),
    "limits.max_active": whole(1, 64),
    "limits.max_waiting": whole(0, 10_000),
    "limits.max_per_client": whole(1, 10_000),
    "limits.max_request_bytes": whole(1024, 16 << 20),
    "limits.max_image_bytes": whole(1024, 256 << 20),
    "limits.max_images_bytes": whole(1024, 1 << 30),
    "limits.max_image_mpx": number(0.1, 100),
    "limits.image_wait_s": number(0.1, 3600),
    "limits.max_conversations": whole(0, 1024),
    "limits.max_tokens": whole(1, 32_768),
    "limits.default_deadline_s": number(0.1, _DAY_S),
    "limits.outbox_mib": whole(1, 1024),
    "limits.num_recent_ids": whole(16, 1 << 20),
    "limits.shutdown_s": number(0.1, 60),
    "home_assistant.enabled": flag(),
    "home_assistant.discovery_prefix": text(f"{NAME}(/{NAME})?", "one or two names with a / between them"),
}

RENAMED: Mapping[str, str] = {"enabled": "is_enabled"}
"""Keys of the file whose attribute in `edge_vl.gateway.config` has another name."""
