from __future__ import annotations

import socket
import ssl

import pytest

from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.refusals import dial_error, message_refusal, refusal

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


def test_a_user_without_a_password_is_told_that_none_was_given_and_how() -> None:
    without = BrokerSettings(host="hub", username="ann")
    assert "without a password, for none was given (EDGE_VL_MQTT_PASSWORD" in str(refusal(135, "no", without, "c"))
    assert "none was given" not in str(refusal(135, "no", SETTINGS, "c"))


def test_a_confirmation_of_a_message_says_why_it_is_not_taken() -> None:
    message, asking = Outbound("a/b", b""), Outbound("a/b", b"", needs_listener=True)
    assert message_refusal(0, message) is None
    assert message_refusal(16, message) is None
    unheard, refused = message_refusal(16, asking), message_refusal(135, message)
    assert unheard is not None
    assert refused is not None
    assert (unheard.reason, str(unheard)) == ("unheard", "nobody listens to a/b")
    assert refused.reason == "refused"
    assert "messages for a/b (not authorized: by the broker's access rules, or a name in it is misspelt)" in str(
        refused
    )
    assert "(reason 200)" in str(message_refusal(200, message))
