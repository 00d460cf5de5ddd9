"""Do something when a camera's yes/no question turns to yes.

    edge-vl gateway --demo                                                  # in one terminal
    python examples/camera_alarm.py mqtt://127.0.0.1 --question red_circle  # in another one

The questions are those of the gateway file: `[[camera.when]]` with `name = "person"`, `question = "Is anyone there?"`.
A gateway tells only when an answer has changed for good, so there is one alarm for each time that somebody comes. The
password of a user in the address (`mqtt://user@host`) comes from EDGE_VL_MQTT_PASSWORD.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess

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
        print(f"listening on {broker}", flush=True)
        async for heard in fleet.heard():
            event = heard.message
            if not isinstance(event, CameraEvent) or event.type != "when" or not event.value:
                continue
            if question is not None and event.name != question:
                continue
            where = f"{heard.node}/{event.camera}"
            print(f"{event.at}  ALARM  {where}: {event.name}", flush=True)
            if command:
                await asyncio.to_thread(subprocess.run, [*command, where, event.name or ""], check=False)
            num_alarms += 1
            if num_alarms == alarms:
                return


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
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            follow(arguments.broker, question=arguments.question, command=arguments.command, alarms=arguments.alarms)
        )


if __name__ == "__main__":
    main()
