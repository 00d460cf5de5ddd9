from __future__ import annotations

import asyncio
from pathlib import Path

from edge_vl.testing import FakeLatencies
from tests.conftest import OpenFake
from tests.gateway.gateway_runs import config_for, request, running, terminal_of, until
from tests.link_proxy import LinkProxy
from tests.mosquitto import Mosquitto
from tests.mqtt_documents import stream_schema_faults
from tests.mqtt_observer import Observer, read_object, stream_faults

REQUESTS = "edge_vl/group/pool/request"
TEXT = "an answer that takes its time"
SLOW = FakeLatencies(decode_s=0.03)


async def test_workers_share_the_requests_and_claim_what_they_take(mosquitto: Mosquitto, open_fake: OpenFake) -> None:
    ids = [f"x{number}" for number in range(6)]
    with Observer(mosquitto.port, ["edge_vl/#"]) as observer:
        first, _ = open_fake(script="ok", max_waiting=8)
        second, _ = open_fake(script="ok", max_waiting=8)
        async with (
            running(config_for(mosquitto.port, node="one", group="pool"), first),
            running(config_for(mosquitto.port, node="two", group="pool"), second),
        ):
            for id in ids:
                observer.publish(REQUESTS, request(id))
            for id in ids:
                assert (await terminal_of(observer, id))["type"] == "end"
                assert stream_faults(id, observer.stream(id), check=stream_schema_faults) == []
            await until(lambda: len(observer.heard("edge_vl/group/pool/claims")) == 2 * len(ids))
        claims = [read_object(heard.payload) for heard in observer.heard("edge_vl/group/pool/claims")]
        assert {claim["node"] for claim in claims} == {"one", "two"}
        for id in ids:
            order = [heard for heard in observer.heard() if f'"{id}"'.encode() in heard.payload][1:]
            kinds = [read_object(heard.payload).get("type", "claim") for heard in order]
            assert kinds[0] == kinds[-1] == "claim", kinds
            assert [claim["released"] for claim in claims if claim["id"] == id] == [False, True]


async def test_a_request_of_a_worker_whose_will_is_out_ends_once_though_it_comes_back(
    mosquitto: Mosquitto, open_fake: OpenFake, tmp_path: Path
) -> None:
    with Observer(mosquitto.port, ["edge_vl/#"]) as observer, LinkProxy(mosquitto.port) as proxy:
        first, _ = open_fake(script=TEXT, latencies=SLOW)
        second, _ = open_fake(script=TEXT, latencies=SLOW)
        async with (
            running(config_for(proxy.port, node="one", group="pool"), first),
            running(config_for(mosquitto.port, node="two", group="pool"), second),
        ):
            for id in ("x1", "x2"):
                observer.publish(REQUESTS, request(id))
                await until(lambda id=id: len(observer.stream(id)) > 2)  # type: ignore[misc]
            proxy.cut()
            ends = {id: await terminal_of(observer, id) for id in ("x1", "x2")}
            await until(lambda: observer.heard("edge_vl/one/status")[-1].payload == b"online")
            observer.publish(REQUESTS, request("x3"))
            assert (await terminal_of(observer, "x3"))["type"] == "end"
            await asyncio.sleep(1.5)  # it has stopped asking by then
        lost = [id for id, end in ends.items() if end.get("reason") == "worker_lost"]
        assert len(lost) == 1, ends
        for id in ("x1", "x2"):
            assert stream_faults(id, observer.stream(id), check=stream_schema_faults) == []


async def test_a_worker_alone_in_its_group_goes_on_after_its_will_was_out(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    with Observer(mosquitto.port, ["edge_vl/#"]) as observer, LinkProxy(mosquitto.port) as proxy:
        runtime, _ = open_fake(script=TEXT, latencies=SLOW)
        async with running(config_for(proxy.port, node="one", group="pool"), runtime):
            observer.publish(REQUESTS, request("x1"))
            await until(lambda: len(observer.stream("x1")) > 2)
            proxy.cut()
            end = await terminal_of(observer, "x1")
        assert (end["type"], end["text"]) == ("end", TEXT)
        assert any(heard.payload == b"offline" for heard in observer.heard("edge_vl/one/status"))
        assert stream_faults("x1", observer.stream("x1"), may_repeat=True) == []
