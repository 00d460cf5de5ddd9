"""Why an RTSP camera cannot be opened. FFmpeg knows, but tells nobody except standard error."""

from __future__ import annotations

import socket
import ssl
import time
from urllib.parse import urlsplit, urlunsplit

from edge_vl.errors import SourceError
from edge_vl.sources.address import has_credentials, masked

__all__ = ["check_reachable", "describe_refusal"]

_PORTS = {"rtsp": 554, "rtsps": 322}
_MAX_REPLY_BYTES = 4096


def check_reachable(url: str, timeout_s: float) -> None:
    """Connect to a camera's port and hang up.

    Args:
        url: `rtsp://` or `rtsps://`.
        timeout_s: how long the camera may take; that the system looks its name up comes on top.

    Raises:
        SourceError: nobody is there; saying what went wrong.
    """
    host, port = _host_and_port(url)
    try:
        with socket.create_connection((host, port), timeout_s):
            return
    except socket.gaierror as error:
        reason = f"there is no host {host!r:.80} ({error.strerror})"
    except ConnectionRefusedError:
        reason = f"nobody listens on port {port} of {host}"
    except TimeoutError:
        reason = f"{host} does not answer on port {port}"
    except OSError as error:
        reason = f"{host} cannot be reached: {error.strerror or error}"
    raise SourceError(f"{masked(url)} cannot be opened: {reason}")


def describe_refusal(url: str, timeout_s: float) -> str:
    """Ask a camera what it has at an address, without user name and password.

    Returns:
        What its answer means to a person; empty when it says nothing that explains anything.
    """
    until_s = time.monotonic() + max(0.1, timeout_s)
    try:
        status = _describe(url, until_s)
    except OSError:
        return ""
    if status == 401:
        given = "; the ones given may be wrong" if has_credentials(url) else ""
        return f"the camera wants a user name and a password{given}"
    if status == 404:
        return "the camera has no stream at this path"
    return f"the camera answers {status}" if status >= 400 else ""


def _describe(url: str, until_s: float) -> int:
    """Return the status of a DESCRIBE request (RFC 2326, section 10.2); 0: what came is no answer."""
    host, port = _host_and_port(url)
    parts = urlsplit(url)
    address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    request = f"DESCRIBE {address} RTSP/1.0\r\nCSeq: 1\r\nAccept: application/sdp\r\n\r\n".encode(errors="replace")
    with socket.create_connection((host, port), max(0.1, until_s - time.monotonic())) as plain:
        connection = _anonymous_tls(plain, host) if parts.scheme.lower() == "rtsps" else plain
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


def _host_and_port(url: str) -> tuple[str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise SourceError(f"{masked(url)} is no address: {error}") from None
    if not host:
        raise SourceError(f"{masked(url)} is no address: it names no host")
    return host, port or _PORTS.get(parts.scheme.lower(), 554)
