"""How a broker is reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from edge_vl.backoff import Backoff

__all__ = ["BrokerSettings", "Protocol"]

Protocol = Literal["auto", "3.1.1", "5"]


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How a broker is reached. Never printed as it is: `repr` hides the password.

    Attributes:
        host: name or address.
        port: 1883, or 8883 with TLS, unless told.
        is_tls: whether the connection is encrypted.
        username: None: none.
        password: from the environment or a file.
        ca: file of the certificates that are trusted; None: the system's.
        cert: the client's certificate; None: none.
        key: its key; None: in the same file.
        client_id: None: one made of the host's name and a random part.
        protocol: `auto`: 5, or 3.1.1 where the broker refuses that.
        keepalive_s: silence after which the connection is given up.
        connect_timeout_s: how long connecting may take.
        backoff: delays between attempts.
    """

    host: str = "127.0.0.1"
    port: int = 1883
    is_tls: bool = False
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    client_id: str | None = None
    protocol: Protocol = "auto"
    keepalive_s: int = 30
    connect_timeout_s: float = 10.0
    backoff: Backoff = field(default_factory=Backoff)
