"""A gateway with everything happening to it for half an hour: flat memory, and every request ends once.

A mosquitto, a gateway of the bundled model with two cameras, four clients (MQTT 3.1.1 and 5, direct and over a group).
At random, from a fixed seed: questions whose answers are known, cancels, deliveries that come twice, bad payloads,
camera commands; a camera that breaks off, falls silent or refuses; a broker that is stopped or killed. While the broker
is away, whoever asked waits; afterwards he sends again what has no answer yet, under the same id. A link between the
gateway and its broker stays closed until everybody else is back, so that nothing can go by unheard.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.process_memory import anonymous_kib, cpu_s, growth, num_descriptors, num_threads
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from benchmarks.soak_picture import soak_picture
from benchmarks.soak_traffic import Traffic
from tests.flapping_camera import FlappingCamera
from tests.gateway_process import GatewayProcess
from tests.link_proxy import Link, LinkProxy
from tests.mosquitto import Mosquitto, running_mosquitto

__all__ = ["Soak", "soak"]

DURATION_S = 1800.0
QUICK_S = 90.0
ACTIONS_PER_S = 2.0
BROKER_EVERY_S = 40.0
CAMERA_EVERY_S = 12.0
SETTLE_S = 0.3
"""What the broker has confirmed must be with those who listen before the broker goes."""

WARM_UP_SHARE = 1 / 3
MAX_GROWTH = 0.02
KEEP_MIB = 4
"""Little enough that what is kept for later has its size after the warm-up."""

PICTURE = Path(__file__).parent / "results" / "mqtt-soak.svg"

_CAMERAS = """
[[camera]]
name = "steady"
source = "synthetic:160x120@5"
question = "What is at the top left?"
every_s = 2.0
max_tokens = 8
snapshot = true

[[camera]]
name = "flapping"
source = "{url}"
question = "How many objects are there?"
every_s = 2.0
max_tokens = 8
read_timeout_s = 1.0
open_timeout_s = 1.0
retry_first_s = 0.2
retry_max_s = 1.0

[limits]
max_conversations = 3

[home_assistant]
enabled = true
"""


@dataclass
class Soak:
    """What was found.

    Attributes:
        readings: seconds since the start, anonymous memory in KiB, descriptors and threads of the gateway.
        faults: what was wrong, in words.
        counts: what was done and how it ended.
        cpu_share: processor time of the gateway over the time that passed.
        exit_code: of the gateway in the end.
    """

    readings: list[tuple[float, int, int, int]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    cpu_share: float = 0.0
    exit_code: int | None = None

    @property
    def bars(self) -> dict[str, Bar]:
        """What must hold."""
        kept = self.readings[int(len(self.readings) * WARM_UP_SHARE) :]
        window = max(1, len(kept) // 5)
        more = [
            max(row[column] for row in kept[-window:]) - max(row[column] for row in kept[:window]) for column in (2, 3)
        ]
        return {
            "growth of anonymous memory after warm-up": Bar(growth([row[1] for row in kept]), MAX_GROWTH),
            "growth of the most descriptors after warm-up": Bar(more[0], 1),
            "growth of the most threads after warm-up": Bar(more[1], 1),
            "requests that ended not at all, twice, wrongly or out of order": Bar(len(self.faults), 0),
            "requests that ended twice": Bar(self.counts.get("ended twice", 0), 0),
            "requests that were answered": Bar(self.counts.get("ended: end", 0), 10, at_least=True),
            "answers of cameras": Bar(self.counts.get("heard camera-answer", 0), 10, at_least=True),
            "restarts of the broker": Bar(self.counts.get("broker restarts", 0), 1, at_least=True),
            "exit code of the gateway": Bar(float("nan") if self.exit_code is None else abs(self.exit_code), 0),
        }


def run(quick: bool) -> Result:
    """Soak, and draw memory and descriptors over time."""
    found = soak(QUICK_S if quick else DURATION_S)
    for fault in found.faults[:20]:
        report(f"FAULT: {fault}")
    if not quick:
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        PICTURE.write_text(soak_picture(found.readings), encoding="utf-8")
        report(f"drawn in {PICTURE}")
    rows: list[dict[str, Cell]] = [{"what": name, "value": value} for name, value in sorted(found.counts.items())]
    rows.append({"what": "processor time of the gateway over the time that passed", "value": found.cpu_share})
    step = max(1, len(found.readings) // 20)
    for at_s, memory_kib, descriptors, threads in found.readings[::step]:
        rows.append({"what": f"after {at_s:.0f} s: anonymous memory, KiB", "value": memory_kib})
        rows.append({"what": f"after {at_s:.0f} s: descriptors", "value": descriptors})
        rows.append({"what": f"after {at_s:.0f} s: threads", "value": threads})
    return Result(found.bars, rows)


def soak(duration_s: float, *, seed: int = 0) -> Soak:
    """Let everything happen for so long."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(running_mosquitto(folder))
        camera = stack.enter_context(FlappingCamera())
        proxy = stack.enter_context(LinkProxy(broker.port))
        gateway = stack.enter_context(
            GatewayProcess(
                folder / "gateway",
                broker.port,
                broker_port=proxy.port,
                broker={"retry_first_s": 0.1, "retry_max_s": 0.5, "connect_timeout_s": 2.0},
                top=f'group = "soak"\nstats_every_s = 5\nstate_dir = "{folder / "state"}"',
                tables=_CAMERAS.format(url=camera.url),
                keep_mib=KEEP_MIB,
            )
        )
        traffic = Traffic(broker.port, gateway.base, "edge_vl/group/soak", seed)
        stack.callback(traffic.close)
        found = Soak()
        found.counts = traffic.counts
        found.faults = traffic.faults
        _Weather(duration_s, random.Random(seed + 1), broker, proxy, camera, gateway, traffic, found).pass_over()
        return found


@dataclass
class _Weather:
    """What happens, and when."""

    duration_s: float
    random: random.Random
    broker: Mosquitto
    proxy: LinkProxy
    camera: FlappingCamera
    gateway: GatewayProcess
    traffic: Traffic
    found: Soak

    def pass_over(self) -> None:
        """Let it all happen, then see that everything has ended."""
        process = self.gateway.process.pid
        began_s, cpu_before_s = time.monotonic(), cpu_s(process)
        reading_every_s = max(0.5, self.duration_s / 400)
        due = {"reading": 0.0, "camera": CAMERA_EVERY_S / 2, "broker": BROKER_EVERY_S / 2, "report": 10.0, "act": 0.0}
        while (at_s := time.monotonic() - began_s) < self.duration_s:
            if not self.gateway.is_running:
                self.found.faults.append(f"the gateway has ended: {self.gateway.said()}")
                return
            name = min(due, key=lambda name: due[name])
            time.sleep(max(0.0, min(due[name], self.duration_s) - at_s))
            if name == "act":
                self.traffic.act()
                self.traffic.look()
                due[name] += self.random.expovariate(ACTIONS_PER_S)
            elif name == "reading":
                reading = (anonymous_kib(process), num_descriptors(process), num_threads(process))
                self.found.readings.append((round(at_s, 1), *reading))
                due[name] += reading_every_s
            elif name == "camera":
                is_on = self.camera.mode == "on"
                self.camera.switch(self.random.choice(("off", "silent", "refusing")) if is_on else "on")
                self.traffic.counts["camera restarts"] += not is_on
                due[name] += CAMERA_EVERY_S * self.random.uniform(0.3, 1.0)
            elif name == "broker":
                self._restart_broker()
                due[name] += BROKER_EVERY_S * self.random.uniform(0.5, 1.5)
            else:
                self._report(at_s)
                due[name] += 10.0
            late_s = time.monotonic() - began_s
            due = {name: max(at_s, late_s) if name == "act" else at_s for name, at_s in due.items()}
        self._finish()
        self.found.cpu_share = (cpu_s(process) - cpu_before_s) / (time.monotonic() - began_s)
        self.found.exit_code = self.gateway.stop()

    def _restart_broker(self) -> None:
        """Cut the gateway off, restart the broker, and let the gateway in again when everybody else is back."""
        self.traffic.disturbed()
        self.proxy.link = Link(mode="closed")
        self.proxy.cut()
        time.sleep(SETTLE_S)
        self.traffic.look()
        self.broker.restart(is_kill=self.random.random() < 0.5, pause_s=self.random.uniform(0.0, 1.0))
        self.traffic.counts["broker restarts"] += 1
        self.traffic.reconnected(self.traffic.counts["broker restarts"] + 1)
        self.proxy.link = Link()
        until_s = time.monotonic() + 30
        while self.traffic.status != b"online" and time.monotonic() < until_s:
            time.sleep(0.02)
            self.traffic.look()
        if self.traffic.status != b"online":
            self.found.faults.append(f"not online 30 s after the broker was back: {self.gateway.said()[-500:]}")
        self.traffic.send_again()

    def _finish(self) -> None:
        """Wait for what is open."""
        until_s = time.monotonic() + 70
        while self.traffic.num_open and time.monotonic() < until_s:
            self.traffic.look()
            time.sleep(0.05)
        until_s = time.monotonic() + 4
        while time.monotonic() < until_s:
            self.traffic.look()
            time.sleep(0.1)

    def _report(self, at_s: float) -> None:
        _, memory_kib, descriptors, threads = self.found.readings[-1]
        counts = self.traffic.counts
        report(
            f"{at_s:.0f} of {self.duration_s:.0f} s: {memory_kib} KiB, {descriptors} descriptors, {threads} threads; "
            f"{counts['ended: end']} answers, {counts['ended: error']} errors, {counts['ended: aborted']} aborted, "
            f"{self.traffic.num_open} open; {counts['broker restarts']} broker and {counts['camera restarts']} camera "
            f"restarts; {len(self.traffic.faults)} faults"
        )
