from __future__ import annotations

import socket
import ssl

import pytest

from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.refusals import dial_error, refusal

SETTINGS = BrokerSettings(host="hub", username="ann", password="s3cret")


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (132, "unsupported", "does not speak this version"),
        (133, "refused", "set another `client_id`"),
        (134, "refused", "as user 'ann'"),
        (135, "refused", "access rules"),
        (138, "refused", "banned"),
        (136, "unreachable", "takes no connection now"),
        (137, "unreachable", "takes no connection now"),
        (149, "refused", "refuses the connection: words"),
    ],
)
def test_each_answer_of_a_broker_says_whether_it_is_of_use_to_try_again(code: int, reason: str, words: str) -> None:
    error = refusal(code, "words", SETTINGS, "edge_vl-1")
    assert error.reason == reason
    assert words in str(error)
    assert "hub:1883" in str(error)
    assert "s3cret" not in str(error)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "unreachable"),
        (socket.gaierror(-2, "Name or service not known"), "unreachable"),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), "unreachable"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "tls"),
        (UnicodeError("label too long"), "unsupported"),
    ],
)
def test_each_way_of_not_getting_through_has_its_reason(error: OSError | ValueError, reason: str) -> None:
    found = dial_error(error, "hub:8883")
    assert found.reason == reason
    assert "hub:8883" in str(found)
