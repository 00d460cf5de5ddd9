"""Passwords in addresses."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge_vl import RequestError
from edge_vl.sources.address import (
    has_credentials,
    masked,
    on_one_line,
    read_address,
    shown_pipeline,
    with_credentials,
)

SECRETS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("rtsp://admin:geheim@10.0.0.5:554/s", "rtsp://***@10.0.0.5:554/s"),
        ("rtsp://admin:ge@he:im@10.0.0.5/s", "rtsp://***@10.0.0.5/s"),
        ("rtsp://admin:ge/he?im#x@10.0.0.5/s", "rtsp://***@10.0.0.5/s"),
        ("http://admin@cam/x", "http://***@cam/x"),
        ("cannot open rtsp://a:b@c/d: and mqtts://q:w@e", "cannot open rtsp://***@e"),
        ("rtsp://a:it's <a \"b\"> 1@c/d", "rtsp://***@c/d"),
        ("rtsp://dom/admin:geheim@c/d", "rtsp://***@c/d"),
        ("rtsp:/admin:geheim@c/d", "rtsp:/***@c/d"),
        ("http://cam/x?user=a&password=geheim&n=geheim", "http://cam/x?user=***&password=***&n=***"),
        ("http://cam/x?geheim", "http://cam/x?***"),
        ("rtsp://cam/user=a_password=geheim_channel=1", "rtsp://cam/user=a_password=***"),
        ("rtspsrc user-id=a user-pw = gh ! x", "rtspsrc user-id=a user-pw = *** ! x"),
        ("http://cam/x?Token=geheim", "http://cam/x?Token=***"),
        ("rtspsrc location=rtsp://u:p@h/x user-pw=gh ! a", "rtspsrc location=rtsp://***@h/x user-pw=*** ! a"),
        ('rtspsrc user-pw="ge heim" ! fakesink', "rtspsrc user-pw=*** ! fakesink"),
        ("rtsp://u:p@[fe80::1]:554/x", "rtsp://***@[fe80::1]:554/x"),
        ("rtsp://10.0.0.5:554/s?channel=1", "rtsp://10.0.0.5:554/s?channel=1"),
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


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_a_password_that_nobody_encoded_is_hidden_whatever_is_in_it(password: str) -> None:
    assert masked(f"rtsp://u:{password}@camera.local/main") == "rtsp://***@camera.local/main"
    assert masked(f"x rtsp://{password}:1@camera.local/main failed") == "x rtsp://***@camera.local/main failed"


PRINTABLE = st.text(st.characters(codec="ascii", min_codepoint=32), min_size=1, max_size=16)


@given(PRINTABLE, PRINTABLE)
@example("admin", "#Zq7Secret")
@example("admin", "123#Zq7Secret")
@example("dom/admin", "Zq7Secret")
@example("a:b", "x'y\"z<>")
def test_no_printable_password_is_in_what_is_shown_of_an_address_or_of_what_is_wrong_with_it(
    user: str, password: str
) -> None:
    secret = f"{password}~Zq7Secret"  # so long that it is in no text by chance
    url = f"rtsp://{user}:{secret}@camera.local:554/main"
    try:
        address = read_address(url)
    except RequestError as error:
        shown = str(error)
        assert "--password-file" in shown
        assert masked(shown) == shown, "what hides too much must not hide the advice"
    else:
        shown = f"{address.shown} {address!r} {address}"
        assert (address.host, address.port, address.path) == ("camera.local", 554, "/main")
        assert address.username == unquote(user.partition(":")[0])
        assert "@" not in address.path
        assert read_address(address.url) == address
    assert "Secret" not in shown + masked(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("RTSP://a:b@Cam.local:8554/h264Preview_01_main", "rtsp://***@cam.local:8554/h264Preview_01_main"),
        ("rtsp://cam/cam/realmonitor?channel=1&subtype=0", "rtsp://cam/cam/realmonitor?channel=1&subtype=0"),
        ("http://cam/x?channel=1&pwd=geheim&x=geheim", "http://cam/x?channel=1&..."),
        ("rtsps://10.0.0.1:7441/AbCdEfGh12345678?enableSrtp", "rtsps://10.0.0.1:7441/...?..."),
        ("rtsp://10.0.0.1/user=admin_password=geheim_channel=1_stream=0.sdp", "rtsp://10.0.0.1/..."),
        ("rtsp://u:p@[fe80::1]:554/x", "rtsp://***@[fe80::1]:554/x"),
        ("http://cam", "http://cam"),
        ("http://cam/x#geheim", "http://cam/x"),
    ],
)  # fmt: skip
def test_an_address_is_shown_by_the_parts_that_hold_no_secret(url: str, shown: str) -> None:
    address = read_address(url)
    assert address.shown == shown
    assert masked(address.shown) == shown
    assert "geheim" not in repr(address)


@pytest.mark.parametrize(
    "url",
    [
        "rtsp://a:b'c\"<>[]\\@cam/x",
        "rtsp://a:%41%zz@cam/x",
        "rtsp://a@b:c@cam/x",
        "rtsp://\N{LATIN SMALL LETTER U WITH DIAERESIS}:p@cam/",
    ],
)
def test_a_login_with_odd_characters_is_encoded_and_means_the_same(url: str) -> None:
    address = read_address(url)
    user, _, password = url.partition("://")[2].rpartition("@")[0].partition(":")
    assert (address.username, address.password) == (unquote(user), unquote(password))
    parts = urlsplit(address.url)
    assert (parts.hostname, unquote(parts.password or "")) == ("cam", unquote(password))


def test_of_a_pipeline_its_first_element_is_shown() -> None:
    assert shown_pipeline("videotestsrc") == "videotestsrc"
    assert shown_pipeline("rtspsrc location=rtsp://h user-pw=geheim ! decodebin") == "rtspsrc ..."
    assert shown_pipeline("( geheim )") == "..."


def test_a_text_on_one_line_steers_no_terminal() -> None:
    assert on_one_line("a\nb\x1b[31m\x9b1m\u202eend") == "a b\ufffd[31m\ufffd1m\ufffdend"


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
