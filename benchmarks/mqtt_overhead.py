"""What a gateway and a broker add to a local stream, and what becomes of a stream on a slow link.

First the same questions about the same pictures in turns: `Runtime.stream` in this process, and a gateway with the same
options over a mosquitto on the loopback interface, with `set_tcp_nodelay true` and, for information, without: then the
first message of an answer may wait 40 ms for a delayed acknowledgement of the confirmation before it. The time to the
first token counts from the call, or from before the request was sent, to when the first text is in the caller's hands.
Processor time is that of the gateway's process against that of this process for the same local request; it includes
reading the request and its picture.

Then a model of 100 tokens a second through a proxy that delays and loses packets (a lost one arrives 200 ms and a round
trip later): messages, bytes and times of an answer. Last, how well the decay model of round trips fits those that were
measured after connecting, over a steady link, where there is no decay to explain, and over such as fade.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.process_memory import cpu_s
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl import Runtime
from edge_vl.mqtt.link_model import LinkModel
from tests.gateway_process import GatewayProcess
from tests.known_pictures import KnownQuestion, known_question
from tests.link_proxy import Link, LinkProxy
from tests.mosquitto import Mosquitto, running_mosquitto
from tests.mqtt_observer import Heard, Observer, read_object, stream_faults
from tests.paced_engine import PacedEngine

NO_DELAY = "set_tcp_nodelay true"
MAX_FIRST_TOKEN_S = 0.015
MAX_TOKEN_CPU_S = 0.001
MAX_MESSAGES = 0.5
ROUND_TRIPS_S = (0.0, 0.02, 0.1, 0.3)
LOSS = 0.01
NUM_TOKENS = 128
TOKEN_S = 0.01
KEEP_MIB = 4
SETTLE_S = 0.03
NUM_EXCHANGES = 40
DECAYING = {
    "round trip 100 ms, steady": Link(delay_s=0.05, jitter_s=0.005),
    "round trip 100 ms, a radio that wakes up": Link(delay_s=0.05, jitter_s=0.005, wake_s=0.15, wake_packets=6.0),
    "round trip 20 ms, a radio that wakes up": Link(delay_s=0.01, jitter_s=0.002, wake_s=0.05, wake_packets=4.0),
}
_DESCRIBE = 5
"""The first of so many questions about a picture asks for a description: some thirty tokens."""

Rows = list[dict[str, Cell]]


def run(quick: bool) -> Result:
    """Compare with a local stream, then slow the link down."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        (folder / "prompt").mkdir()
        broker = stack.enter_context(running_mosquitto(folder / "prompt", options=[NO_DELAY]))
        as_it_comes = stack.enter_context(running_mosquitto(folder))
        bars, rows = _against_local(folder, broker, 20 if quick else 150, f"against local, {NO_DELAY}")
        rows += _against_local(folder, as_it_comes, 10 if quick else 50, "against local, mosquitto as it comes")[1]
        more_bars, more_rows = _over_links(folder, broker, 2 if quick else 7)
        rows += more_rows + _decay(broker, 3 if quick else 8)
    return Result(bars | more_bars, rows)


def _against_local(folder: Path, broker: Mosquitto, num_rounds: int, of: str) -> tuple[dict[str, Bar], Rows]:
    """Ask in turns."""
    local_s: list[float] = []
    remote_s: list[float] = []
    local_cpu_s: list[float] = []
    remote_cpu_s: list[float] = []
    with (
        GatewayProcess(folder / f"gateway{broker.port}", broker.port, keep_mib=KEEP_MIB) as gateway,
        Observer(broker.port, [f"{gateway.base}/response/bench/#"]) as observer,
        Runtime.open(
            "bundled", vision_engine="onnxruntime", language_engine="onnxruntime", threads=1, keep_mib=KEEP_MIB
        ) as runtime,
    ):
        for turn in range(num_rounds + 5):
            known = known_question(turn * _DESCRIBE)
            if turn % 10 == 0:
                gc.collect()
            *here, text = _ask_here(runtime, known)
            *there, same = _ask_there(gateway, observer, known, f"b{turn}")
            if text != same:
                raise RuntimeError(f"the gateway answered {same!r} instead of {text!r}")
            if turn >= 5:  # the first ones warm up
                for values, value in zip((local_s, local_cpu_s), here, strict=True):
                    values.append(value)
                for values, value in zip((remote_s, remote_cpu_s), there, strict=True):
                    values.append(value)
    added_s = statistics.median(remote_s) - statistics.median(local_s)
    added_cpu_s = statistics.median(b - a for a, b in zip(local_cpu_s, remote_cpu_s, strict=True))
    bars = {
        "added to the first token, median, s": Bar(added_s, MAX_FIRST_TOKEN_S),
        "added processor time per token, median, s": Bar(added_cpu_s, MAX_TOKEN_CPU_S),
    }
    found = {
        "first token, local, median, s": statistics.median(local_s),
        "first token, gateway, median, s": statistics.median(remote_s),
        "first token, gateway, 90th percentile, s": statistics.quantiles(remote_s, n=10)[-1],
        "processor time per token, local, median, s": statistics.median(local_cpu_s),
        "processor time per token, gateway, median, s": statistics.median(remote_cpu_s),
    }
    for name, value in found.items():
        report(f"{of}: {name}: {value:.5f}")
    return bars, [_row(of, name, value) for name, value in found.items()]


def _ask_here(runtime: Runtime, known: KnownQuestion) -> tuple[float, float, str]:
    """Return seconds to the first token, seconds of processor time per token, and the answer."""
    first_s: float | None = None
    cpu_before_s, began_s = time.process_time(), time.monotonic()
    stream = runtime.stream(known.png, known.question)
    for _ in stream:
        if first_s is None:
            first_s = time.monotonic() - began_s
    answer = stream.answer
    used_s = time.process_time() - cpu_before_s
    return first_s or float("nan"), used_s / answer.usage.completion_tokens, answer.text


def _ask_there(gateway: GatewayProcess, observer: Observer, known: KnownQuestion, id: str) -> tuple[float, float, str]:
    """Return the same of a gateway."""
    request = known.request(id, "bench")
    process = gateway.process.pid
    cpu_before_s, began_s = cpu_s(process), time.monotonic()
    observer.publish(f"{gateway.base}/request", request, timeout_s=None)
    end = observer.wait_terminal(id)
    time.sleep(SETTLE_S)  # for the confirmations
    used_s = cpu_s(process) - cpu_before_s
    messages = observer.stream(id)
    _check_stream(id, messages)
    observer.forget(id)
    return _first_delta_s(messages) - began_s, used_s / int(end["usage"]["completion_tokens"]), str(end["text"])


def _over_links(folder: Path, broker: Mosquitto, num_answers: int) -> tuple[dict[str, Bar], Rows]:
    """Ask over slower and slower links."""
    rows: Rows = []
    num_messages: list[float] = []
    engine = PacedEngine("paced", token_s=TOKEN_S, is_endless=True)
    with (
        LinkProxy(broker.port) as proxy,
        GatewayProcess(
            folder / "slow",
            broker.port,
            node="slow",
            broker_port=proxy.port,
            broker={"retry_first_s": 0.1, "retry_max_s": 0.5},
            engine=engine,
        ) as gateway,
        Observer(broker.port, [f"{gateway.base}/#"]) as observer,
    ):
        for round_trip_s in ROUND_TRIPS_S:
            proxy.link = Link(delay_s=round_trip_s / 2, jitter_s=round_trip_s / 20, loss=LOSS if round_trip_s else 0.0)
            proxy.cut()
            time.sleep(1.0)
            gateway.wait_online(observer)
            found = [_measured(gateway, observer, f"r{round_trip_s * 1e3:.0f}-{n}") for n in range(num_answers + 2)]
            medians = [
                statistics.median(column) for column in zip(*found[2:], strict=True)
            ]  # the link is known by then
            num_messages.append(medians[0])
            of = f"round trip {round_trip_s * 1e3:.0f} ms, {LOSS if round_trip_s else 0:.0%} loss"
            names = ("messages per answer", "bytes per answer", "first delta, s", "whole answer, s", "longest pause, s")
            rows += (_row(of, name, value) for name, value in zip(names, medians, strict=True))
            report(f"{of}: " + ", ".join(f"{name} {value:.3f}" for name, value in zip(names, medians, strict=True)))
    bars = {
        "messages of an answer on the slowest link, share of those on the fastest": Bar(
            num_messages[-1] / num_messages[0], MAX_MESSAGES
        )
    }
    return bars, rows


def _measured(gateway: GatewayProcess, observer: Observer, id: str) -> tuple[float, float, float, float, float]:
    began_s = time.monotonic()
    observer.publish(
        f"{gateway.base}/request",
        {"v": 1, "id": id, "client": "bench", "question": "Describe the picture.", "max_tokens": NUM_TOKENS},
        timeout_s=None,
    )
    observer.wait_terminal(id, 60)
    messages = observer.stream(id)
    _check_stream(id, messages)
    observer.forget(id)
    return (
        len(messages),
        sum(len(heard.topic) + len(heard.payload) for heard in messages),
        _first_delta_s(messages) - began_s,
        messages[-1].received_s - began_s,
        max(after.received_s - before.received_s for before, after in itertools.pairwise(messages)),
    )


def _decay(broker: Mosquitto, num_connections: int) -> Rows:
    """Measure round trips after connecting, and fit the decay to them."""
    rows: Rows = []
    for name, link in DECAYING.items():
        model = LinkModel()
        first_s: list[float] = []
        last_s: list[float] = []
        with LinkProxy(broker.port, link) as proxy:
            for _ in range(num_connections):
                model.connected()
                rtts_s = [*_round_trips_s(proxy.port)]
                for rtt_s in rtts_s:
                    model.exchanged(rtt_s)
                first_s.append(rtts_s[0])
                last_s += rtts_s[-5:]
        found = {
            "first message after connecting, median, s": statistics.median(first_s),
            "the last ones, median, s": statistics.median(last_s),
            "the first one as the fit has it, s": model.expected_s(1),
            "the last one as the fit has it, s": model.expected_s(),
            "R^2 of the fit": model.r_squared,
        }
        rows += (_row(f"decay, {name}", what, value) for what, value in found.items())
        report(f"decay, {name}: " + ", ".join(f"{what} {value:.3f}" for what, value in found.items()))
    return rows


def _round_trips_s(port: int) -> Iterator[float]:
    """Connect, and yield the time of one message after the other."""
    with contextlib.closing(Observer(port)) as client:
        for _ in range(NUM_EXCHANGES):
            began_s = time.monotonic()
            client.publish("edge_vl/bench/ping", b"")
            yield time.monotonic() - began_s


def _first_delta_s(messages: list[Heard]) -> float:
    return next(heard.received_s for heard in messages if read_object(heard.payload)["type"] == "delta")


def _check_stream(id: str, messages: list[Heard]) -> None:
    if faults := stream_faults(id, messages):
        raise RuntimeError(f"the stream of {id} is wrong: {faults}")


def _row(of: str, what: str, value: float) -> dict[str, Cell]:
    return {"of": of, "what": what, "value": round(value, 6)}
