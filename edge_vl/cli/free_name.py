"""Whether a name is free at a broker, before something is published under it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from edge_vl.errors import BrokerError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.packet import Inbound
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import NodeTopics

__all__ = ["is_name_free"]

_KEPT_STATUS_S = 0.5
"""What a broker keeps comes right behind its confirmation of a subscription."""


async def is_name_free(
    settings: BrokerSettings,
    topics: NodeTopics,
    *,
    on_state: Callable[[str, str], None],
    is_closing: Callable[[], bool],
) -> bool:
    """See that nobody is online under a node's name. A connection of its own, without a will, changes nothing there.

    Waits for a broker that is away.

    Args:
        settings: how the broker is reached.
        topics: of the node.
        on_state: is told what becomes of the connection, as by `Session`.
        is_closing: whether it should be given up.

    Returns:
        False: it was given up.

    Raises:
        BrokerError: somebody has the name (`taken_over`).
    """
    kept: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def hear(inbound: Inbound) -> None:
        if not kept.done():
            kept.set_result(inbound.payload)

    looking = Session(settings, filters={topics.status: 1}, on_message=hear, on_state=on_state)
    running = asyncio.create_task(looking.run())
    try:
        while not running.done() and not looking.is_connected:
            if is_closing():
                return False
            with contextlib.suppress(BrokerError):
                await looking.wait_connected(_KEPT_STATUS_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(kept), 0 if running.done() else _KEPT_STATUS_S)
    finally:
        await looking.stop()
        with contextlib.suppress(BrokerError):  # who may not read the status may still publish
            await running
    if kept.done() and kept.result() == b"online":
        raise BrokerError(
            f"a gateway or another watch of the name {topics.node!r} is online at this broker; give this one its own, "
            f"as in --mqtt mqtt://host/{topics.prefix}/{topics.node[:60]}-2. (One that was cut off seems to be online "
            "until the broker misses it, a minute at most.)",
            reason="taken_over",
        )
    return True
