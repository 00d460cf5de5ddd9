from __future__ import annotations

import asyncio
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_vl.errors import BrokerError
from edge_vl.mqtt.broker_settings import BrokerSettings, Protocol
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.session import Session
from tests.mosquitto import Mosquitto, has_mosquitto, running_mosquitto
from tests.mqtt.certificates import has_openssl, make_authority, make_certificate
from tests.mqtt.listening import QUICK, Ear, living

pytestmark = [
    pytest.mark.skipif(not has_mosquitto(), reason="mosquitto is not installed"),
    pytest.mark.skipif(not has_openssl(), reason="openssl is not installed"),
]
BOTH = pytest.mark.parametrize("protocol", ["3.1.1", "5"])


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    return make_authority(tmp_path, "authority")


@pytest.fixture
def broker(tmp_path: Path, authority: Path) -> Iterator[Mosquitto]:
    """Run a broker with a certificate for 127.0.0.1."""
    certificate, key = make_certificate(tmp_path, "broker", authority)
    folder = tmp_path / "broker"
    folder.mkdir()
    with running_mosquitto(folder, options=[f"certfile {certificate}", f"keyfile {key}"]) as running:
        yield running


@pytest.fixture
def strict_broker(tmp_path: Path, authority: Path) -> Iterator[Mosquitto]:
    """Run one that lets in only those with a certificate of the authority."""
    certificate, key = make_certificate(tmp_path, "strict", authority)
    options = [f"certfile {certificate}", f"keyfile {key}", f"cafile {authority}", "require_certificate true"]
    folder = tmp_path / "strict"
    folder.mkdir()
    with running_mosquitto(folder, options=options) as running:
        yield running


def settings_of(broker: Mosquitto, ca: Path | None, protocol: Protocol = "auto") -> BrokerSettings:
    return BrokerSettings(port=broker.port, is_tls=True, ca=ca, protocol=protocol, backoff=QUICK)


async def failure_of(settings: BrokerSettings) -> BrokerError:
    session = Session(settings, filters={}, on_message=print)
    with pytest.raises(BrokerError) as caught:
        await asyncio.wait_for(session.run(), 10)
    return caught.value


@BOTH
async def test_an_encrypted_connection_carries_messages_both_ways(
    broker: Mosquitto, authority: Path, protocol: Protocol
) -> None:
    ear = Ear()
    async with living(settings_of(broker, authority, protocol), ear, {"t": 1}, outbox_bytes=2**24) as session:
        receipts = [session.post(Outbound("t", b"%d" % number), "terminal") for number in range(100)]
        receipts.append(session.post(Outbound("t", bytes(2**22)), "terminal"))
        await asyncio.gather(*receipts)
        await ear.until(lambda: len(ear.messages) == 101)
        assert [len(message.payload) for message in ear.messages[-2:]] == [2, 2**22]


async def test_a_connection_without_encryption_where_it_is_wanted_is_no_connection(broker: Mosquitto) -> None:
    settings = BrokerSettings(port=broker.port, backoff=QUICK)
    session = Session(settings, filters={}, on_message=print)
    run = asyncio.create_task(session.run())
    with pytest.raises(BrokerError, match=r"no connection|did not accept"):
        await session.wait_connected(0.5)
    await session.stop()
    await run


async def test_a_certificate_of_an_authority_that_is_not_trusted_is_refused(broker: Mosquitto, tmp_path: Path) -> None:
    for ca in (None, make_authority(tmp_path, "other")):
        error = await failure_of(settings_of(broker, ca))
        assert error.reason == "tls"
        assert "see that `ca` names the authority that signed it" in str(error)


async def test_a_certificate_for_another_host_is_refused(tmp_path: Path, authority: Path) -> None:
    certificate, key = make_certificate(tmp_path, "elsewhere", authority, host="elsewhere.example")
    with running_mosquitto(tmp_path, options=[f"certfile {certificate}", f"keyfile {key}"]) as broker:
        error = await failure_of(settings_of(broker, authority))
    assert error.reason == "tls"
    assert "127.0.0.1" in str(error)


async def test_a_port_that_does_not_speak_tls_is_told(mosquitto: Mosquitto) -> None:
    session = Session(settings_of(mosquitto, None), filters={}, on_message=print)
    run = asyncio.create_task(session.run())
    with pytest.raises(BrokerError) as caught:
        await session.wait_connected(1)
    assert caught.value.reason in ("tls", "unreachable")  # it closes the connection without a word
    await session.stop()
    await asyncio.wait([run])


@BOTH
async def test_a_client_with_its_certificate_is_let_in(
    strict_broker: Mosquitto, tmp_path: Path, authority: Path, protocol: Protocol
) -> None:
    certificate, key = make_certificate(tmp_path, "client", authority)
    both = tmp_path / "both.pem"
    both.write_text(certificate.read_text() + key.read_text())
    settings = settings_of(strict_broker, authority, protocol)
    for with_certificate in (replace(settings, cert=certificate, key=key), replace(settings, cert=both)):
        async with living(with_certificate, Ear()) as session:
            assert await session.post(Outbound("t", b"x"), "terminal") > 0


@BOTH
async def test_a_client_without_a_certificate_is_told_what_is_missing(
    strict_broker: Mosquitto, authority: Path, protocol: Protocol
) -> None:
    error = await failure_of(settings_of(strict_broker, authority, protocol))
    assert error.reason == "tls"
    assert "see `cert` and `key`" in str(error)


async def test_user_and_password_are_checked_over_an_encrypted_connection(tmp_path: Path, authority: Path) -> None:
    certificate, key = make_certificate(tmp_path, "broker", authority)
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    command = ["mosquitto_passwd", "-b", str(passwords), "ann", "right"]
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    options = [
        *(f"certfile {certificate}", f"keyfile {key}"),
        *("allow_anonymous false", f"password_file {passwords}"),
    ]
    with running_mosquitto(tmp_path, options=options) as broker:
        settings = replace(settings_of(broker, authority), username="ann", password="right")
        async with living(settings, Ear()) as session:
            assert await session.post(Outbound("t", b"x"), "terminal") > 0
        error = await failure_of(replace(settings, password="wr0ng"))
        assert error.reason == "refused"
        assert "'ann'" in str(error)
        assert "wr0ng" not in str(error)
        error = await failure_of(replace(settings, username=None, password=None))
        assert "without a username" in str(error)


@pytest.mark.parametrize("key", ["ca", "cert", "key"])
async def test_a_file_that_is_missing_is_named(authority: Path, tmp_path: Path, key: str) -> None:
    missing = tmp_path / "missing.pem"
    settings = BrokerSettings(is_tls=True, ca=authority, cert=authority, key=authority.with_suffix(".key"))
    changed: Any = {key: missing}
    error = await failure_of(replace(settings, **changed))
    assert error.reason == "tls"
    assert str(missing) in str(error)
    assert repr(key) in str(error)


@pytest.mark.parametrize("key", ["ca", "cert"])
async def test_a_file_with_something_else_in_it_is_named(authority: Path, tmp_path: Path, key: str) -> None:
    other = tmp_path / "other.pem"
    other.write_text("not a certificate")
    changed: Any = {key: other}
    error = await failure_of(replace(BrokerSettings(is_tls=True, ca=authority), **changed))
    assert error.reason == "tls"
    assert str(other) in str(error)


async def test_a_broker_that_never_shakes_hands_costs_no_thread(authority: Path) -> None:
    from edge_vl.backoff import Backoff
    from tests.mqtt.broker_doubles import misbehaving

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with misbehaving(silent) as hole:
        settings = BrokerSettings(
            port=hole.port, is_tls=True, ca=authority, connect_timeout_s=0.05, backoff=Backoff(0.002, 0.002)
        )
        session = Session(settings, filters={}, on_message=print)
        run = asyncio.create_task(session.run())
        num_threads = threading.active_count()
        await hole.until_connected(20)
        assert threading.active_count() <= num_threads + 1
        await session.stop()
        await asyncio.wait_for(run, 2)
