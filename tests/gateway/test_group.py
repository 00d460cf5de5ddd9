from __future__ import annotations

import asyncio
from pathlib import Path

from edge_vl.testing import FakeFault, FakeLatencies
from tests.conftest import OpenFake
from tests.gateway.gateway_runs import config_for, request, running, terminal_of, until
from tests.link_proxy import LinkProxy
from tests.mosquitto import Mosquitto
from tests.mqtt_documents import stream_schema_faults
from tests.mqtt_observer import Observer, read_object, stream_faults

REQUESTS = "edge_vl/group/pool/request"
CLAIMS = "edge_vl/group/pool/claims"
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
            await until(
                lambda: sum(b'"released":true' in heard.payload for heard in observer.heard(CLAIMS)) == len(ids)
            )
        claims = [read_object(heard.payload) for heard in observer.heard("edge_vl/group/pool/claims")]
        assert {claim["node"] for claim in claims} == {"one", "two"}
        for id in ids:
            order = [heard for heard in observer.heard() if f'"{id}"'.encode() in heard.payload][1:]
            kinds = [read_object(heard.payload).get("type", "claim") for heard in order]
            assert kinds[0] == kinds[-1] == "claim", kinds
            said = [claim["released"] for claim in claims if claim["id"] == id]
            assert list(dict.fromkeys(said)) == [False, True]  # a worker that is heard of late is told what is claimed


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


async def test_what_strangers_say_on_claims_and_status_ends_no_request(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    with Observer(mosquitto.port, ["edge_vl/#"]) as observer:
        runtime, _ = open_fake(script=TEXT, latencies=SLOW, max_waiting=8)
        async with running(config_for(mosquitto.port, node="one", group="pool"), runtime):
            observer.publish(REQUESTS, request("x1"))
            observer.publish("edge_vl/one/request", request("x2"))
            await until(lambda: len(observer.stream("x1")) > 1 and bool(observer.stream("x2")))
            claim = read_object(observer.heard(CLAIMS)[0].payload)
            observer.publish(CLAIMS, claim | {"released": True})
            observer.publish("edge_vl/ghost/status", "offline")
            ghost = {"node": "ghost", "boot_id": "1", "deadline_ms": 60_000}
            observer.publish(CLAIMS, {"id": "x2", "reply_to": "edge_vl/one/response/judge/x2"} | ghost)
            observer.publish(CLAIMS, {"id": "x3", "reply_to": "edge_vl/one/response/judge/x3"} | ghost)
            observer.publish(CLAIMS, {"id": "x4", "reply_to": "edge_vl/robot/x4", "released": True} | ghost)
            observer.publish(REQUESTS, request("x3"))
            observer.publish(REQUESTS, request("x4", reply_to="edge_vl/robot/x4"))
            for id in ("x1", "x2", "x3", "x4"):
                assert (await terminal_of(observer, id))["type"] == "end", id
                assert stream_faults(id, observer.stream(id), check=stream_schema_faults) == []


async def test_many_that_say_they_are_online_are_not_each_told_of_all_claims(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    with Observer(mosquitto.port, ["edge_vl/#"]) as observer:
        fault = FakeFault("decode", kind="hang")
        runtime, _ = open_fake(script="ok", faults=[fault], max_waiting=8)
        async with running(config_for(mosquitto.port, node="one", group="pool"), runtime):
            observer.publish(REQUESTS, request("x1"))
            await asyncio.to_thread(fault.reached.wait, 10)
            info = read_object(observer.heard("edge_vl/one/info")[0].payload)
            for number in range(100):
                observer.publish(f"edge_vl/stranger{number}/status", "online")
                observer.publish(f"edge_vl/forged{number}/info", info | {"node": f"forged{number}"})
                observer.publish(f"edge_vl/forged{number}/status", "online")
            observer.publish("edge_vl/one/request", request("last"))
            await until(lambda: bool(observer.stream("last")))
            assert 1 < len(observer.heard(CLAIMS)) < 30
            fault.release.set()
            assert (await terminal_of(observer, "x1"))["type"] == "end"


async def test_whatever_somebody_else_writes_as_its_status_is_overwritten(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    for group in (None, "pool"):
        with Observer(mosquitto.port, ["edge_vl/one/status"]) as observer:
            runtime, _ = open_fake(script="ok")
            async with running(config_for(mosquitto.port, node="one", group=group), runtime):
                for forged in ("", "stopped", "offline", "nonsense"):
                    observer.publish("edge_vl/one/status", forged, is_retained=True)
                    await until(lambda: observer.heard()[-1].payload == b"online")
                    with Observer(mosquitto.port, ["edge_vl/one/status"]) as late:
                        await until(lambda late=late: bool(late.heard()))  # type: ignore[misc]
                        assert late.heard()[-1].payload == b"online", (group, forged)


async def test_who_writes_offline_again_and_again_holds_up_no_answer(mosquitto: Mosquitto, open_fake: OpenFake) -> None:
    with Observer(mosquitto.port, ["edge_vl/#"]) as observer:
        runtime, _ = open_fake(script=TEXT, latencies=SLOW)
        async with running(config_for(mosquitto.port, node="one", group="pool"), runtime):
            observer.publish(REQUESTS, request("x1"))
            await until(lambda: len(observer.stream("x1")) > 1)
            for _ in range(40):
                observer.publish("edge_vl/one/status", "offline")
                await asyncio.sleep(0.1)
            assert any(read_object(heard.payload)["type"] == "end" for heard in observer.stream("x1"))
            assert len(observer.heard(CLAIMS)) < 10


async def test_whatever_somebody_else_writes_as_its_info_is_overwritten(
    mosquitto: Mosquitto, open_fake: OpenFake
) -> None:
    for group in (None, "pool"):
        with Observer(mosquitto.port, ["edge_vl/one/info"]) as observer:
            runtime, _ = open_fake(script="ok")
            async with running(config_for(mosquitto.port, node="one", group=group), runtime):
                await until(lambda: any(not heard.is_retained for heard in observer.heard()))  # not of the run before
                own = read_object(observer.heard()[-1].payload)["boot_id"]
                for forged in ("", '{"v":1}', "nonsense"):
                    observer.publish("edge_vl/one/info", forged, is_retained=True)
                    await until(lambda forged=forged: forged.encode() in [heard.payload for heard in observer.heard()])  # type: ignore[misc]
                    await until(lambda own=own: own.encode() in observer.heard()[-1].payload)  # type: ignore[misc]
                    with Observer(mosquitto.port, ["edge_vl/one/info"]) as late:
                        await until(lambda late=late: bool(late.heard()))  # type: ignore[misc]
                        assert read_object(late.heard()[-1].payload)["boot_id"] == own, (group, forged)
