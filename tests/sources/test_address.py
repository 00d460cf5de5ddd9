"""Passwords in addresses."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_vl import RequestError
from edge_vl.sources.address import has_credentials, masked, with_credentials

SECRETS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://admin:geheim@10.0.0.5:554/s", "rtsp://***@10.0.0.5:554/s"),
        ("rtsp://admin:ge@he:im@10.0.0.5/s", "rtsp://***@10.0.0.5/s"),
        ("rtsp://admin:ge/he?im#x@10.0.0.5/s", "rtsp://***@10.0.0.5/s"),
        ("http://admin@cam/x", "http://***@cam/x"),
        ("cannot open rtsp://a:b@c/d: and mqtts://q:w@e", "cannot open rtsp://***@c/d: and mqtts://***@e"),
        ("http://cam/x?user=a&password=geheim&n=1", "http://cam/x?user=a&password=***&n=1"),
        ("http://cam/x?Token=geheim", "http://cam/x?Token=***"),
        ("rtspsrc location=rtsp://u:p@h/x user-pw=gh ! a", "rtspsrc location=rtsp://***@h/x user-pw=*** ! a"),
        ('rtspsrc user-pw="ge heim" ! fakesink', "rtspsrc user-pw=*** ! fakesink"),
        ("rtsp://u:p@[fe80::1]:554/x", "rtsp://***@[fe80::1]:554/x"),
        ("rtsp://10.0.0.5:554/s?channel=1", "rtsp://10.0.0.5:554/s?channel=1"),
        ("http://example.com/users/a@b.org", "http://example.com/users/a@b.org"),
        ("/dev/video0", "/dev/video0"),
    ],
)  # fmt: skip
def test_user_and_password_are_hidden_and_the_rest_is_not(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert masked(shown) == shown


@given(SECRETS, SECRETS)
def test_any_password_survives_the_address_and_none_is_shown(user: str, password: str) -> None:
    url = with_credentials("rtsp://camera.local:554/main", user, password)
    parts = urlsplit(url)
    assert (parts.hostname, parts.port, parts.path) == ("camera.local", 554, "/main")
    assert (unquote(parts.username or ""), unquote(parts.password or "")) == (user, password)
    assert masked(url) == "rtsp://***@camera.local:554/main"
    assert has_credentials(url)


@given(st.text(st.characters(codec="utf-8", exclude_characters=" \t\n\r\"'<>"), min_size=1).filter(str.isprintable))
def test_a_password_that_nobody_encoded_is_hidden_whatever_is_in_it(password: str) -> None:
    assert masked(f"rtsp://u:{password}@camera.local/main").endswith("rtsp://***@camera.local/main")


@pytest.mark.parametrize(
    ("url", "username", "password"),
    [("rtsp://a:b@c/d", "u", "p"), ("rtsp://c/d", None, "p"), ("not an address", "u", "p")],
)
def test_credentials_that_cannot_be_put_in_are_refused_without_being_shown(
    url: str, username: str | None, password: str
) -> None:
    with pytest.raises(RequestError) as caught:
        with_credentials(url, username, password)
    assert "a:b" not in str(caught.value)


def test_an_address_without_credentials_stays_as_it_is() -> None:
    assert with_credentials("rtsp://c/d?x=1", None, None) == "rtsp://c/d?x=1"
    assert not has_credentials("rtsp://c/d@e")
