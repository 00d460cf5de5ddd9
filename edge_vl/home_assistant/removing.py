"""Takes a gateway and its cameras out of Home Assistant."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

from edge_vl.errors import BrokerError
from edge_vl.gateway.config import GatewayConfig
from edge_vl.home_assistant.announcer import removals
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import NodeTopics

__all__ = ["remove_discovery"]

_TIMEOUT_S = 10.0


async def remove_discovery(config: GatewayConfig, *, timeout_s: float = _TIMEOUT_S) -> list[str]:
    """Make everything disappear that a gateway file has announced. The gateway itself should not run.

    Args:
        config: the gateway file that was used; cameras that it does not name stay.
        timeout_s: how long connecting may take, and after that the broker's confirmation.

    Returns:
        The discovery topics that were emptied.

    Raises:
        BrokerError: the broker cannot be reached, or did not confirm it.
    """
    # An id of its own: the gateway's would throw out a gateway that runs.
    settings = dataclasses.replace(config.broker, client_id=None)
    session = Session(
        settings,
        filters={},
        on_message=lambda inbound: None,
        on_connect=lambda: (),
        on_state=None,
        outbox_bytes=1 << 20,
        client_id_stem=f"edge_vl-{config.node}-removal",
    )
    link = asyncio.create_task(session.run())
    try:
        await session.wait_connected(timeout_s)
        messages = removals(config, NodeTopics(config.prefix, config.node))
        sent = [session.post(message, "terminal") for message in messages]
        done, waiting = await asyncio.wait(sent, timeout=timeout_s)
        if waiting or any(future.cancelled() for future in done):
            raise BrokerError("the broker did not confirm that everything was removed; try it again", reason="lost")
        for future in done:
            future.result()
    finally:
        await session.stop(timeout_s=0.5)
        with contextlib.suppress(BrokerError):
            await link
    return [message.topic for message in messages]
