"""Tests of a broker's address."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl.errors import RequestError
from edge_vl.mqtt.broker_url import read_broker_url


@pytest.mark.parametrize(
    ("url", "host", "port", "is_tls", "username", "prefix"),
    [
        ("mqtt://broker.lan", "broker.lan", 1883, False, None, None),
        ("mqtts://broker.lan", "broker.lan", 8883, True, None, None),
        ("mqtt://robot@10.0.0.2:1884/site/edge", "10.0.0.2", 1884, False, "robot", "site/edge"),
        ("mqtt://a%40b@host/", "host", 1883, False, "a@b", None),
        ("localhost:18830", "localhost", 18830, False, None, None),
        (" 127.0.0.1 ", "127.0.0.1", 1883, False, None, None),
        ("mqtt://[::1]:1885", "::1", 1885, False, None, None),
    ],
)
def test_an_address_is_read(
    url: str, host: str, port: int, is_tls: bool, username: str | None, prefix: str | None
) -> None:
    settings, found = read_broker_url(url)
    assert (settings.host, settings.port, settings.is_tls, settings.username, found) == (
        host,
        port,
        is_tls,
        username,
        prefix,
    )


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("", "not nothing"),
        ("http://broker", "not 'http'"),
        ("mqtt://", "names no host"),
        ("mqtt://host:port", "is none"),
        ("mqtt://host:0", "port 0"),
        ("mqtt://host:99999", "is none"),
        ("mqtt://host/a/b/c", "one or two names"),
        ("mqtt://host/a b", "names no host"),
        ("mqtt://host?x=1", "behind a ?"),
        ("mqtt://[::1", "is none"),
    ],
)
def test_what_is_no_address_is_refused(url: str, words: str) -> None:
    with pytest.raises(RequestError, match=words) as caught:
        read_broker_url(url, field="broker")
    assert "broker" in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://user:hunter2@host",
        "mqtt://user:hunter2@host:x",
        "mqtt://user:hunter2@",
        "x://user:hunter2@host",
        "user:hunter2@host",
        "mqtt://user:hunter2/@host",
        "mqtt://user:hunter2?@host",
        "mqtt://user:hunter2#@host",
        "mqtt://user:12/hunter2@host/edge/node",
        "mqtt://user:a@b:hunter2@host",
        "mqtt://user/hunter2@host",
        "mqtt://user:hunter2",
        "mqtt://user:hunter2 x@host",
        "mqtt://user:x hunter2",
    ],
)
def test_a_password_in_an_address_is_refused_and_never_shown(url: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_broker_url(url)
    assert "hunter2" not in str(caught.value)


def test_the_password_given_apart_is_kept_out_of_the_settings_text() -> None:
    settings, _ = read_broker_url("mqtt://user@host", password="hunter2")
    assert settings.password == "hunter2"
    assert "hunter2" not in repr(settings)


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=12), st.sampled_from(["host", "host:1884/edge", "[::1]"])
)
def test_no_password_gets_into_an_error_whatever_is_in_it(noise: str, place: str) -> None:
    for password in (f"hunter2{noise}", f"{noise}hunter2"):
        with pytest.raises(RequestError) as caught:
            read_broker_url(f"mqtt://user:{password}@{place}")
        assert "hunter2" not in f"{caught.value!r}{caught.value.__cause__!r}"
