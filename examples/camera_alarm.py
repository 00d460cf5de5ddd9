"""Do something when a camera's yes/no question turns to yes.

    edge-vl gateway --demo                                                  # in one terminal
    python examples/camera_alarm.py mqtt://127.0.0.1 --question red_circle  # in another one

The questions are those of the gateway file: `[[camera.when]]` with `name = "person"`, `question = "Is anyone there?"`.
A gateway tells only when an answer has changed for good, so there is one alarm for each time that somebody comes. The
demo's camera shows a red circle for 8 of each 16 seconds. What is asked, and what comes, is told on standard error. The
password of a user in the address (`mqtt://user@host`) comes from EDGE_VL_MQTT_PASSWORD.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys

from edge_vl import EdgeVLError
from edge_vl.mqtt import Fleet
from edge_vl.mqtt.node_messages import CameraEvent


async def follow(broker: str, *, question: str | None, command: list[str], alarms: int) -> None:
    """Wait for alarms.

    Args:
        broker: its address.
        question: name of the question; None: any.
        command: run for each alarm, with `node/camera` and the question's name behind it; empty: none.
        alarms: after which it ends; 0: never.
    """
    num_alarms = 0
    async with Fleet(broker, password=os.environ.get("EDGE_VL_MQTT_PASSWORD")) as fleet:
        tell(f"listening on {broker}; Ctrl-C ends it")
        await fleet.settle()
        tell_questions(fleet, question)
        async for heard in fleet.heard():
            event = heard.message
            if not isinstance(event, CameraEvent):
                continue
            where = f"{heard.node}/{event.camera}"
            if event.type in ("online", "offline", "disabled"):
                tell(f"{event.at}  {where} is {event.type}{event.reason and f': {event.reason}'}")
            if event.type != "when" or (question is not None and event.name != question):
                continue
            if not event.value:
                tell(f"{event.at}  {where}: {event.name} is over")
                continue
            print(f"{event.at}  ALARM  {where}: {event.name}", flush=True)
            if command:
                await asyncio.to_thread(subprocess.run, [*command, where, event.name or ""], check=False)
            num_alarms += 1
            if num_alarms == alarms:
                return


def tell(line: str) -> None:
    """Print what is no alarm."""
    print(line, file=sys.stderr, flush=True)


def tell_questions(fleet: Fleet, question: str | None) -> None:
    """Say which questions there are, as far as the broker knows, and whether ours is among them."""
    names = set()
    for node, gateway in sorted(fleet.gateways.items()):
        for camera, state in sorted(gateway.cameras.items()):
            for name, value in state.when.items():
                names.add(name)
                now = "yes, so the next alarm comes after a no" if value else "not known yet" if value is None else "no"
                tell(f"{node}/{camera} ({state.status}) asks {name}: {now}")
    if not names:
        tell("no camera here asks a yes/no question yet; waiting for one")
    elif question is not None and question not in names:
        tell(f"no camera here asks {question!r} yet; waiting for one that does. Asked is: {', '.join(sorted(names))}")


def main() -> None:
    """Read the command line and wait."""
    parser = argparse.ArgumentParser(description="Do something when a camera's yes/no question turns to yes.")
    parser.add_argument("broker", nargs="?", default="mqtt://127.0.0.1")
    parser.add_argument("--question", help="name of the question; default: any")
    parser.add_argument("--alarms", type=int, default=0, help="end after so many; 0: never")
    parser.add_argument(
        "--command", nargs=argparse.REMAINDER, default=[], help="what is run for each alarm; comes last"
    )
    arguments = parser.parse_args()
    try:
        asyncio.run(
            follow(arguments.broker, question=arguments.question, command=arguments.command, alarms=arguments.alarms)
        )
    except EdgeVLError as error:
        sys.exit(f"camera_alarm: {error}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
