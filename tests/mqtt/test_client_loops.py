"""Tests of a client that is used where it does not run: in another thread, in another event loop, twice."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from edge_vl.errors import BrokerError, RequestError
from edge_vl.mqtt import Client
from tests.mosquitto import Mosquitto, free_port
from tests.mqtt.gateway_double import running_double, silent


def url(broker: Mosquitto) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


async def test_from_another_thread_a_question_is_refused_at_once_and_leaves_nothing(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto) as gateway, Client(url(mosquitto), node="n1") as client:
        with pytest.raises(RequestError, match="run_coroutine_threadsafe"):
            await asyncio.to_thread(client.ask, "What?")
        gc.collect()  # a coroutine that nobody awaits would warn
        assert not client._exchanges
        assert (await client.ask("What?", timeout_s=8).answer()).text == "two words"
        assert len(gateway.requests) == 1


async def test_what_the_refusal_recommends_works(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto), Client(url(mosquitto), node="n1") as client:
        loop = asyncio.get_running_loop()

        async def ask() -> str:
            return (await client.ask("What?", timeout_s=8).answer()).text

        def in_thread() -> str:
            return asyncio.run_coroutine_threadsafe(ask(), loop).result(8)

        assert await asyncio.to_thread(in_thread) == "two words"


async def test_from_another_event_loop_a_question_and_a_stream_are_refused_at_once(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto, silent), Client(url(mosquitto), node="n1") as client:
        stream = client.ask("What?", timeout_s=30)

        async def ask() -> None:
            with pytest.raises(RequestError, match="event loop"):
                client.ask("What?", timeout_s=30)
            with pytest.raises(RequestError, match="event loop"):
                await stream.answer()

        began_s = time.monotonic()
        await asyncio.to_thread(asyncio.run, ask())
        assert time.monotonic() - began_s < 10
        assert list(client._exchanges) == [stream.id]
        await stream.aclose()


async def test_a_client_is_entered_once_at_a_time(mosquitto: Mosquitto) -> None:
    async with running_double(mosquitto):
        client = Client(url(mosquitto), node="n1")
        async with client:
            with pytest.raises(RequestError, match="connected already"):
                await client.__aenter__()
            assert (await client.ask("What?", timeout_s=8).answer()).text == "two words"
        async with client:
            assert (await client.ask("What?", timeout_s=8).answer()).text == "two words"


async def test_a_client_that_could_not_connect_may_try_again() -> None:
    client = Client(f"mqtt://127.0.0.1:{free_port()}", node="n1")
    for _ in range(2):
        with pytest.raises(BrokerError):
            await client.__aenter__()
