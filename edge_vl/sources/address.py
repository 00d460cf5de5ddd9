"""Addresses of cameras and brokers: what of them may be shown, and how a password gets in. Pure."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, field, replace
from urllib.parse import quote, quote_from_bytes, unquote, unquote_to_bytes

from edge_vl.errors import RequestError

__all__ = [
    "Address",
    "has_credentials",
    "masked",
    "on_one_line",
    "read_address",
    "shown_pipeline",
    "with_credentials",
]

_HIDDEN = "***"

_ADDRESS = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,19})://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<query>.*)", re.DOTALL
)
_HOST_AND_PORT = re.compile(
    r"(?:\[(?P<ip6>[0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|(?P<name>[^\[\]:@%\\'\"<>]+))(?::(?P<port>\d{0,5}))?"
)
_ASCII_HOST = re.compile(rb"[A-Za-z0-9._-]+")
_MAX_PORT = 65535

_ADVICE = (
    "A user name or a password with one of @ : / ? # in it must be given by --username and --password-file (username, "
    "and password_env or password_file, in a gateway's file), or percent-encoded: %40 %3A %2F %3F %23. So must an @ "
    "that belongs to the path; and the numbers of an IPv6 address stand in [ ]"
)

# What is looked for in a text: nobody knows where in it an address ends, nor what is in a password that was not
# encoded. So all goes that is between the first :// and the last @.
_TO_THE_LAST_AT = re.compile(r"(?P<slashes>:/{1,2}).*@", re.DOTALL)
_QUERY = re.compile(r"(?P<before>://[^\s?]*\?)(?P<pairs>\S+)")
_SECRET_VALUE = re.compile(
    r"(?P<name>[\w.-]*(?:pass|pwd|pw|token|secret|key|auth|sig|credential|session|cookie)[\w.-]*\s*=\s*)"
    r"(?P<value>\"[^\"]*\"?|'[^']*'?|[^&\s]+)",
    re.IGNORECASE,
)

_HARMLESS_PAIR = re.compile(
    r"(?:channel|chn?|camera|cam|stream|subtype|fps|width|height|resolution)=[0-9]{1,4}(?:x[0-9]{1,4})?|\.\.\.",
    re.IGNORECASE,
)
_HARMLESS_PATH = re.compile(r"[A-Za-z0-9._~/+,:-]*")
_FIRST_ELEMENT = re.compile(r"\s*([a-z][A-Za-z0-9_-]{0,39})(?=[\s!]|$)")
_TOKEN = re.compile(r"(?=[A-Za-z0-9]*[0-9])(?=[A-Za-z0-9]*[A-Za-z])[A-Za-z0-9]{12,}")


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a stream, understood whole: there is no doubt where in it a password is.

    Attributes:
        scheme: in small letters.
        host: as a resolver takes it; without brackets.
        port: None: the usual one.
        path: with its query and all; empty or beginning with one of / ? #. May hold a secret.
        userinfo: user name, and password behind a colon, percent-encoded; empty: none.
    """

    scheme: str
    host: str
    port: int | None
    path: str = field(repr=False)
    userinfo: str = field(default="", repr=False)

    @property
    def url(self) -> str:
        """All of it, for those who connect. Never shown."""
        return f"{self.scheme}://{self.userinfo}{'@' if self.userinfo else ''}{self.place}{self.path}"

    @property
    def place(self) -> str:
        """Host and port, as they stand in an address."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def username(self) -> str | None:
        """Decoded; None: there is none."""
        return unquote(self.userinfo.partition(":")[0]) if self.userinfo else None

    @property
    def password(self) -> str:
        """Decoded; empty: there is none."""
        return unquote(self.userinfo.partition(":")[2])

    @property
    def shown(self) -> str:
        """What may be shown: made of parts that hold no secret. `...` stands for what might be one."""
        path, _, query = self.path.partition("#")[0].partition("?")
        if _HARMLESS_PATH.fullmatch(path):
            path = "/".join("..." if _TOKEN.search(part) else part for part in path.split("/"))
        else:
            path = "/..."
        if query:
            pairs = [pair if _HARMLESS_PAIR.fullmatch(pair) else "..." for pair in query.split("&")]
            path += "?" + "&".join(dict.fromkeys(pairs))
        return f"{self.scheme}://{f'{_HIDDEN}@' if self.userinfo else ''}{self.place}{path}"


def read_address(text: str) -> Address:
    """Understand the address of a stream.

    Raises:
        RequestError: it is none, or it is in doubt where the user name and the password in it end. Shows none of it.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None:
        raise RequestError("that is no address: an address is rtsp://HOST/PATH or the like", field="source")
    scheme = found["scheme"].lower()
    if any(character.isspace() or not character.isprintable() for character in text):
        raise RequestError(
            f"there is a space or the like in the {scheme} address; write it as %20. {_ADVICE}", field="source"
        )
    userinfo, _, place = found["authority"].rpartition("@")
    rest = found["path"] + found["query"]
    if "@" in rest:
        raise RequestError(f"an @ stands behind the host of the {scheme} address. {_ADVICE}", field="source")
    if not place:
        raise RequestError(f"there is no host in the address; an address is {scheme}://HOST/PATH", field="source")
    parts = _HOST_AND_PORT.fullmatch(place)
    port = int(parts["port"]) if parts is not None and parts["port"] else None
    if parts is None or (port is not None and not 0 < port <= _MAX_PORT):
        raise RequestError(
            f"the {scheme} address names no host, or a port that is no number up to {_MAX_PORT}. {_ADVICE}",
            field="source",
        )
    host = parts["ip6"].lower() if parts["ip6"] else _ascii_host(parts["name"])
    if host is None:
        raise RequestError(f"the {scheme} address has a host that cannot be one's name. {_ADVICE}", field="source")
    name, colon, password = userinfo.partition(":")
    encoded = f"{_encoded(name)}{colon}{_encoded(password)}"
    return Address(scheme, host, port, rest, encoded)


def masked(text: str) -> str:
    """Return a text without the user names, passwords and queries of addresses in it, and values such as `token=...`.

    Hides too much rather than too little; for texts that others wrote. What shows an address that was understood takes
    `Address.shown`. Masking what is masked changes nothing.
    """
    text = _TO_THE_LAST_AT.sub(rf"\g<slashes>{_HIDDEN}@", text)
    text = _QUERY.sub(lambda found: found["before"] + _masked_pairs(found["pairs"]), text)
    return _SECRET_VALUE.sub(rf"\g<name>{_HIDDEN}", text)


def shown_pipeline(pipeline: str) -> str:
    """Return what of a GStreamer pipeline may be shown: its first element. Any property may hold a secret."""
    found = _FIRST_ELEMENT.match(pipeline)
    return "..." if found is None else f"{found[1]} ..." if pipeline[found.end() :].strip() else found[1]


def on_one_line(text: str) -> str:
    """Return a text that steers no terminal and breaks no log: a sign stands for what cannot be printed."""
    return "".join(one if one.isprintable() else " " if one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text)


def has_credentials(url: str) -> bool:
    """Say whether a URL has a user name or a password in it."""
    found = _ADDRESS.fullmatch(url)
    return found is not None and "@" in found["authority"]


def with_credentials(url: str, username: str | None, password: str | None) -> str:
    """Put a user name and a password into a URL, encoded so that any character may be in them.

    Args:
        url: without any, unless both others are None.
        username: None: none.
        password: None: none.

    Raises:
        RequestError: the URL has some already, is none, or there is a password without a user name.
    """
    if username is None and password is None:
        return url
    if username is None:
        raise RequestError("there is a password but no user name for it", field="username")
    address = read_address(url)
    if address.userinfo:
        raise RequestError("the address has a user name in it already; give it in one place", field="username")
    userinfo = quote(username, safe="") + ("" if password is None else f":{quote(password, safe='')}")
    return replace(address, userinfo=userinfo).url


def _masked_pairs(pairs: str) -> str:
    shown = []
    for pair in pairs.split("&"):
        name, equals, _ = pair.partition("=")
        is_plain = bool(_HARMLESS_PAIR.fullmatch(pair)) or not pair
        shown.append(pair if is_plain else f"{name}={_HIDDEN}" if equals else _HIDDEN)
    return "&".join(shown)


def _ascii_host(name: str) -> str | None:
    """Return a host's name as a resolver takes it; None: it cannot be one."""
    try:
        found = unicodedata.normalize("NFKC", name).encode("idna")
    except UnicodeError:
        return None
    return found.decode().lower() if _ASCII_HOST.fullmatch(found) else None


def _encoded(part: str) -> str:
    """Percent-encode what is not yet: the same to those who decode it, and no character of it can be misunderstood."""
    return quote_from_bytes(unquote_to_bytes(part), safe="")
