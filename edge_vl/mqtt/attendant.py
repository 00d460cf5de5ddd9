"""Sees to it that a request is settled, whatever happens to it, to the gateway and to the broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
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

_log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.25
_CANCEL_GRACE_S = 2.0
_DOUBT_AFTER_S = 5.0
"""A gateway that is online and idle begins sooner."""

_MIN_SLACK_S = 1.0
_MAX_SLACK_S = 10.0


class Attendant:
    """Sends requests and waits for their outcome."""

    def __init__(
        self,
        session: Session,
        sender: RequestSender,
        presence: Presence,
        *,
        group: str | None = None,
        answers: str = "",
    ) -> None:
        """Keep them.

        Args:
            session: the link.
            sender: sends requests over it.
            presence: what is known of gateways.
            group: that is asked; None: a node is.
            answers: filter of the topics that answers come on.
        """
        self._session = session
        self._sender = sender
        self._presence = presence
        self._group = group
        self._answers = answers

    async def attend(
        self, exchange: Exchange, request: Request, pictures: Sequence[ImageRef | RawPicture], timeout_s: float
    ) -> None:
        """Send a request; return when it is settled."""
        until_s = time.monotonic() + timeout_s
        num_connections, has_doubted = self._session.num_connections, False
        try:
            async with asyncio.timeout(timeout_s):
                await self._sender.send(exchange, request, pictures)
            num_connections = self._session.num_connections
        except TimeoutError:
            exchange.expire(self._why_late(exchange, num_connections))
            self._sender.send_cancel(exchange)
        except EdgeVLError as error:
            exchange.fail(error.with_traceback(None))
        except Exception as error:  # nobody would hear of it otherwise, and the stream would wait
            exchange.fail(SinkError(f"the request could not be sent: {error!r}"))
        # The gateway's word that the deadline has passed is better than ours, and needs its way.
        until_s += self._session.link.timeout_s(_MIN_SLACK_S, _MAX_SLACK_S)
        while not exchange.settled.is_set():
            now_s = time.monotonic()
            if not has_doubted and (doubt := self._doubt(exchange, now_s)):
                has_doubted = True
                _log.warning("no answer so far: %s", doubt)
            if now_s >= until_s:
                exchange.expire(self._why_late(exchange, num_connections))
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
            group=self._group,
            is_unheard=exchange.is_unheard,
        )
        return None if gone is None else Aborted(gone.reason, text=exchange.text, hint=gone.hint)

    def _why_late(self, exchange: Exchange, num_connections: int) -> str:
        """Say what is known of the cause when nothing more came in time; often nothing is."""
        if not self._session.is_connected:
            return "there is no connection to the broker"
        if self._session.num_connections != num_connections:
            return "the connection to the broker was lost in between, and what it delivered then is lost, too"
        return self._doubt(exchange, None)

    def _doubt(self, exchange: Exchange, now_s: float | None) -> str:
        """Say why nothing comes although the gateway is there; at once, or after a while."""
        node = exchange.node
        if node is None or exchange.sent_s is None or exchange.has_begun or not self._presence.is_online(node):
            return ""
        if now_s is not None and now_s - exchange.sent_s < _DOUBT_AFTER_S:
            return ""
        return (
            f"the gateway {node!r} is online; it is busy, or this user may not read {self._answers} by the broker's "
            "rules: those may want another name of the client (--name, Client(name=...))"
        )
