"""Requests on their way out: pictures first, then the question, then perhaps the wish to end it."""

from __future__ import annotations

import asyncio
import base64
import math
import time
from collections.abc import Sequence

import msgspec

from edge_vl.errors import BrokerError, RequestError
from edge_vl.mqtt.exchange import Exchange
from edge_vl.mqtt.messages import Cancel, ImageRef, Request
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.remote_pictures import RawPicture
from edge_vl.mqtt.session import Session
from edge_vl.mqtt.topics import GroupTopics, NodeTopics

__all__ = ["RequestSender"]

_JSON = "application/json"
_MAX_INLINE_BYTES = 96 * 1024


class RequestSender:
    """Sends requests to one gateway or one group."""

    def __init__(self, session: Session, target: NodeTopics | GroupTopics, client: str) -> None:
        """Keep them.

        Args:
            session: the link.
            target: whom to ask.
            client: name of this client.
        """
        self._session = session
        self._target = target
        self._client = client

    async def send(self, exchange: Exchange, request: Request, pictures: Sequence[ImageRef | RawPicture]) -> None:
        """Send a request; the broker has it when this returns.

        Raises:
            ImageError: a picture is none.
            RequestError: the pictures are too large for a request to a group.
            BrokerError: the broker does not take it, or too much waits for the broker.
        """
        if any(isinstance(picture, RawPicture) for picture in pictures):
            request = msgspec.structs.replace(request, images=await self._send_pictures(exchange, pictures))
        if exchange.settled.is_set():
            return
        message = Outbound(
            self._target.request,
            msgspec.json.encode({"v": request.v, **msgspec.to_builtins(request)}),
            content_type=_JSON,
            correlation=request.id.encode(),
            expiry_s=math.ceil((request.deadline_ms or 1000) / 1000),
            needs_listener=True,
        )
        # A worker of a group may answer before the broker's word that it has the request is here.
        exchange.sent_s = time.monotonic()
        try:
            await self._acknowledged([self._session.post(message, "terminal")])
        except BrokerError as error:
            if error.reason != "unheard":
                raise
            exchange.is_unheard = True
        if not exchange.has_begun:
            exchange.sent_s = time.monotonic()

    def send_cancel(self, exchange: Exchange) -> None:
        """Ask whoever has a request to end it."""
        if exchange.sent_s is not None:
            payload = msgspec.json.encode(Cancel(exchange.id, client=self._client))
            self._session.post(Outbound(self._target.cancel, payload, content_type=_JSON), "drop")

    async def _send_pictures(self, exchange: Exchange, pictures: Sequence[ImageRef | RawPicture]) -> list[ImageRef]:
        """Send pictures ahead to a gateway; put them into the request of a group, whose worker is not known yet."""
        refs: list[ImageRef] = []
        posted: list[asyncio.Future[float]] = []
        began_s = time.monotonic()
        num_inline_bytes = largest_bytes = 0
        try:
            for index, picture in enumerate(pictures):
                if isinstance(picture, ImageRef):
                    refs.append(picture)
                    continue
                encoded = await asyncio.to_thread(picture.encoded)
                largest_bytes = max(largest_bytes, len(encoded))
                if isinstance(self._target, NodeTopics):
                    topic = self._target.image(self._client, f"{exchange.id}-{index}")
                    posted.append(self._session.post(Outbound(topic, encoded), "terminal"))
                    refs.append(ImageRef(topic=topic))
                    continue
                num_inline_bytes += 4 * math.ceil(len(encoded) / 3)
                if num_inline_bytes > _MAX_INLINE_BYTES:
                    raise RequestError(
                        f"the pictures have {num_inline_bytes} bytes in base64, and {_MAX_INLINE_BYTES} may go into a "
                        "request to a group; make them smaller, or ask a node, which takes larger ones",
                        field="images",
                    )
                refs.append(ImageRef(base64=base64.b64encode(encoded).decode()))
            # The request goes on another topic, and only within one topic does a broker keep the order.
            try:
                await self._acknowledged(posted)
            except BrokerError as error:
                raise BrokerError(
                    f"the broker did not take a picture (the largest has {largest_bytes} bytes; it may allow less): "
                    f"{error}",
                    reason=error.reason,
                ) from error
            if posted:
                exchange.upload_s = time.monotonic() - began_s
        finally:
            for future in posted:
                future.cancel()
        return refs

    async def _acknowledged(self, posted: Sequence[asyncio.Future[float]]) -> None:
        """Wait until the broker has all of them; whoever stops waiting takes back what it has not."""
        if not posted:
            return
        try:
            await asyncio.wait(posted)
        finally:
            for future in posted:
                future.cancel()
        if any(future.cancelled() for future in posted):
            raise BrokerError(
                "the broker did not take a message of this request; too much may wait for it already",
                reason="lost",
            )
        for future in posted:
            future.result()
