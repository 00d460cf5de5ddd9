"""What it means when a broker says no, or nothing. Pure."""

from __future__ import annotations

import ssl

from edge_vl.errors import BrokerError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.tls import tls_error

__all__ = ["dial_error", "message_refusal", "refusal"]

_PASSING = {128, 131, 136, 137, 151, 159}
"""Unspecified, of the implementation, unavailable, busy, over quota, too many connections: later it may say yes."""

_WRONG_VERSION = 132

_UNHEARD = 16

_MESSAGE_REFUSALS = {
    131: "the broker has a reason of its own",
    135: "not authorized: by the broker's access rules, or a name in it is misspelt",
    144: "it does not allow this topic",
    151: "over quota",
}


def refusal(code: int, words: str, settings: BrokerSettings, client_id: str) -> BrokerError:
    """Return the error for a connection that the broker answered with a refusal.

    Args:
        code: the reason in the numbers of MQTT 5; those of 3.1.1 have their equals there.
        words: the same for a person.
        settings: how it was reached.
        client_id: what this client called itself.

    Source:
        MQTT 5.0, section 3.2.2.2 (reason codes of CONNACK).
    """
    address = f"{settings.host}:{settings.port}"
    if code in _PASSING:
        return BrokerError(f"the broker {address} takes no connection now: {words}", reason="unreachable")
    if code == _WRONG_VERSION:
        return BrokerError(f"the broker {address} does not speak this version of MQTT", reason="unsupported")
    who = "without a username" if settings.username is None else f"as user {settings.username!r}"
    if settings.username is not None and settings.password is None and settings.cert is None:
        who += (
            " without a password, for none was given (EDGE_VL_MQTT_PASSWORD or a password file; in a gateway file, "
            "password_env or password_file)"
        )
    hint = {
        133: f"; it does not take the client id {client_id!r}: set another `client_id`",
        134: f"; connected {who}: check username and password",
        135: f"; connected {who}: check username and password, and what the broker's access rules allow",
        138: f"; it has banned the client id {client_id!r} or this address",
    }.get(code, "")
    return BrokerError(f"the broker {address} refuses the connection: {words}{hint}", reason="refused")


def message_refusal(code: int, message: Outbound) -> BrokerError | None:
    """Return the error for a message whose confirmation has a reason, or None where that is none to complain of.

    Source:
        MQTT 5.0, section 3.4.2.1 (reason codes of PUBACK).
    """
    if code == _UNHEARD and message.needs_listener:
        return BrokerError(f"nobody listens to {message.topic}", reason="unheard")
    if code < 128:
        return None
    why = _MESSAGE_REFUSALS.get(code, f"reason {code}")
    return BrokerError(f"the broker does not take messages for {message.topic} ({why})", reason="refused")


def dial_error(error: OSError | ValueError, address: str) -> BrokerError:
    """Return the error for a connection that did not come about."""
    is_cut = isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    if isinstance(error, ssl.SSLError) and not is_cut:
        return tls_error(error, address)
    if isinstance(error, OSError):
        return BrokerError(f"the broker {address} cannot be reached: {error}", reason="unreachable")
    return BrokerError(f"the broker {address} cannot be addressed: {error}", reason="unsupported")
