"""Connections to cameras in the network, made before a moment, and words for what can go wrong."""

from __future__ import annotations

import socket
import ssl
import time

__all__ = ["connect", "why_not"]

_LEAST_S = 0.05


def connect(host: str, port: int, until_s: float) -> socket.socket:
    """Connect to the first of a host's addresses that answers.

    Args:
        host: a name, or an address without brackets.
        port: 1 to 65535.
        until_s: moment of the monotonic clock; that the system looks the name up comes on top.

    Raises:
        OSError: nobody answers; `why_not` has words for it.
    """
    places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    error: OSError = OSError("it has no address")
    for index, (family, kind, protocol, _, place) in enumerate(places):
        connection = socket.socket(family, kind, protocol)
        try:
            left_s = until_s - time.monotonic()
            connection.settimeout(max(_LEAST_S, left_s / (len(places) - index)))
            connection.connect(place)
            connection.settimeout(max(_LEAST_S, until_s - time.monotonic()))
            return connection
        except OSError as raised:
            connection.close()
            error = raised
    raise error


def why_not(error: OSError, host: str, port: int) -> str:
    """Say why a host cannot be talked to. Nothing in it is from an address but host and port."""
    if isinstance(error, socket.gaierror):
        return f"there is no host {host!r:.80} ({error.strerror})"
    if isinstance(error, ConnectionRefusedError):
        return f"nobody listens on port {port} of {host}"
    if isinstance(error, TimeoutError):
        return f"{host} does not answer on port {port}"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the certificate of {host} is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"{host} does not speak TLS on port {port} as it should ({error.reason or 'no reason is known'})"
    if isinstance(error, ConnectionError):
        return f"{host} hung up"
    return f"{host} cannot be reached: {error.strerror or type(error).__name__}"
