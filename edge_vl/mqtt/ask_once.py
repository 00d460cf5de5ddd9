"""One question from a program that has no event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.client import Client
from edge_vl.mqtt.remote_answer import RemoteAnswer
from edge_vl.mqtt.remote_pictures import RemotePicture

__all__ = ["ask"]


def ask(
    broker: str | BrokerSettings,
    node: str | None,
    question: str,
    *,
    images: Sequence[RemotePicture] | RemotePicture = (),
    timeout_s: float = 60.0,
    on_text: Callable[[str], object] | None = None,
    conversation: str | None = None,
    is_streamed: bool = True,
    max_tokens: int = 256,
    temperature: float = 0.0,
    seed: int = 0,
    max_frame_age_s: float | None = None,
    group: str | None = None,
    prefix: str | None = None,
    name: str | None = None,
    password: str | None = None,
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> RemoteAnswer:
    """Connect, ask one question, wait for the answer, disconnect. For more than one question use `Client`.

    Args:
        broker: as for `Client`.
        node: the gateway that is asked; None: one of `group`.
        question: about the pictures.
        images: as for `Client.ask`.
        timeout_s: seconds until the whole answer must be there, once connected.
        on_text: called with each piece of text as it comes.
        conversation: as for `Client.ask`, like the next five.
        is_streamed: False: the whole answer comes in one message.
        max_tokens: most tokens of the answer.
        temperature: 0 takes the most likely token.
        seed: with a temperature: equal seeds give equal answers.
        max_frame_age_s: oldest frame of a camera that an answer may be about.
        group: as for `Client`, like the rest.
        prefix: what all topics begin with.
        name: what gateways know this client by.
        password: for the user in the address.
        ca: file of trusted certificates.
        cert: certificate of this client.
        key: its key.

    Raises:
        EdgeVLError: as `Client` and its streams raise.
        RuntimeError: an event loop runs in this thread already.
    """

    async def ask_once() -> RemoteAnswer:
        client = Client(
            broker, node=node, group=group, prefix=prefix, name=name, password=password, ca=ca, cert=cert, key=key
        )
        async with client:
            stream = client.ask(
                question,
                images=images,
                timeout_s=timeout_s,
                conversation=conversation,
                is_streamed=is_streamed,
                max_tokens=max_tokens,
                temperature=temperature,
                seed=seed,
                max_frame_age_s=max_frame_age_s,
            )
            async for text in stream:
                if on_text is not None:
                    on_text(text)
            return await stream.answer()

    return asyncio.run(ask_once())
