"""What systemd wants to know of a service: that it is ready, lives, or stops."""

from __future__ import annotations

import contextlib
import socket
from typing import Final

__all__ = ["ServiceManager"]

_READY: Final = "READY=1"


class ServiceManager:
    """Talks to systemd, or to nobody where the program was not started by it.

    Source:
        The protocol of sd_notify(3): datagrams of `NAME=VALUE` lines to the Unix socket named by NOTIFY_SOCKET.
    """

    def __init__(self, address: str | None, watchdog_usec: int | None = None) -> None:
        """Keep where it listens.

        Args:
            address: path of its socket, or a name that begins with `@`; None: nobody listens.
            watchdog_usec: silence after which it restarts the service, in microseconds; None: it does not.
        """
        self._address = None if address is None else address.replace("@", "\0", 1) if address[:1] == "@" else address
        self._watchdog_usec = watchdog_usec

    @property
    def alive_every_s(self) -> float | None:
        """Seconds between two signs of life, half of what systemd allows; None: it wants none."""
        if self._address is None or not self._watchdog_usec:
            return None
        return self._watchdog_usec / 2e6

    def ready(self, status: str = "") -> None:
        """Say that the service does its work."""
        self._send(f"{_READY}\nSTATUS={status}" if status else _READY)

    def alive(self) -> None:
        """Give a sign of life."""
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that the service ends."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if self._address is None:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
            datagrams.setblocking(False)
            datagrams.sendto(text.encode(), self._address)
