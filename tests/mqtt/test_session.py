from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge_vl.backoff import Backoff
from edge_vl.errors import BrokerError, RequestError
from edge_vl.mqtt.broker_settings import BrokerSettings, Protocol
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.paho_client import MAX_PACKET_BYTES
from edge_vl.mqtt.session import Session
from tests.mosquitto import Mosquitto, free_port, has_mosquitto, running_mosquitto
from tests.mqtt.broker_doubles import CONNACK, CONNACK_5, CONNACK_OLD_REFUSAL, misbehaving, packet, suback
from tests.mqtt.listening import QUICK, Ear, living, settings_of

BOTH = pytest.mark.parametrize("protocol", ["3.1.1", "5"])
needs_mosquitto = pytest.mark.skipif(not has_mosquitto(), reason="mosquitto is not installed")


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def text(number: int) -> bytes:
    return str(number).encode()


@BOTH
async def test_what_is_posted_is_heard_in_its_order_and_each_confirmation_has_a_round_trip(
    mosquitto: Mosquitto, protocol: Protocol
) -> None:
    ear = Ear()
    async with living(settings_of(mosquitto, protocol), ear, {"t/#": 1}) as session:
        receipts = [session.post(Outbound("t/a", text(number)), "terminal") for number in range(200)]
        rtts_s = await asyncio.gather(*receipts)
        await ear.until(lambda: len(ear.messages) == 200)
        assert ear.payloads("t/a") == [text(number) for number in range(200)]
        assert all(rtt_s > 0 for rtt_s in rtts_s)
        assert session.link.num_exchanges == 200
        assert session.protocol == protocol
        assert session.outbox_bytes == 0


@BOTH
async def test_a_message_at_qos_0_is_done_when_it_is_sent(mosquitto: Mosquitto, protocol: Protocol) -> None:
    ear = Ear()
    async with living(settings_of(mosquitto, protocol), ear, {"t": 0}) as session:
        assert await session.post(Outbound("t", b"x", qos=0), "drop") == 0.0
        await ear.until(lambda: len(ear.messages) == 1)


@BOTH
async def test_what_only_mqtt_5_carries_arrives_there_and_is_left_out_elsewhere(
    mosquitto: Mosquitto, protocol: Protocol
) -> None:
    ear = Ear()
    message = Outbound(
        "t",
        b"\xff\x00",
        content_type="application/json",
        correlation=b"id-1",
        response_topic="reply/here",
        expiry_s=60,
    )
    async with living(settings_of(mosquitto, protocol), ear, {"t": 1}) as session:
        await session.post(message, "terminal")
        await ear.until(lambda: len(ear.messages) == 1)
        (heard,) = ear.messages
        assert heard.payload == b"\xff\x00"
        assert heard.qos == 1
        is_new = protocol == "5"
        assert heard.response_topic == ("reply/here" if is_new else None)
        assert heard.correlation == (b"id-1" if is_new else None)
    log = mosquitto.log.read_text()
    assert "Received PUBLISH" in log


async def test_content_type_expiry_and_version_are_seen_by_another_client_of_mqtt_5(mosquitto: Mosquitto) -> None:
    import aiomqtt

    message = Outbound("t", b"{}", content_type="application/json", correlation=b"id-1", expiry_s=60)
    async with (
        aiomqtt.Client("127.0.0.1", mosquitto.port, protocol=aiomqtt.ProtocolVersion.V5) as other,
        living(settings_of(mosquitto), Ear()) as session,
    ):
        await other.subscribe("t", 1)
        await session.post(message, "terminal")
        heard = await anext(aiter(other.messages))
        properties: Any = heard.properties
        assert properties.ContentType == "application/json"
        assert properties.UserProperty == [("v", "1")]
        assert properties.CorrelationData == b"id-1"
        assert properties.MessageExpiryInterval in (59, 60)


@BOTH
async def test_a_picture_of_16_mib_goes_both_ways(mosquitto: Mosquitto, protocol: Protocol) -> None:
    ear = Ear()
    payload = os.urandom(2**20) * 16
    async with living(settings_of(mosquitto, protocol), ear, {"t": 1}, outbox_bytes=2**25) as session:
        await session.post(Outbound("t", payload), "terminal")
        await ear.until(lambda: len(ear.messages) == 1)
        assert ear.messages[0].payload == payload


@BOTH
@pytest.mark.parametrize("is_kill", [True, False], ids=["killed", "stopped politely"])
async def test_a_broker_that_comes_back_gets_everything_in_order_that_it_had_not_confirmed(
    mosquitto: Mosquitto, protocol: Protocol, is_kill: bool
) -> None:
    ear = Ear()
    topics = ("t/a", "t/b")
    confirmed_before: set[tuple[str, int]] = set()
    receipts: dict[tuple[str, int], asyncio.Future[float]] = {}
    async with living(settings_of(mosquitto, protocol), ear, {"t/+": 1}) as session:

        def post(number: int) -> None:
            for topic in topics:
                receipts[topic, number] = session.post(Outbound(topic, text(number)), "terminal")

        for number in range(200):
            post(number)
        await asyncio.sleep(0.01)
        in_thread = asyncio.to_thread(mosquitto.restart, is_kill=is_kill, pause_s=0.3)
        restart = asyncio.create_task(in_thread)
        for number in range(200, 300):
            post(number)
            await asyncio.sleep(0.002)
        await ear.until(lambda: "lost" in ear.states)
        confirmed_before = {key for key, receipt in receipts.items() if receipt.done()}
        await restart
        await asyncio.wait_for(asyncio.gather(*receipts.values()), 10)
        post(300)
        await ear.until(lambda: all(text(300) in ear.payloads(topic) for topic in topics))
        assert session.num_connections >= 2
        assert len(confirmed_before) < len(receipts)
    for topic in topics:
        firsts = [int(payload) for payload in dict.fromkeys(ear.payloads(topic))]
        assert firsts == sorted(firsts)
        missing = set(range(301)) - set(firsts)
        assert all((topic, number) in confirmed_before for number in missing)


@BOTH
async def test_no_message_is_lost_or_out_of_order_when_the_connection_is_cut_again_and_again(
    mosquitto: Mosquitto, protocol: Protocol
) -> None:
    """Another session listens, straight at the broker; ours goes through something that cuts it."""
    ear, cuts = Ear(), 0

    async def cutting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal cuts
        to, out = await asyncio.open_connection("127.0.0.1", mosquitto.port)

        async def back() -> None:
            while data := await to.read(256):
                writer.write(data)

        answers = asyncio.create_task(back())
        try:
            left = 1200 if cuts < 5 else 10**9
            while left > 0 and (data := await reader.read(256)):
                out.write(data)
                left -= len(data)
        finally:
            cuts += 1
            answers.cancel()
            out.close()

    async with (
        living(settings_of(mosquitto), ear, {"t/+": 1}),
        misbehaving(cutting) as cutter,
        living(BrokerSettings(port=cutter.port, protocol=protocol, backoff=QUICK), Ear()) as session,
    ):
        receipts = [session.post(Outbound(f"t/{n % 3}", text(n)), "delta") for n in range(900)]
        await asyncio.wait_for(asyncio.gather(*receipts), 20)
        await ear.until(lambda: len({message.payload for message in ear.messages}) == 900)
        assert session.num_connections > 4
        for topic in range(3):
            firsts = [int(payload) for payload in dict.fromkeys(ear.payloads(f"t/{topic}"))]
            assert firsts == list(range(topic, 900, 3))


@BOTH
async def test_what_was_told_while_the_broker_was_away_comes_after_what_every_connection_begins_with(
    mosquitto: Mosquitto, protocol: Protocol
) -> None:
    ear = Ear()
    begun = 0

    def on_connect() -> list[Outbound]:
        nonlocal begun
        begun += 1
        return [
            Outbound("t/info", b"info", is_retained=True),
            Outbound("t/state", b"fresh %d" % begun, is_retained=True),
            Outbound("t/news", b"once"),
        ]

    async with living(settings_of(mosquitto, protocol), ear, {"t/+": 1}, on_connect=on_connect) as session:
        await ear.until(lambda: len(ear.messages) == 3)
        await asyncio.to_thread(mosquitto.stop)
        await ear.until(lambda: not session.is_connected)
        ear.messages.clear()
        dropped = session.post(Outbound("t/now", b"too late"), "drop")
        replaced = session.post(Outbound("t/state", b"old"), "latest")
        session.post(Outbound("t/state", b"newer"), "latest")
        kept = session.post(Outbound("t/text", b"delta"), "delta")
        last = session.post(Outbound("t/text", b"end"), "terminal")
        await asyncio.to_thread(mosquitto.start)
        await asyncio.wait_for(asyncio.gather(kept, last), 10)
        await ear.until(lambda: len(ear.messages) == 5)
        heard = [message.payload for message in ear.messages]
        assert heard == [b"info", b"fresh 2", b"once", b"delta", b"end"]
        assert dropped.cancelled()
        assert replaced.cancelled()
        assert session.num_dropped == {"drop": 1}
        assert session.num_lost == 0
    session.post(Outbound("t/text", b"too late"), "terminal")
    assert session.num_lost == 1


async def test_a_message_that_is_taken_back_is_never_sent(mosquitto: Mosquitto) -> None:
    ear = Ear()
    async with living(settings_of(mosquitto), ear, {"t": 1}) as session:
        session.post(Outbound("t", b"a"), "terminal").cancel()
        await session.post(Outbound("t", b"b"), "terminal")
        await ear.until(lambda: len(ear.messages) == 1)
        assert ear.messages[0].payload == b"b"


@BOTH
async def test_a_broker_that_answers_no_attempt_costs_no_thread_and_no_descriptor(protocol: Protocol) -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    session: Session
    async with misbehaving(silent) as hole:
        settings = BrokerSettings(
            port=hole.port, protocol=protocol, connect_timeout_s=0.02, backoff=Backoff(first_s=0.002, cap_s=0.002)
        )
        session = Session(settings, filters={"t": 1}, on_message=print)
        run = asyncio.create_task(session.run())
        await hole.until_connected(20)
        num_threads, num_files = threading.active_count(), num_descriptors()
        await hole.until_connected(80)
        assert threading.active_count() <= num_threads + 1
        assert num_descriptors() <= num_files + 6
        with pytest.raises(BrokerError, match=f"127.0.0.1:{hole.port} did not answer within 0.02 s") as caught:
            await session.wait_connected(0.01)
        assert caught.value.reason == "unreachable"
        await session.stop()
        await asyncio.wait_for(run, 2)
        assert session.num_connections == 0


async def test_stopping_does_not_wait_for_a_broker_that_never_answers() -> None:
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with misbehaving(silent) as hole:
        session = Session(BrokerSettings(port=hole.port, connect_timeout_s=60), filters={}, on_message=print)
        run = asyncio.create_task(session.run())
        await hole.until_connected(1)
        began_s = time.monotonic()
        waiting = session.post(Outbound("t", b"x"), "terminal")
        await session.stop([Outbound("t", b"last")])
        await run
        assert time.monotonic() - began_s < 3
        assert waiting.cancelled()
        assert session.post(Outbound("t", b"y"), "terminal").cancelled()


async def test_connections_that_live_shortly_are_not_followed_by_a_storm() -> None:
    async def flapping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(CONNACK)
        await packet(reader)

    async with misbehaving(flapping) as broker:
        settings = BrokerSettings(port=broker.port, protocol="3.1.1", backoff=Backoff(first_s=0.1, cap_s=30))
        session = Session(settings, filters={"t": 1}, on_message=print)
        run = asyncio.create_task(session.run())
        await asyncio.sleep(1.4)
        await session.stop()
        await run
        pauses_s = [b - a for a, b in zip(broker.connected_s, broker.connected_s[1:], strict=False)]
        assert 3 <= len(broker.connected_s) <= 5  # 0.05 + 0.1 + 0.2 + 0.4 + 0.8 s at the least
        assert all(pause_s >= 0.05 * 2**number for number, pause_s in enumerate(pauses_s))


@pytest.mark.parametrize(("protocol", "other"), [("3.1.1", "V311"), ("5", "V311"), ("5", "V5")])
async def test_another_program_with_the_same_client_id_is_named_as_the_reason(
    mosquitto: Mosquitto, protocol: Protocol, other: str
) -> None:
    import aiomqtt

    session = Session(settings_of(mosquitto, protocol, client_id="same"), filters={}, on_message=print)
    run = asyncio.create_task(session.run())
    await session.wait_connected(5)

    async def rival() -> None:
        version = aiomqtt.ProtocolVersion[other]
        while True:
            with contextlib.suppress(aiomqtt.MqttError):
                async with aiomqtt.Client("127.0.0.1", mosquitto.port, identifier="same", protocol=version) as client:
                    async for _ in client.messages:  # until it is thrown out
                        pass
            await asyncio.sleep(0.05)

    rivalry = asyncio.create_task(rival())
    with pytest.raises(BrokerError, match="client id 'same' is used by another program") as caught:
        await asyncio.wait_for(run, 15)
    assert caught.value.reason == "taken_over"
    rivalry.cancel()
    await asyncio.wait([rivalry])
    with pytest.raises(BrokerError, match="used by another program"):
        await session.wait_connected(1)


async def test_a_broker_that_ends_every_connection_is_not_taken_for_another_program_with_our_id() -> None:
    async def flapping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(CONNACK)
        await asyncio.sleep(0.05)

    async with misbehaving(flapping) as broker:
        settings = BrokerSettings(port=broker.port, protocol="3.1.1", client_id="mine", backoff=Backoff(0.02, 0.02))
        session = Session(settings, filters={}, on_message=print)
        run = asyncio.create_task(session.run())
        await broker.until_connected(15)
        assert not run.done()
        await session.stop()
        await run


@needs_mosquitto
@BOTH
async def test_refused_credentials_end_the_session_with_words_that_help(tmp_path: Path, protocol: Protocol) -> None:
    passwords = tmp_path / "passwords"
    passwords.write_text("")
    with running_mosquitto(tmp_path, options=["allow_anonymous false", f"password_file {passwords}"]) as broker:
        settings = settings_of(broker, protocol, username="ann", password="s3cret")
        session = Session(settings, filters={}, on_message=print)
        with pytest.raises(BrokerError, match="as user 'ann': check username and password") as caught:
            await asyncio.wait_for(session.run(), 10)
        assert caught.value.reason == "refused"
        assert "s3cret" not in str(caught.value)


@needs_mosquitto
@BOTH
async def test_what_the_broker_does_not_allow_is_told(
    tmp_path: Path, protocol: Protocol, caplog: pytest.LogCaptureFixture
) -> None:
    rules = tmp_path / "rules"
    rules.write_text("topic read ok/#\ntopic write ok/#\n")
    with running_mosquitto(tmp_path, options=[f"acl_file {rules}"]) as broker:
        async with living(settings_of(broker, protocol), Ear(), {"ok/a": 1}) as session:
            receipt = session.post(Outbound("secret/b", b"x"), "terminal")
            if protocol == "5":
                with pytest.raises(BrokerError, match="does not take messages for secret/b") as caught:
                    await receipt
                assert caught.value.reason == "refused"
            else:
                assert await receipt > 0  # 3.1.1 has no way to say so
            assert await session.post(Outbound("ok/b", b"x"), "terminal") > 0
        told = [
            record.message for record in caplog.records if "does not take messages for 'secret/b'" in record.message
        ]
        assert len(told) == (1 if protocol == "5" else 0)


@pytest.mark.parametrize("code", [128, 135])
async def test_a_refused_subscription_ends_the_session_and_names_the_filter(code: int) -> None:
    """Of a double: the broker of these tests grants subscriptions that its rules make useless."""

    async def refusing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(CONNACK)
        _, body = await packet(reader)
        writer.write(suback(body)[:-1] + bytes([code]))
        await reader.read()

    async with misbehaving(refusing) as broker:
        settings = BrokerSettings(port=broker.port, protocol="3.1.1")
        session = Session(settings, filters={"secret/#": 1}, on_message=print)
        with pytest.raises(BrokerError, match="refuses subscriptions to secret/#") as caught:
            await asyncio.wait_for(session.run(), 5)
        assert caught.value.reason == "refused"


@BOTH
async def test_a_session_that_stops_sends_no_will_and_what_waited_first(
    mosquitto: Mosquitto, protocol: Protocol
) -> None:
    ear = Ear()
    will = Outbound("t/status", b"offline", is_retained=True)
    async with living(settings_of(mosquitto), ear, {"t/+": 1}):
        session = Session(settings_of(mosquitto, protocol), filters={}, on_message=print, will=will)
        run = asyncio.create_task(session.run())
        await session.wait_connected(5)
        for number in range(100):
            session.post(Outbound("t/text", text(number)), "delta")
        await session.stop([Outbound("t/status", b"stopped", is_retained=True)])
        await run
        await ear.until(lambda: len(ear.messages) >= 101)
        await asyncio.sleep(0.1)
        assert ear.payloads("t/text") == [text(number) for number in range(100)]
        assert ear.payloads("t/status") == [b"stopped"]
        assert not session.is_connected


@BOTH
async def test_a_session_that_is_cancelled_leaves_its_will(mosquitto: Mosquitto, protocol: Protocol) -> None:
    ear = Ear()
    will = Outbound("t/status", b"offline", is_retained=True, content_type="text/plain")
    async with living(settings_of(mosquitto), ear, {"t/+": 1}):
        session = Session(settings_of(mosquitto, protocol), filters={}, on_message=print, will=will)
        run = asyncio.create_task(session.run())
        await session.wait_connected(5)
        run.cancel()
        await ear.until(lambda: ear.payloads("t/status") == [b"offline"])


async def test_before_anything_is_sent_what_is_there_can_be_read(mosquitto: Mosquitto) -> None:
    ear = Ear()
    order: list[str] = []

    async def before_send() -> None:
        await ear.until(lambda: len(ear.messages) == 1)
        order.append(ear.messages[0].payload.decode())

    def on_connect() -> list[Outbound]:
        order.append("on_connect")
        return [Outbound("t/status", b"online", is_retained=True)]

    async with living(settings_of(mosquitto), Ear()) as earlier:
        await earlier.post(Outbound("t/status", b"offline", is_retained=True), "terminal")
    async with living(settings_of(mosquitto), ear, {"t/status": 1}, before_send=before_send, on_connect=on_connect):
        assert order == ["offline", "on_connect"]
        assert ear.messages[0].is_retained
        await ear.until(lambda: len(ear.messages) == 2)
        assert not ear.messages[1].is_retained


async def test_preparing_that_takes_too_long_or_fails_does_not_keep_the_session_from_sending(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("edge_vl.mqtt.session._BEFORE_SEND_S", 0.05)

    async def slow() -> None:
        await asyncio.sleep(60)

    async def broken() -> None:
        raise KeyError("x")

    async with living(settings_of(mosquitto), Ear(), before_send=slow) as session:
        assert await session.post(Outbound("t", b"x"), "terminal") > 0
    async with living(settings_of(mosquitto), Ear(), before_send=broken) as session:
        assert await session.post(Outbound("t", b"x"), "terminal") > 0
    assert "before anything is sent failed" in caplog.text


@BOTH
async def test_what_is_subscribed_to_later_is_heard_also_after_the_broker_came_back(
    mosquitto: Mosquitto, protocol: Protocol
) -> None:
    ear = Ear()
    async with living(settings_of(mosquitto, protocol), ear, {"t/a": 1}) as session:
        await session.subscribe({f"more/{number}": 1 for number in range(20)})
        await session.unsubscribe(["t/a"])
        await session.post(Outbound("t/a", b"not heard"), "terminal")
        await session.post(Outbound("more/19", b"1"), "terminal")
        await ear.until(lambda: len(ear.messages) == 1)
        await asyncio.to_thread(mosquitto.restart)
        await ear.until(lambda: ear.states.count("connected") == 2)
        await session.post(Outbound("t/a", b"not heard"), "terminal")
        await session.post(Outbound("more/0", b"2"), "terminal")
        await ear.until(lambda: len(ear.messages) == 2)
        assert [message.topic for message in ear.messages] == ["more/19", "more/0"]


@needs_mosquitto
async def test_a_message_larger_than_the_broker_takes_is_given_up_and_the_connection_lives_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running_mosquitto(tmp_path, options=["max_packet_size 2000"]) as broker:
        async with living(settings_of(broker, "5"), Ear()) as session:
            large = session.post(Outbound("t", bytes(5000)), "terminal")
            assert await session.post(Outbound("t", b"x"), "terminal") > 0
            assert isinstance(large.exception(), BrokerError)
            assert session.num_connections == 1
    assert "it takes 5009 bytes, and the broker takes packets of 2000" in caplog.text


@needs_mosquitto
async def test_a_message_fits_by_all_that_goes_with_it_and_to_the_byte(tmp_path: Path) -> None:
    with running_mosquitto(tmp_path, options=["max_packet_size 2000"]) as broker:
        async with living(settings_of(broker, "5"), Ear()) as session:

            def message(num_bytes: int) -> Outbound:
                whole = Outbound("t/é", b"", content_type="application/json", correlation=bytes(300), expiry_s=9)
                whole = replace(whole, payload=bytes(1900 - whole.num_bytes))  # its length takes two bytes
                return replace(whole, payload=whole.payload + bytes(num_bytes - whole.num_bytes))

            assert message(2000).num_bytes == 2000
            with pytest.raises(BrokerError, match="takes 2001 bytes, and the broker takes packets of 2000") as caught:
                await session.post(message(2001), "terminal")
            assert caught.value.reason == "refused"
            assert await session.post(message(2000), "terminal") > 0
            assert session.num_connections == 1


@needs_mosquitto
@BOTH
@pytest.mark.parametrize("client_id", [None, "mine"])
async def test_a_topic_on_which_the_broker_hangs_up_costs_that_message_and_no_other(
    tmp_path: Path, protocol: Protocol, client_id: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    ear = Ear()
    with running_mosquitto(tmp_path) as broker:
        async with (
            living(settings_of(broker), ear, {"t": 1}),
            living(settings_of(broker, protocol, client_id=client_id), Ear()) as session,
        ):
            receipts = [session.post(Outbound("t", text(number)), "terminal") for number in range(10)]
            bad = session.post(Outbound("x" + "/a" * 250, b"bad"), "terminal")
            receipts += [session.post(Outbound("t", text(number)), "terminal") for number in range(10, 60)]
            await asyncio.wait_for(asyncio.gather(*receipts), 15)
            with pytest.raises(BrokerError, match="ended each connection on which it was sent"):
                await asyncio.wait_for(bad, 1)
            await ear.until(lambda: text(59) in ear.payloads("t"))
            assert list(dict.fromkeys(ear.payloads("t"))) == [text(number) for number in range(60)]
            assert session.num_connections == 5
    lines = [record for record in caplog.records if "given up" in record.message]
    assert len(lines) == 1
    assert "'x/a/a/...'" in lines[0].message


@needs_mosquitto
async def test_over_3_1_1_a_message_larger_than_the_broker_takes_is_given_up_and_so_is_the_next_at_once(
    tmp_path: Path,
) -> None:
    with running_mosquitto(tmp_path, options=["max_packet_size 1500"]) as broker:
        async with living(settings_of(broker, "3.1.1"), Ear()) as session:
            large = session.post(Outbound("r/1", bytes(3000)), "terminal")
            with pytest.raises(BrokerError, match="ended each connection"):
                await asyncio.wait_for(large, 10)
            assert await asyncio.wait_for(session.post(Outbound("r/1", b"small"), "terminal"), 10) > 0
            num_connections = session.num_connections
            with pytest.raises(BrokerError, match="takes 4011 bytes"):
                await asyncio.wait_for(session.post(Outbound("r/2", bytes(4000)), "terminal"), 10)
            assert await session.post(Outbound("r/2", b"small"), "terminal") > 0
            assert session.num_connections == num_connections


@needs_mosquitto
async def test_what_every_connection_begins_with_and_the_broker_hangs_up_on_is_left_out(tmp_path: Path) -> None:
    def on_connect() -> list[Outbound]:
        return [Outbound("t/info", bytes(3000), is_retained=True), Outbound("t/status", b"online", is_retained=True)]

    ear = Ear()
    with running_mosquitto(tmp_path, options=["max_packet_size 1500"]) as broker:
        async with living(settings_of(broker), ear, {"t/#": 1}):
            session = Session(
                settings_of(broker, "3.1.1"), filters={}, on_message=Ear(), on_connect=on_connect, client_id_stem="x"
            )
            run = asyncio.create_task(session.run())
            await ear.until(lambda: b"online" in ear.payloads("t/status"), 20)
            assert await asyncio.wait_for(session.post(Outbound("t/a", b"x"), "terminal"), 5) > 0
            await session.stop()
            await run
            assert ear.payloads("t/info") == []


async def test_what_is_lost_for_want_of_room_is_told_now_and_then_and_replaced_states_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Session(BrokerSettings(), filters={}, on_message=print, outbox_bytes=20_000)
    for number in range(100):
        session.post(Outbound("t/state", text(number)), "latest")
    assert caplog.records == []
    for number in range(100):
        session.post(Outbound(f"r/z/{number}/secret", bytes(200)), "refusal")
    assert {record.message for record in caplog.records} == {
        "1 answers to refused requests are given up: there are too many of them"
    }
    for number in range(100):
        session.post(Outbound(f"r/a/{number}/secret", bytes(200)), "terminal")
    told = [record.message for record in caplog.records if "bytes wait for the broker" in record.message]
    assert 1 <= len(told) <= 5
    assert all("'r/a/" in line and "secret" not in line for line in told)


async def test_what_the_broker_had_not_confirmed_at_the_stop_is_counted_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(CONNACK)
        await reader.read()

    async with misbehaving(deaf) as broker:
        session = Session(BrokerSettings(port=broker.port, protocol="3.1.1"), filters={}, on_message=print)
        run = asyncio.create_task(session.run())
        await session.wait_connected(5)
        receipts = [session.post(Outbound("t", text(number)), "terminal") for number in range(30)]
        session.post(Outbound("t", b"stats", qos=0), "drop")
        receipts[0].cancel()
        await session.stop([Outbound("status", b"stopped")], timeout_s=0.05)
        await run
    assert [record.message for record in caplog.records if record.name.startswith("edge_vl")] == [
        "at the stop, the broker had not confirmed 30 messages; they may be lost"
    ]


async def test_a_broker_that_confirms_nothing_any_more_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_vl.mqtt.session._MIN_TIMEOUT_S", 0.2)
    sent: list[bytes] = []

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(CONNACK)
        while True:
            first, body = await packet(reader)
            if first >> 4 == 8:
                writer.write(suback(body))
            if first >> 4 == 3:
                sent.append(body)

    async with misbehaving(deaf) as broker:
        ear = Ear()
        settings = BrokerSettings(port=broker.port, protocol="3.1.1", backoff=QUICK, keepalive_s=4)
        async with living(settings, ear, {"t": 1}) as session:
            session.post(Outbound("t", b"x"), "terminal")
            await ear.until(lambda: ear.states.count("connected") == 2, 8)
            assert "lost" in ear.states
        assert len(sent) >= 2


@BOTH
async def test_a_message_larger_than_is_taken_in_ends_the_connection_before_it_is_in_memory(protocol: Protocol) -> None:
    connects: list[bytes] = []
    is_new = protocol == "5"

    async def boasting(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connects.append((await packet(reader))[1])
        writer.write(CONNACK_5 if is_new else CONNACK)
        if len(connects) == 1:
            writer.write(bytes([0x30, 0x80, 0x80, 0x80, 0x20, 0, 1]) + b"t" + bytes(1000))  # 64 MiB are to come
        await reader.read()

    async with misbehaving(boasting) as broker:
        ear = Ear()
        async with living(BrokerSettings(port=broker.port, protocol=protocol, backoff=QUICK), ear) as session:
            await ear.until(lambda: ear.states[-2:] == ["lost", "connected"])
            assert session.num_connections == 2
            assert ear.messages == []
    asks_for_less = bytes([0x27]) + MAX_PACKET_BYTES.to_bytes(4, "big")
    assert [asks_for_less in connect for connect in connects] == [False, is_new]


@pytest.mark.parametrize("is_silent", [True, False], ids=["closes", "answers as it knows"])
async def test_a_broker_older_than_mqtt_5_is_spoken_to_in_3_1_1(is_silent: bool) -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await packet(reader)
        if body[6] == 5:
            writer.write(b"" if is_silent else CONNACK_OLD_REFUSAL)
            return
        writer.write(CONNACK)
        await reader.read()

    async with misbehaving(old) as broker:
        ear = Ear()
        async with living(BrokerSettings(port=broker.port, backoff=QUICK), ear) as session:
            assert session.protocol == "3.1.1"
            assert len(broker.connected_s) == 2
            assert ear.states == ["connected"]


async def test_a_broker_that_says_nothing_to_mqtt_5_is_spoken_to_in_3_1_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_vl.mqtt.opener._LEAST_ANSWER_S", 0.1)

    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, body = await packet(reader)
        if body[6] == 5:
            await reader.read()
            return
        writer.write(CONNACK)
        await reader.read()

    async with misbehaving(old) as broker:
        ear = Ear()
        async with living(BrokerSettings(port=broker.port, backoff=QUICK), ear) as session:
            assert session.protocol == "3.1.1"
            assert len(broker.connected_s) == 2
            assert ear.states == ["connected"]


@pytest.mark.parametrize("username", [None, "anna"])
async def test_a_broker_in_python_without_mqtt_5_is_used_in_3_1_1(username: str | None) -> None:
    from amqtt.broker import Broker

    logging.getLogger("amqtt").setLevel(logging.ERROR)
    port = free_port()
    broker = Broker(
        {
            "listeners": {"default": {"type": "tcp", "bind": f"127.0.0.1:{port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
    )
    await broker.start()
    try:
        ear = Ear()
        settings = BrokerSettings(port=port, backoff=QUICK, username=username, password=username)
        async with living(settings, ear, {"t/#": 1}) as session:
            assert session.protocol == "3.1.1"
            await asyncio.gather(*[session.post(Outbound("t/a", text(n)), "delta") for n in range(50)])
            await ear.until(lambda: len(ear.messages) == 50)
            assert ear.payloads("t/a") == [text(number) for number in range(50)]
    finally:
        await broker.shutdown()


async def test_a_version_that_was_asked_for_and_is_not_spoken_is_an_error() -> None:
    async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await packet(reader)
        writer.write(bytes([0x20, 3, 0, 132, 0]))
        await reader.read()

    async with misbehaving(old) as broker:
        session = Session(BrokerSettings(port=broker.port, protocol="5"), filters={}, on_message=print)
        with pytest.raises(BrokerError, match="does not speak this version") as caught:
            await asyncio.wait_for(session.run(), 5)
        assert caught.value.reason == "unsupported"


async def test_a_broker_that_is_not_there_is_told_and_tried_again_until_it_is(tmp_path: Path) -> None:
    if not has_mosquitto():
        pytest.skip("mosquitto is not installed")
    broker = Mosquitto(tmp_path)
    ear = Ear()
    session = Session(settings_of(broker), filters={}, on_message=ear, on_state=ear.on_state)
    run = asyncio.create_task(session.run())
    await ear.until(lambda: ear.states.count("unreachable") >= 2)
    with pytest.raises(BrokerError, match="cannot be reached") as caught:
        await session.wait_connected(0.01)
    assert caught.value.reason == "unreachable"
    await asyncio.to_thread(broker.start)
    try:
        await session.wait_connected(5)
    finally:
        await session.stop()
        broker.stop()
    await run
    assert ear.states[-1] == "stopped"


@pytest.mark.parametrize("topic", ["", "a/+", "a/#", "a\0b", "$SYS/x", "x" * 70_000])
async def test_a_topic_that_cannot_be_sent_to_is_refused_where_it_is_posted(topic: str) -> None:
    session = Session(BrokerSettings(), filters={}, on_message=print)
    with pytest.raises(RequestError, match="nothing can be sent to the topic"):
        session.post(Outbound(topic, b"x"), "terminal")


async def test_a_listener_that_fails_does_not_end_the_session(
    mosquitto: Mosquitto, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing(Ear):
        def __call__(self, inbound: object) -> None:
            super().__call__(inbound)  # type: ignore[arg-type]
            raise ValueError("no")

    ear = Failing()
    async with living(settings_of(mosquitto), ear, {"t": 1}) as session:
        for number in range(3):
            await session.post(Outbound("t", text(number)), "terminal")
        await ear.until(lambda: len(ear.messages) == 3)
        assert session.num_connections == 1
    assert "could not be taken" in caplog.text


async def test_without_the_library_the_error_has_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_vl.mqtt.paho_client.importlib.util.find_spec", lambda name: None)
    session = Session(BrokerSettings(), filters={}, on_message=print)
    with pytest.raises(BrokerError, match=r"pip install 'edge-vl\[mqtt\]'"):
        await session.run()
