"""A broker's address in one line. Pure."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from edge_vl.errors import RequestError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.topics import check_prefix

__all__ = ["check_userinfo", "read_broker_url"]

_PORTS = {"mqtt": 1883, "mqtts": 8883}


def read_broker_url(
    url: str,
    *,
    password: str | None = None,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    client_id: str | None = None,
    field: str = "url",
) -> tuple[BrokerSettings, str | None]:
    """Read `mqtt://user@host:port/prefix`, `mqtts://...` or `host:port`.

    Args:
        url: the address; all but the host may be left out.
        password: goes with the user; never in the address, where it would be seen in lists of processes and in logs.
        ca: file of trusted certificates.
        cert: the client's certificate.
        key: its key.
        client_id: None: one is made.
        field: what errors call the address.

    Returns:
        The settings, and the prefix of all topics, None where the address has none.

    Raises:
        RequestError: it is no such address, or has a password in it. Its message shows nothing that may be one.
    """
    shown = f"{field} is mqtt://user@host:port or mqtts://user@host:port, maybe with /prefix behind it"
    if not isinstance(url, str) or not url.strip():
        raise RequestError(f"{shown}, not nothing", field=field)
    text = url.strip()
    if "://" not in text:
        text = f"mqtt://{text}"
    check_userinfo(text, field)
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:  # its words quote what stands behind a colon, which may be a password that lacks its host
        raise RequestError(
            f"{shown}; what was given is none: the port is no number up to 65535, or a [ has no ]", field=field
        ) from None
    if parts.scheme not in _PORTS:
        raise RequestError(f"{shown}, not {parts.scheme!r:.20}://", field=field)
    if not host or any(character.isspace() for character in text):
        raise RequestError(f"{shown}; what was given names no host, or has a space in it", field=field)
    if parts.query or parts.fragment:
        raise RequestError(f"{shown}; nothing is understood behind a ? or #", field=field)
    if port == 0:
        raise RequestError(f"{field}: port 0 cannot be connected to", field=field)
    settings = BrokerSettings(
        host=host,
        port=_PORTS[parts.scheme] if port is None else port,
        is_tls=parts.scheme == "mqtts",
        username=unquote(parts.username) if parts.username else None,
        password=password,
        ca=ca,
        cert=cert,
        key=key,
        client_id=client_id,
    )
    path = parts.path.strip("/")
    return settings, check_prefix(path, f"the prefix in {field}") if path else None


def check_userinfo(url: str, field: str) -> None:
    """See that all there is before the last `@` of an address is a user's name.

    A password may hold any character, so where it ends is not looked for in the way of a URL: no `@` belongs behind
    the host of a broker.

    Raises:
        RequestError: there is a password, or a name that is not encoded. Neither is shown.
    """
    userinfo = url.partition("://")[2].rpartition("@")[0]
    if ":" in userinfo:
        raise RequestError(
            f"{field} has a password in it, where others can see it; leave it out there and give it by "
            "EDGE_VL_MQTT_PASSWORD or a password file",
            field=field,
        )
    if any(character in userinfo for character in "/?#@"):
        raise RequestError(
            f"{field}: what stands before the last @ is the user's name; in it, write / as %2F, ? as %3F, # as %23 "
            "and @ as %40",
            field=field,
        )
