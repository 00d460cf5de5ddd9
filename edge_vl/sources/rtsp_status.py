"""Why an RTSP camera cannot be opened. FFmpeg knows, but tells nobody except standard error."""

from __future__ import annotations

import socket
import ssl
import time

from edge_vl.errors import SourceError
from edge_vl.sources.address import Address
from edge_vl.sources.connecting import connect, why_not

__all__ = ["check_reachable", "describe_refusal"]

_PORTS = {"rtsp": 554, "rtsps": 322}
_MAX_REPLY_BYTES = 4096


def check_reachable(address: Address, timeout_s: float) -> None:
    """Connect to a camera's port and hang up.

    Args:
        address: `rtsp` or `rtsps`.
        timeout_s: how long the camera may take; that the system looks its name up comes on top.

    Raises:
        SourceError: nobody is there; saying what went wrong.
    """
    port = _port(address)
    try:
        connect(address.host, port, time.monotonic() + timeout_s).close()
    except OSError as error:
        raise SourceError(f"{address.shown} cannot be opened: {why_not(error, address.host, port)}") from None


def describe_refusal(address: Address, timeout_s: float) -> str:
    """Ask a camera what it has at an address, without user name and password.

    Returns:
        What its answer means to a person; empty when it says nothing that explains anything.
    """
    until_s = time.monotonic() + max(0.1, timeout_s)
    try:
        status = _describe(address, until_s)
    except OSError:
        return ""
    if status == 401:
        given = "; the ones given may be wrong" if address.userinfo else ""
        return f"the camera wants a user name and a password{given}"
    if status == 404:
        return "the camera has no stream at this path"
    return f"the camera answers {status}" if status >= 400 else ""


def _describe(address: Address, until_s: float) -> int:
    """Return the status of a DESCRIBE request (RFC 2326, section 10.2); 0: what came is no answer."""
    url = f"{address.scheme}://{address.place}{address.path}"
    request = f"DESCRIBE {url} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n".encode(errors="replace")
    with connect(address.host, _port(address), until_s) as plain:
        connection = _anonymous_tls(plain, address.host) if address.scheme == "rtsps" else plain
        connection.sendall(request)
        reply = b""
        while b"\r\n" not in reply and len(reply) < _MAX_REPLY_BYTES:
            connection.settimeout(max(0.1, until_s - time.monotonic()))
            received = connection.recv(_MAX_REPLY_BYTES)
            if not received:
                break
            reply += received
    words = reply.split(b"\r\n", 1)[0].split()
    return int(words[1]) if len(words) > 1 and words[0].startswith(b"RTSP/") and words[1].isdigit() else 0


def _anonymous_tls(plain: socket.socket, host: str) -> ssl.SSLSocket:
    """Speak TLS with whoever it is: nothing secret is said."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context.wrap_socket(plain, server_hostname=host)


def _port(address: Address) -> int:
    return address.port or _PORTS[address.scheme]
