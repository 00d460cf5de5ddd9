"""One question from a program that has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from edge_vl.mqtt.client import Client
from edge_vl.mqtt.remote_answer import RemoteAnswer

__all__ = ["ask"]


def ask(
    broker: str,
    node: str,
    question: str,
    *,
    password: str | None = None,
    on_text: Callable[[str], object] | None = None,
    **fields: Any,
) -> RemoteAnswer:
    """Connect, ask one question, wait for the answer, disconnect. For more than one question use `Client`.

    Args:
        broker: as for `Client`.
        node: the gateway that is asked.
        question: about the pictures.
        password: as for `Client`.
        on_text: called with each piece of text as it comes.
        fields: as for `Client.ask`.

    Raises:
        EdgeVLError: as `Client` and its streams raise.
        RuntimeError: an event loop runs in this thread already.
    """

    async def ask_once() -> RemoteAnswer:
        async with Client(broker, node=node, password=password) as client:
            stream = client.ask(question, **fields)
            async for text in stream:
                if on_text is not None:
                    on_text(text)
            return await stream.answer()

    return asyncio.run(ask_once())
