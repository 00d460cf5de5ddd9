"""A request to a camera over HTTP, whose answer has begun before a moment, however slowly its head comes."""

from __future__ import annotations

import base64
import http.client
import io
import socket
import ssl
import string
import time
import urllib.request
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urljoin

from edge_vl.errors import RequestError, SourceError
from edge_vl.sources.address import Address, read_address
from edge_vl.sources.connecting import connect, why_not

__all__ = ["HttpAnswer", "TimedReads", "request"]

_PORTS = {"http": 80, "https": 443}
_REDIRECTS = (301, 302, 303, 307, 308)
_MAX_REDIRECTS = 5
_LEAST_S = 0.05


class TimedReads(io.RawIOBase):
    """What comes over a connection, until a moment: many small pieces have no more time than one.

    Attributes:
        until_s: moment of the monotonic clock from which on a read raises `TimeoutError`.
    """

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        """Take over a connection; `close` closes it."""
        super().__init__()
        self.until_s = until_s
        self._connection = connection

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Wait for bytes.

        Raises:
            OSError: the connection broke, or the moment has passed.
        """
        left_s = self.until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the time is up")
        self._connection.settimeout(left_s)
        return self._connection.recv_into(buffer)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return what `http.client` reads from."""
        return io.BufferedReader(self)

    def close(self) -> None:
        """Hang up."""
        super().close()
        self._connection.close()


class HttpAnswer:
    """An answer whose head has been read.

    Attributes:
        response: the head, and what comes behind it.
        reads: the connection under it, to give what follows other deadlines.
        address: that answered, after redirections.
    """

    def __init__(self, response: http.client.HTTPResponse, reads: TimedReads, address: Address) -> None:
        """Take them over."""
        self.response = response
        self.reads = reads
        self.address = address

    def close(self) -> None:
        """Hang up."""
        self.response.close()
        self.reads.close()


def request(address: Address, until_s: float) -> HttpAnswer:
    """Ask for what is at an address; follow redirections, and give user name and password where they are wanted.

    They are given to the host they are for and to nobody else. No proxy is used: a camera is near.

    Args:
        address: `http` or `https`.
        until_s: moment of the monotonic clock by which the last head is to be there.

    Returns:
        An answer of any status but a redirection.

    Raises:
        SourceError: nobody answers, or not in HTTP. In our words: those of libraries quote addresses.
        TimeoutError: not in time.
    """
    authorization = ""
    for _ in range(_MAX_REDIRECTS + 1):
        answer = _ask(address, authorization, until_s)
        status = answer.response.status
        if status == 401 and not authorization and address.userinfo:
            try:
                authorization = _authorization(address, answer.response)
            except SourceError:
                answer.close()
                raise
            if authorization:
                answer.close()
                answer = _ask(address, authorization, until_s)
                status = answer.response.status
        if status not in _REDIRECTS:
            return answer
        answer.close()
        address, authorization = _redirected(address, answer.response.headers.get("Location", "")), ""
    raise SourceError("it sends us from one address to the next, without an end")


def _ask(address: Address, authorization: str, until_s: float) -> HttpAnswer:
    port = address.port or _PORTS[address.scheme]
    headers = {"User-Agent": "edge-vl", "Accept": "*/*", "Connection": "close"}
    if authorization:
        headers["Authorization"] = authorization
    connection: socket.socket | None = None
    try:
        connection = connect(address.host, port, until_s)
        if address.scheme == "https":
            connection = ssl.create_default_context().wrap_socket(connection, server_hostname=address.host)
        sender = http.client.HTTPConnection(address.host, address.port)
        sender.sock = connection
        sender.request("GET", _target(address), headers=headers)
        reads = TimedReads(connection, until_s)
        response = http.client.HTTPResponse(reads, method="GET")  # type: ignore[arg-type]  # wants makefile() alone
        response.begin()
    except TimeoutError:
        _close(connection)
        raise
    except http.client.RemoteDisconnected:
        _close(connection)
        raise SourceError(f"{address.host} hung up without an answer") from None
    except OSError as error:
        _close(connection)
        raise SourceError(why_not(error, address.host, port)) from None
    except (http.client.HTTPException, ValueError) as error:
        _close(connection)
        raise SourceError(f"what answers on port {port} does not speak HTTP ({type(error).__name__})") from None
    return HttpAnswer(response, reads, address)


def _close(connection: socket.socket | None) -> None:
    if connection is not None:
        connection.close()


def _target(address: Address) -> str:
    path = address.path.partition("#")[0]
    return quote(path if path.startswith("/") else f"/{path}", safe=string.punctuation)


def _redirected(address: Address, location: str) -> Address:
    """Return where a camera sends us; the user name and the password go along to the same host only."""
    here = f"{address.scheme}://{address.place}{_target(address)}"
    try:
        there = read_address(urljoin(here, location))
    except (RequestError, ValueError):
        raise SourceError("it sends us to another address that makes no sense") from None
    if there.scheme not in _PORTS:
        raise SourceError("it sends us to an address that is neither http:// nor https://")
    is_same = there.host == address.host and there.scheme in (address.scheme, "https")
    return replace(there, userinfo=address.userinfo if is_same else "")


def _authorization(address: Address, response: http.client.HTTPResponse) -> str:
    """Return what proves that we know the password, in the better of the ways that the server knows; empty: none.

    Raises:
        SourceError: it asks in a way that cannot be understood.
    """
    user, password = address.username or "", address.password
    schemes = {}
    for challenge in response.headers.get_all("WWW-Authenticate", []):
        scheme, _, values = challenge.partition(" ")
        schemes[scheme.lower()] = values
    if "digest" in schemes:
        url = f"{address.scheme}://{address.place}{_target(address)}"
        passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, url, user, password)
        try:
            parameters = [one for one in urllib.request.parse_http_list(schemes["digest"]) if one]
            asked = urllib.request.parse_keqv_list(parameters)
            proof = urllib.request.HTTPDigestAuthHandler(passwords).get_authorization(
                urllib.request.Request(url), asked
            )
        except Exception:  # what a library makes of a damaged question
            proof = None
        if proof:
            return f"Digest {proof}"
        if "basic" not in schemes:
            raise SourceError("the camera wants a user name and a password in a way that is not understood")
    if "basic" in schemes:
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    return ""
