"""Sees to it that a request is settled, whatever happens to it, to the gateway and to the broker."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

from edge_vl.errors import Aborted, EdgeVLError, SinkError
from edge_vl.mqtt.exchange import Exchange
from edge_vl.mqtt.messages import ImageRef, Request
from edge_vl.mqtt.presence import Presence
from edge_vl.mqtt.remote_pictures import RawPicture
from edge_vl.mqtt.request_sender import RequestSender
from edge_vl.mqtt.session import Session

__all__ = ["Attendant"]

_LOOK_EVERY_S = 0.25
_CANCEL_GRACE_S = 2.0
_MIN_SLACK_S = 1.0
_MAX_SLACK_S = 10.0


class Attendant:
    """Sends requests and waits for their outcome."""

    def __init__(self, session: Session, sender: RequestSender, presence: Presence) -> None:
        """Keep them.

        Args:
            session: the link.
            sender: sends requests over it.
            presence: what is known of gateways.
        """
        self._session = session
        self._sender = sender
        self._presence = presence

    async def attend(
        self, exchange: Exchange, request: Request, pictures: Sequence[ImageRef | RawPicture], timeout_s: float
    ) -> None:
        """Send a request; return when it is settled."""
        until_s = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._sender.send(exchange, request, pictures)
        except TimeoutError:
            exchange.expire()
            self._sender.send_cancel(exchange)
        except EdgeVLError as error:
            exchange.fail(error.with_traceback(None))
        except Exception as error:  # nobody would hear of it otherwise, and the stream would wait
            exchange.fail(SinkError(f"the request could not be sent: {error!r}"))
        # The gateway's word that the deadline has passed is better than ours, and needs its way.
        until_s += self._session.link.timeout_s(_MIN_SLACK_S, _MAX_SLACK_S)
        while not exchange.settled.is_set():
            now_s = time.monotonic()
            if now_s >= until_s:
                exchange.expire()
                self._sender.send_cancel(exchange)
            elif (gave_up := self._why_give_up(exchange, now_s)) is not None:
                exchange.fail(gave_up)
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(exchange.settled.wait(), min(_LOOK_EVERY_S, until_s - now_s))

    def cancel(self, exchange: Exchange) -> None:
        """Ask the gateway to end a request, and wait a little for its word."""
        if exchange.settled.is_set() or exchange.cancelled_s is not None:
            return
        exchange.cancelled_s = time.monotonic()
        if exchange.sent_s is None:
            exchange.fail(Aborted("cancelled"))
        self._sender.send_cancel(exchange)

    def leave(self, exchange: Exchange) -> None:
        """Ask the gateway to end a request, and do not wait for its word."""
        self.cancel(exchange)
        exchange.fail(Aborted("cancelled", text=exchange.text))

    def _why_give_up(self, exchange: Exchange, now_s: float) -> Aborted | None:
        if exchange.cancelled_s is not None and now_s - exchange.cancelled_s >= _CANCEL_GRACE_S:
            return Aborted("cancelled", text=exchange.text)
        if exchange.sent_s is None or not self._session.is_connected:  # what is known of gateways may be old
            return None
        gone = self._presence.why_gone(
            exchange.node,
            has_begun=exchange.has_begun,
            boot_id=exchange.boot_id,
            asked_s=exchange.sent_s,
            now_s=now_s,
        )
        return None if gone is None else Aborted(gone.reason, text=exchange.text, hint=gone.hint)
