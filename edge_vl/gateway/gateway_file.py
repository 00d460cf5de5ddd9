"""Reading a gateway file: checked once, passwords fetched from where it says they are."""

from __future__ import annotations

import difflib
import logging
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from edge_vl.backoff import Backoff
from edge_vl.errors import ConfigError, RequestError
from edge_vl.gateway.config import (
    CameraConfig,
    GatewayConfig,
    HomeAssistantConfig,
    Limits,
    ModelConfig,
    WhenConfig,
)
from edge_vl.gateway.gateway_schema import KEYS, RENAMED
from edge_vl.gateway.secret_file import read_secret
from edge_vl.kv_policy import parse_kv_policy
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.broker_url import read_broker_url
from edge_vl.mqtt.reply_rule import RESERVED_NAMES
from edge_vl.sources.address import has_credentials, masked
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.view import View
from edge_vl.toml_file import read_toml

__all__ = ["default_node", "read_gateway_file"]

_log = logging.getLogger(__name__)

_NO_PATH = re.compile(r"\d+|[A-Za-z][A-Za-z0-9+.-]+:.*|synthetic(?:@.*)?", re.DOTALL)
"""Sources that are no paths: numbers of devices, URLs and what has a word and a colon, the synthetic camera."""

_WORDS = ("synthetic", "picamera:0", "csi:0")
"""Sources that are one word, and easily misspelt."""

Table = Mapping[str, Any]
Note = Callable[[str], object]


def read_gateway_file(path: str | Path, *, on_note: Note = _log.warning) -> GatewayConfig:
    """Read a gateway file. Relative paths in it start at its folder.

    Args:
        path: of the TOML file.
        on_note: told about what works and should not stay, such as a file with a password that everybody can read.

    Raises:
        ConfigError: it cannot be read, or says something that cannot be used.
    """
    path = Path(path)
    return _Reader(path, on_note).read()


def default_node() -> str:
    """Return the name of this host, made fit for a level of a topic."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", socket.gethostname().partition(".")[0]).strip("-")[:64]
    return f"node-{name}"[:64].rstrip("-") if not name or name in RESERVED_NAMES else name


class _Reader:
    """Reads one file; every step may say which key cannot be used."""

    def __init__(self, path: Path, on_note: Note) -> None:
        self._path = path
        self._folder = path.absolute().parent
        self._on_note = on_note

    def read(self) -> GatewayConfig:
        content = read_toml(self._path, KEYS, error_type=ConfigError)
        node = content.get("node", {})
        limits = Limits(**content.get("limits", {}))
        if limits.max_image_bytes > limits.max_images_bytes:
            self._refuse("limits.max_image_bytes", "at most limits.max_images_bytes", f"{limits.max_image_bytes}")
        if "broker" not in content:
            self._refuse("broker.url", KEYS["broker.url"].expected, "nothing")
        config = GatewayConfig(
            broker=self._broker(content["broker"]),
            node=node.get("name") or default_node(),
            prefix=node.get("prefix", "edge_vl"),
            group=node.get("group"),
            model=self._model(content.get("model", {}), content.get("profile", {})),
            cameras=tuple(self._camera(table, f"camera[{i}]") for i, table in enumerate(content.get("camera", []))),
            limits=limits,
            home_assistant=HomeAssistantConfig(**_renamed(content.get("home_assistant", {}))),
            folders=tuple(self._absolute(folder) for folder in node.get("folders", ())),
            reply_prefixes=tuple(prefix.rstrip("/") for prefix in node.get("reply_prefixes", ())),
            state_dir=self._absolute(node["state_dir"]) if "state_dir" in node else None,
            stats_every_s=node.get("stats_every_s", 30.0),
        )
        if config.node in RESERVED_NAMES:
            self._refuse("node.name", f"none of {', '.join(sorted(RESERVED_NAMES))}", repr(config.node))
        self._check_unique("camera", [camera.name for camera in config.cameras])
        for index, camera in enumerate(config.cameras):
            self._check_unique(f"camera[{index}].when", [when.name for when in camera.when])
        return config

    def _broker(self, table: Table) -> BrokerSettings:
        url = table["url"]
        if ":" in url.partition("://")[2].rpartition("@")[0]:
            why = (
                "there is a password in it; leave it out there, and name a variable that holds it with "
                "broker.password_env, or a file with it with broker.password_file"
            )
            self._refuse("broker.url", KEYS["broker.url"].expected, "what is not shown", why=why)
        files = {name: self._file(table, name, "broker") for name in ("ca", "cert", "key")}
        password = self._password(table, "broker")
        try:
            settings, prefix = read_broker_url(
                url,
                password=password,
                ca=files["ca"],
                cert=files["cert"],
                key=files["key"],
                client_id=table.get("client_id"),
            )
        except RequestError as error:
            self._refuse("broker.url", KEYS["broker.url"].expected, "what is not shown", why=str(error))
        if prefix is not None:
            self._refuse("broker.url", "without a prefix; say it in node.prefix", masked(url))
        for name, file in files.items():
            if file is not None and not settings.is_tls:
                self._refuse(f"broker.{name}", "left out, or broker.url with mqtts://", str(file))
        if files["key"] is not None and files["cert"] is None:
            self._refuse("broker.cert", "the certificate that broker.key belongs to", "nothing")
        if "username" in table and settings.username not in (None, table["username"]):
            self._refuse("broker.username", "the one in broker.url, or only one of both", repr(table["username"]))
        username = table.get("username", settings.username)
        if password is not None and username is None:
            self._refuse("broker.username", "the user whose password is given", "nothing")
        if username is not None and password is None and settings.cert is None:
            self._on_note(
                f"broker.username is {username!r}, and no password is given; most brokers want one: name it with "
                "broker.password_env or broker.password_file (EDGE_VL_MQTT_PASSWORD counts only where password_env = "
                '"EDGE_VL_MQTT_PASSWORD")'
            )
        known = {key: table[key] for key in ("protocol", "keepalive_s", "connect_timeout_s") if key in table}
        return replace(settings, username=username, backoff=self._backoff(table, "broker"), **known)

    def _model(self, table: Table, profile: Table) -> ModelConfig:
        if "kv" in table:
            try:
                parse_kv_policy(table["kv"])
            except RequestError as error:
                self._refuse("model.kv", "a KV policy", repr(table["kv"]), why=str(error))
        values = dict(table)
        name = values.get("name", "")
        if name.startswith(("~", "./", "../")) or ("/" in name and (self._folder / name).exists()):
            values["name"] = str(self._absolute(name))
        said = profile.get("id", "auto")
        return ModelConfig(**values, profile=str(self._absolute(said)) if said.endswith(".toml") else said)

    def _camera(self, table: Table, where: str) -> CameraConfig:
        values = _renamed(table)
        settings = {key: values.pop(key) for key in ("open_timeout_s", "read_timeout_s") if key in values}
        max_fps = values.pop("max_fps", CameraSettings().max_fps)
        for key in ("retry_first_s", "retry_max_s", "rotate_deg", "region", "password_env", "password_file"):
            values.pop(key, None)
        values["source"] = self._source(str(table["source"]), where)
        values["when"] = tuple(WhenConfig(**when) for when in table.get("when", ()))
        password = self._password(table, where)
        if password is not None and "username" not in table:
            self._refuse(f"{where}.username", "the user whose password is given", "nothing")
        if "every_s" in values and not values["every_s"]:
            values["every_s"] = None
        return CameraConfig(
            **values,
            password=password,
            settings=CameraSettings(
                **settings,
                max_fps=max_fps or None,
                backoff=self._backoff(table, where),
                view=self._view(table, where),
            ),
        )

    def _source(self, source: str, where: str) -> str:
        if has_credentials(source):
            self._refuse(
                f"{where}.source",
                "an address without user name and password; they go to username, and password_env or password_file",
                masked(source),
            )
        if masked(source) != source:
            self._on_note(f"{where}.source seems to hold a secret; keep others from reading {self._path}")
        if _NO_PATH.fullmatch(source):
            return source
        path = self._absolute(source)
        close = difflib.get_close_matches(source.partition("@")[0].lower(), _WORDS, 1, cutoff=0.75)
        if close and not path.exists():
            why = f"there is no file {source!r:.60}; did you mean {close[0]}?"
            self._refuse(f"{where}.source", KEYS["camera[].source"].expected, f"{source!r:.60}", why=why)
        return str(path)

    def _view(self, table: Table, where: str) -> View:
        region = table.get("region")
        try:
            return View(table.get("rotate_deg", 0), None if region is None else tuple(region))
        except RequestError as error:
            self._refuse(f"{where}.region", "left, top, right, bottom", repr(region), why=str(error))

    def _backoff(self, table: Table, where: str) -> Backoff:
        usual = Backoff()
        first_s = table.get("retry_first_s", min(usual.first_s, table.get("retry_max_s", usual.first_s)))
        cap_s = table.get("retry_max_s", max(usual.cap_s, first_s))
        if first_s > cap_s:
            self._refuse(f"{where}.retry_first_s", f"at most retry_max_s ({cap_s:g})", f"{first_s:g}")
        return Backoff(first_s, cap_s)

    def _password(self, table: Table, where: str) -> str | None:
        try:
            return read_secret(
                table.get("password_env"), self._file(table, "password_file", where), on_note=self._on_note
            )
        except RequestError as error:
            key = f"{where}.{error.field}"
            self._refuse(key, "a password that can be read", "what is not shown", why=str(error))

    def _file(self, table: Table, name: str, where: str) -> Path | None:
        if name not in table:
            return None
        file = self._absolute(table[name])
        if not file.is_file():
            is_shown = name != "password_file"  # it may be the password itself, put into the wrong place
            self._refuse(
                f"{where}.{name}",
                "the path of a file that is there",
                str(file) if is_shown else "one that is not shown",
            )
        return file

    def _absolute(self, text: str) -> Path:
        try:
            return self._folder / Path(text).expanduser()
        except RuntimeError:  # no home folder
            return self._folder / text

    def _check_unique(self, where: str, names: list[str]) -> None:
        for index, name in enumerate(names):
            if name in names[:index]:
                self._refuse(f"{where}[{index}].name", f"another name than that of {where}[{names.index(name)}]", name)

    def _refuse(self, key: str, expected: str, got: str, *, why: str = "") -> NoReturn:
        said = why or f"it should be {expected}, not {got}"
        raise ConfigError(
            f"{self._path}: {key}: {said}", path=str(self._path), key=key, expected=expected, got=got
        ) from None


def _renamed(table: Table) -> dict[str, Any]:
    return {RENAMED.get(key, key): value for key, value in table.items()}
