"""Addresses of cameras and brokers: what of them may be shown, and how a password gets in. Pure."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit, urlunsplit

from edge_vl.errors import RequestError

__all__ = ["has_credentials", "masked", "with_credentials"]

_HIDDEN = "***"

# All up to the last @ before the first / ? # space or quote: passwords may hold an @ that nobody encoded.
_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<userinfo>[^\s/?#'\"<>]*)@")

# A password may also hold a / ? or # that nobody encoded; the @ behind it gives it away, if it is a host's.
_LOOSE_USERINFO = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<userinfo>[^\s:/?#'\"<>]*:[^\s'\"<>]*)@(?=[\w\[.-])"
)

_SECRET_VALUE = re.compile(
    r"(?P<name>[?&;\s,!][\w.-]*?(?:pass|passwd|password|pwd|token|secret|apikey|api_key|api-key|auth|signature|sig|"
    r"user-pw|key)[\w.-]*=)"
    r"(?P<value>\"[^\"]*\"|'[^']*'|[^&;#\s'\"<>!]+)",
    re.IGNORECASE,
)


def masked(text: str) -> str:
    """Return a text with the user names and passwords of all URLs in it hidden, and values such as `token=...`.

    Hides too much rather than too little. Masking what is masked changes nothing.
    """
    text = _LOOSE_USERINFO.sub(rf"\g<scheme>{_HIDDEN}@", text)
    text = _USERINFO.sub(rf"\g<scheme>{_HIDDEN}@", text)
    return _SECRET_VALUE.sub(rf"\g<name>{_HIDDEN}", text)


def has_credentials(url: str) -> bool:
    """Say whether a URL has a user name or a password in it."""
    return _USERINFO.match(url) is not None


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
    if has_credentials(url):
        raise RequestError(f"the address has a user name in it already: {masked(url)}", field="username")
    parts = urlsplit(url)
    if not parts.scheme or not parts.netloc:
        raise RequestError(f"a user name needs an address with a host, not {masked(url)!r:.120}", field="username")
    userinfo = quote(username, safe="") + ("" if password is None else f":{quote(password, safe='')}")
    return urlunsplit(parts._replace(netloc=f"{userinfo}@{parts.netloc}"))
