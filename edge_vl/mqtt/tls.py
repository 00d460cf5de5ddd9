"""What both sides of an encrypted connection show each other."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path
from typing import Any

from edge_vl.errors import BrokerError
from edge_vl.mqtt.broker_settings import BrokerSettings

__all__ = ["ClientContext", "client_context", "tls_error"]


class ClientContext(ssl.SSLContext):
    """A context that can close a socket whose handshake failed; whoever asked for it never had it.

    Attributes:
        last_socket: the socket made last.
    """

    last_socket: ssl.SSLSocket | None = None

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        """Wrap a socket, and remember it."""
        self.last_socket = super().wrap_socket(sock, *args, **kwargs)
        return self.last_socket

    def close_last(self) -> None:
        """Close the socket made last, if there is one."""
        if self.last_socket is not None:
            self.last_socket.close()
            self.last_socket = None


def client_context(settings: BrokerSettings) -> ClientContext:
    """Read certificates anew, so that renewed ones are used without a restart.

    Raises:
        BrokerError: a file is missing or is not what it should be (`tls`).
    """
    context = ClientContext(ssl.PROTOCOL_TLS_CLIENT)
    for what, path in (("ca", settings.ca), ("cert", settings.cert), ("key", settings.key)):
        if path is not None and not path.is_file():
            raise BrokerError(f"the file of the broker's {what!r} is not there: {path}", reason="tls")
    if settings.ca is None:
        context.load_default_certs()
    else:
        try:
            context.load_verify_locations(cafile=settings.ca)
        except OSError as error:
            raise _file_error("ca", settings.ca, "certificates in PEM form", error) from error
    if settings.cert is not None:
        try:
            context.load_cert_chain(settings.cert, settings.key, password=lambda: "")
        except OSError as error:
            what = "a certificate in PEM form and its key, without a passphrase"
            raise _file_error("cert", settings.cert, what, error) from error
    return context


def _file_error(key: str, path: Path, expected: str, error: OSError) -> BrokerError:
    return BrokerError(f"the broker's {key!r} should be {expected}, but {path} cannot be used: {error}", reason="tls")


def tls_error(error: ssl.SSLError, address: str) -> BrokerError:
    """Say what an error of the handshake means, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerError(
            f"the certificate of the broker {address} is not accepted: {error.verify_message}; see that `ca` names the "
            "authority that signed it, that the host's name is in it, and that this machine's clock is right",
            reason="tls",
        )
    reason = getattr(error, "reason", None) or str(error)  # there is none where OpenSSL was not asked
    if "ALERT" in reason:
        return BrokerError(
            f"the broker {address} refuses the encrypted connection ({reason}); it may want a certificate of "
            "this client: see `cert` and `key`",
            reason="tls",
        )
    return BrokerError(
        f"no encrypted connection to the broker {address} ({reason}); is it a port for TLS?", reason="tls"
    )
