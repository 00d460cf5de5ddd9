from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.gateway.simulated_group import Broker, Worker

NODES = "abc"
WITNESS = "b"

Step = tuple[str, int, int]

steps_of_a_day = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "finish", "send", "hear", "lose", "lose", "kill", "back", "back", "settle"]),
        st.integers(0, len(NODES) - 1),
        st.integers(0, 4),
    ),
    min_size=15,
    max_size=80,
)


class Day:
    """What happens to a group."""

    def __init__(self) -> None:
        self.were_all_away = False
        self.broker = Broker()
        self.workers = [Worker(self.broker, node, 0) for node in NODES]
        self.killed: list[Worker] = []
        self.num_asked = 0
        self.num_runs = 0

    async def begin(self) -> None:
        for worker in self.workers:
            worker.connect()
        await self.settle()

    async def settle(self) -> None:
        """Let everything arrive."""
        for _ in range(20):
            for worker in self.workers:
                if worker.is_connected:
                    worker.send()
                    worker.hear()
            await asyncio.sleep(0)

    async def do(self, step: Step, *, protected: str) -> None:
        what, which, number = step
        worker = self.workers[which]
        if what == "ask":
            self.broker.ask(f"r{self.num_asked}")
            self.num_asked += 1
        elif what == "finish" and worker.open:
            worker.finish(worker.open[number % len(worker.open)])
        elif what == "send" and worker.is_connected:
            worker.send(number + 1)
        elif what == "hear" and worker.is_connected:
            worker.hear(number + 1)
        elif what == "settle":
            await self.settle()
        elif what == "back" and not worker.is_connected:
            await self.bring_back(worker)
        elif what in ("lose", "kill") and worker.node != protected:
            if worker.is_connected:
                worker.send(number)  # what is on its way still arrives
                worker.lose()
            if what == "kill":
                self.killed.append(worker)
                self.num_runs += 1
                self.workers[which] = Worker(self.broker, worker.node, self.num_runs)
        await asyncio.sleep(0)
        if protected:  # it is never far behind
            witness = next(worker for worker in self.workers if worker.node == protected)
            witness.send()
            witness.hear()
            await asyncio.sleep(0)
            witness.send()

    async def bring_back(self, worker: Worker) -> None:
        """Connect a worker again; the others answer before it stops waiting for them."""
        worker.connect()
        if worker.desk.is_asking:
            await self.settle()
            if worker.is_connected:
                worker.desk.go_on()

    async def end(self) -> None:
        for worker in self.workers:
            if not worker.is_connected:
                await self.bring_back(worker)
                await self.settle()
        await self.settle()
        for worker in self.workers:
            for active in list(worker.open):
                worker.finish(active)
        await self.settle()

    def num_ends(self, id: str) -> int:
        return len(self.broker.terminals[id])


async def live(steps: list[Step], *, protected: str = "") -> Day:
    day = Day()
    await day.begin()
    for step in steps:
        await day.do(step, protected=protected)
        day.were_all_away |= not any(worker.is_connected for worker in day.workers)
    await day.end()
    assert [worker.desk.num_open for worker in day.workers] == [0] * len(day.workers)
    return day


@settings(deadline=None, max_examples=500, derandomize=True)
@given(steps_of_a_day)
def test_with_one_worker_that_stays_every_claimed_request_ends_once(steps: list[Step]) -> None:
    day = asyncio.run(live(steps, protected=WITNESS))
    for number in range(day.num_asked):
        id = f"r{number}"
        is_lost = any(id in worker.taken for worker in day.killed) and id not in day.broker.claimed
        if not is_lost:
            assert day.num_ends(id) >= 1, id
        if id not in day.broker.in_window:
            assert day.num_ends(id) <= 1, id


@settings(deadline=None, max_examples=500, derandomize=True)
@given(steps_of_a_day)
def test_whatever_happens_a_request_ends_once_unless_those_who_know_of_it_are_lost(steps: list[Step]) -> None:
    day = asyncio.run(live(steps))
    was_killed = {id for worker in day.killed for id in worker.taken}
    for number in range(day.num_asked):
        id = f"r{number}"
        if id not in was_killed:
            assert day.num_ends(id) >= 1, id
        # Where all were away at once, nobody may be left to say that a client has been told already.
        if id not in day.broker.in_window and not day.were_all_away:
            assert day.num_ends(id) <= 1, id


def test_a_worker_that_is_killed_is_told_of_by_the_member_with_the_smallest_name() -> None:
    async def run() -> Day:
        day = Day()
        await day.begin()
        for _ in range(3):
            day.broker.ask(f"r{day.num_asked}")
            day.num_asked += 1
        await day.settle()
        victim = day.workers[2]
        assert victim.open
        await day.do(("kill", 2, 0), protected="")
        await day.settle()
        return day

    day = asyncio.run(run())
    for id in day.killed[0].taken:
        assert day.broker.told_by[id] == {"a#0"}
    for worker in day.workers[:2]:
        assert all(day.num_ends(id) == 0 for id in worker.taken), "what others work on goes on"


def test_a_worker_alone_goes_on_after_a_lost_connection() -> None:
    async def run() -> Day:
        day = Day()
        day.workers = day.workers[:1]
        await day.begin()
        day.broker.ask("r0")
        await day.settle()
        day.workers[0].lose()
        await day.bring_back(day.workers[0])
        await day.settle()
        day.workers[0].finish(day.workers[0].open[0])
        await day.settle()
        return day

    day = asyncio.run(run())
    assert day.num_ends("r0") == 1
    assert day.broker.told_by["r0"] == {"a#0"}


def test_a_broker_that_forgets_everything_ends_no_request() -> None:
    async def run() -> Day:
        day = Day()
        await day.begin()
        for number in range(3):
            day.broker.ask(f"r{number}")
        await day.settle()
        for worker in day.workers:
            worker.lose(is_will=False)
        day.broker.retained.clear()
        for worker in day.workers:
            worker.connect()
        await day.settle()
        for worker in day.workers:
            for active in list(worker.open):
                worker.finish(active)
        await day.settle()
        return day

    day = asyncio.run(run())
    for worker in day.workers:
        for id in worker.taken:
            assert day.broker.told_by[id] == {worker.name}
            assert day.num_ends(id) == 1
