"""Whether the extra `mqtt` is installed."""

from __future__ import annotations

import importlib.util

from edge_vl.errors import BrokerError

__all__ = ["check_mqtt_extra"]


def check_mqtt_extra() -> None:
    """See that what speaks MQTT is there, before a traceback says so.

    Raises:
        BrokerError: it is not; says how to install it.
    """
    for library in ("msgspec", "paho"):
        if importlib.util.find_spec(library) is None:
            raise BrokerError(
                f"MQTT needs {library}, which is not installed; install it with: pip install 'edge-vl[mqtt]'",
                reason="unsupported",
            )
