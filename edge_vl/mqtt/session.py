"""The link to a broker that lasts: it connects again and again, and loses nothing that it promised to keep."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping

from edge_vl.errors import BrokerError, RequestError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.link_model import LinkModel
from edge_vl.mqtt.loss_log import LossLog
from edge_vl.mqtt.opener import Opener, first_of, new_client_id
from edge_vl.mqtt.outbox import Entry, Keep, Outbox
from edge_vl.mqtt.packet import Inbound, Outbound, QoS
from edge_vl.mqtt.refusals import message_refusal
from edge_vl.mqtt.suspicion import SETTLE_S
from edge_vl.mqtt.take_overs import SOON_S, TakeOvers
from edge_vl.mqtt.transport import Connection, Handlers, Loss, Version, check_installed

__all__ = ["Session"]

_log = logging.getLogger(__name__)

_HOPELESS = frozenset({"refused", "taken_over", "tls", "unsupported"})

_MAX_IN_FLIGHT = 20

_BEFORE_SEND_S = 2.0
_GOODBYE_S = 0.5

_MIN_TIMEOUT_S = 10.0
"""Confirmations may be late for so long on any link: a new connection costs more than a little patience."""

_BYTES_PER_TURN = 2**18

_MAX_TOPIC_BYTES = 65_535


class Session:
    """A link to a broker. Everything but `run` returns at once or within a bound; all of it in one event loop.

    Messages at QoS 1 are sent in their order, some of them before earlier ones are confirmed; what is not confirmed
    when a connection ends is sent first on the next. The order within a topic therefore holds, and a message may arrive
    twice.

    States that `on_state` is told, with words for a person: `connected`, `lost`, `unreachable`, `stopped`.

    Attributes:
        link: what is known of the round trips.
        num_connections: that were made so far.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        filters: Mapping[str, QoS],
        on_message: Callable[[Inbound], None],
        on_connect: Callable[[], Iterable[Outbound]] = tuple,
        will: Outbound | None = None,
        before_send: Callable[[], Awaitable[None]] | None = None,
        on_state: Callable[[str, str], None] | None = None,
        on_refused: Callable[[Outbound, int], None] | None = None,
        outbox_bytes: int = 8 * 2**20,
        client_id_stem: str = "edge_vl",
    ) -> None:
        """Say what is to be heard and told; nothing is connected yet.

        Args:
            settings: how the broker is reached.
            filters: subscribed to on every connection.
            on_message: takes what comes in; must not block.
            on_connect: what is sent first on every connection: as the newest states of their topics where they are
                retained, and for this connection only where they are not.
            will: what the broker sends when this program ends without `stop`.
            before_send: awaited on every connection when it hears and has sent nothing; at most 2 s.
            on_state: is told of changes; must not block.
            on_refused: is told of messages that the broker does not take, and its reason; must not block. In 3.1.1 it
                cannot say so. None: the log tells.
            outbox_bytes: bound of what waits or is not confirmed.
            client_id_stem: what a client id begins with that nobody has set.
        """
        self.link = LinkModel()
        self.num_connections = 0
        self._settings = settings
        self._filters: dict[str, QoS] = dict(filters)
        self._on_message = on_message
        self._on_connect = on_connect
        self._before_send = before_send
        self._on_state = on_state
        self._on_refused = on_refused
        self._outbox: Outbox[asyncio.Future[float]] = Outbox(outbox_bytes)
        self._opener = Opener(
            settings,
            client_id=settings.client_id or new_client_id(client_id_stem),
            will=will,
            handlers=Handlers(self._received, self._confirmed, self._pump, self._tick),
        )
        self._random = random.Random()
        self._losses = LossLog(_log)
        self._connection: Connection | None = None
        self._is_ready = False
        self._ready_s = 0.0
        self._is_pump_due = False
        self._ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._drained = asyncio.Event()
        self._failure: BrokerError | None = None
        self._take_overs = TakeOvers(may_be_shared=settings.client_id is not None)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._state = ""

    @property
    def client_id(self) -> str:
        """What this client calls itself."""
        return self._opener.client_id

    @property
    def is_connected(self) -> bool:
        """Whether a message would be sent now: the broker has accepted, and everything is subscribed to."""
        return self._is_ready

    @property
    def protocol(self) -> Version:
        """The version spoken, or tried next."""
        return self._opener.version

    @property
    def num_dropped(self) -> Mapping[Keep, int]:
        """Messages given up so far, by what was to become of them; not those that a newer one replaced."""
        return self._outbox.num_dropped

    @property
    def num_lost(self) -> int:
        """Messages given up so far that were to outlive a connection."""
        return sum(num for keep, num in self._outbox.num_dropped.items() if keep != "drop")

    @property
    def num_waiting(self) -> int:
        """Messages that wait or are not confirmed."""
        return self._outbox.num_waiting + self._outbox.num_in_flight

    @property
    def outbox_bytes(self) -> int:
        """What those messages count against the bound."""
        return self._outbox.num_bytes

    def post(self, message: Outbound, keep: Keep) -> asyncio.Future[float]:
        """Send a message, now or as soon as that is possible. Only from the thread of the event loop.

        Args:
            message: what is sent.
            keep: what becomes of it when it cannot be sent now; see `edge_vl.mqtt.outbox.Keep`.

        Returns:
            Done when the broker has confirmed it, with the round trip in seconds; at QoS 0 when it is sent, with 0.0.
            Cancelled when the message is given up for want of room, or because this session has ended. Cancelling it
            takes the message back, if it is not sent yet. It has a `BrokerError` when the message cannot be delivered:
            the broker does not take it, or ends each connection on which it is sent (`refused`), or nobody listens
            where the message needs that (`unheard`).

        Raises:
            RequestError: nothing can be sent to that topic.
        """
        _check_topic(message.topic)
        loop = asyncio.get_running_loop()
        receipt: asyncio.Future[float] = loop.create_future()
        if self._stopping.is_set() or self._ended.is_set() or (keep == "drop" and not self._is_ready):
            self._outbox.num_dropped[keep] += 1
            receipt.cancel()
            return receipt
        entry = Entry(message, keep, receipt)
        if self._outbox.is_banned(message.topic, time.monotonic()):
            self._outbox.num_dropped[keep] += 1
            _refuse(entry, "messages for its topic ended the connections to the broker")
            return receipt
        dropped = self._outbox.add(entry)
        if dropped:
            self._losses.no_room(entry, dropped, self._outbox.num_bytes)
        _cancel(dropped)
        self._pump_soon(loop)
        return receipt

    async def subscribe(self, filters: Mapping[str, QoS]) -> None:
        """Listen to more, now and on every later connection.

        Raises:
            BrokerError: the broker refuses one of them (`refused`).
        """
        self._filters.update(filters)
        if self._connection is not None and self._is_ready:
            with contextlib.suppress(_Lost):
                await self._subscribe(self._connection, filters)

    async def unsubscribe(self, filters: Iterable[str]) -> None:
        """Listen to less, now and on every later connection."""
        names = list(filters)
        for name in names:
            self._filters.pop(name, None)
        if self._connection is not None and self._is_ready:
            with contextlib.suppress(BrokerError):
                await self._connection.unsubscribe(names)

    async def wait_connected(self, timeout_s: float) -> None:
        """Wait until messages can be sent.

        Raises:
            BrokerError: that took too long, or never will be: why.
        """
        waits = [asyncio.ensure_future(self._ready.wait()), asyncio.ensure_future(self._ended.wait())]
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if self._is_ready:
            return
        if self._failure is not None:
            raise self._failure.again()
        address = f"{self._settings.host}:{self._settings.port}"
        raise BrokerError(f"no connection to the broker {address} within {timeout_s:g} s", reason="unreachable")

    async def stop(self, last: Iterable[Outbound] = (), timeout_s: float = 1.0) -> None:
        """Send what waits and these messages, say goodbye so that no will is sent, and end `run`.

        Args:
            last: sent behind everything that waits.
            timeout_s: how long confirmations may take; what is not confirmed by then is given up.
        """
        for message in last:
            if not self._stopping.is_set():
                self.post(message, "terminal")
        if self._is_ready and not self._outbox.is_empty:
            self._drained.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._drained.wait(), timeout_s)
        if not self._stopping.is_set() and (num_left := self._outbox.num_kept):
            _log.warning("at the stop, the broker had not confirmed %d messages; they may be lost", num_left)
        self._stopping.set()
        if self._loop is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _GOODBYE_S * 2)

    async def run(self) -> None:
        """Connect, and again whenever the connection ends, until `stop`.

        Cancelling it cuts the connection, so that the broker sends the will.

        Raises:
            BrokerError: it is of no use to try again: `refused` credentials or subscriptions, `tls`, `unsupported`;
                `taken_over`: another program uses the same client id.
            RuntimeError: it was called before.
        """
        if self._loop is not None:
            raise RuntimeError("a session runs once")
        self._loop = asyncio.get_running_loop()
        check_installed()
        num_failures = 0
        try:
            while not self._stopping.is_set():
                num_failures = 1 if await self._live_once() >= SOON_S else num_failures + 1
                if self._stopping.is_set():
                    break
                with contextlib.suppress(TimeoutError):
                    delay_s = self._settings.backoff.delay_s(num_failures, self._random)
                    await asyncio.wait_for(self._stopping.wait(), delay_s)
        except BrokerError as error:
            self._failure = error
            raise
        finally:
            _cancel(self._outbox.clear())
            self._drained.set()
            self._ended.set()
            self._tell("stopped", "")

    async def _live_once(self) -> float:
        """Make one connection and hold it to its end; return how long it lived, 0 if it did not come about."""
        try:
            connection = await self._opener.open(self._stopping)
        except BrokerError as error:
            if error.reason in _HOPELESS:
                raise
            self._failure = error
            self._tell("unreachable", str(error))
            return 0.0
        if connection is None:
            return 0.0
        since_s = time.monotonic()
        loss: Loss | None = None
        try:
            loss = await self._hold(connection)
        finally:
            self._is_ready = False
            self._ready.clear()
            self._connection = None
            connection.abandon()
            is_by_broker = loss is not None and loss.is_by_broker
            dropped = self._outbox.connection_lost(time.monotonic(), is_by_broker=is_by_broker)
            if guilty := [entry for entry in dropped if entry.is_guilty]:
                self._losses.guilty([entry.message for entry in guilty])
            for entry in guilty:
                _refuse(entry, "the broker ended each connection on which it was sent")
            _cancel(dropped)
        lived_s = time.monotonic() - since_s
        if loss is not None:
            self._failure = BrokerError(loss.text, reason="lost")
            self._tell("lost", loss.text)
            await self._see_whether_taken_over(loss, lived_s)
        return lived_s

    async def _hold(self, connection: Connection) -> Loss | None:
        """Use a connection until it ends; None: it was us who ended it."""
        self._connection = connection
        self.num_connections += 1
        self.link.connected()
        try:
            await self._subscribe(connection, self._filters)
        except _Lost:
            return await connection.closed
        await self._prepare(connection)
        if not connection.closed.done() and not self._stopping.is_set():
            loop = asyncio.get_running_loop()
            first = [
                Entry(message, "latest" if message.is_retained else "drop", loop.create_future())
                for message in self._on_connect()
            ]
            self._ready_s = time.monotonic()
            _cancel(
                self._outbox.add_first(
                    entry for entry in first if not self._outbox.is_banned(entry.message.topic, self._ready_s)
                )
            )
            self._is_ready = True
            self._ready.set()
            self._failure = None
            self._tell("connected", f"MQTT {connection.version}")
            self._pump()
            await first_of(self._stopping, connection.closed)
        if connection.closed.done():
            return connection.closed.result()
        self._is_ready = False
        await connection.close(_GOODBYE_S)
        return None

    async def _subscribe(self, connection: Connection, filters: Mapping[str, QoS]) -> None:
        try:
            async with asyncio.timeout(self._settings.connect_timeout_s):
                refused = await connection.subscribe(filters)
        except TimeoutError:
            connection.abandon("the broker did not answer a subscription")
            raise _Lost from None
        except BrokerError:
            raise _Lost from None
        if refused:
            names = ", ".join(refused)
            raise BrokerError(
                f"the broker refuses subscriptions to {names}; see what its access rules allow this user to read",
                reason="refused",
            )

    async def _prepare(self, connection: Connection) -> None:
        if self._before_send is None:
            return
        preparing = asyncio.ensure_future(_as_coroutine(self._before_send()))
        await first_of(self._stopping, preparing, connection.closed, limit_s=_BEFORE_SEND_S)
        if not preparing.done():
            preparing.cancel()
        elif not preparing.cancelled() and (error := preparing.exception()) is not None:
            _log.error("what should be done before anything is sent failed", exc_info=error)

    async def _see_whether_taken_over(self, loss: Loss, lived_s: float) -> None:
        """Give up if another program uses our client id, and each of the two ends the other's connection for ever.

        Raises:
            BrokerError: it is so (`taken_over`).
        """
        verdict = self._take_overs.judge(loss, lived_s, time.monotonic())
        if verdict == "perhaps":
            limit_s = min(2.0 * lived_s + 1.0, SOON_S)
            # One that says nothing and lives as long shows that the broker hung up on what was said.
            is_so = not await self._opener.lives_in_silence(self.client_id, limit_s, self._stopping)
            is_so = is_so and await self._opener.lives_in_silence(new_client_id("edge_vl"), limit_s, self._stopping)
            verdict = "yes" if is_so else "no"
        if verdict == "yes":
            other = "" if loss.is_taken_over else " (or the broker ends connections that publish what they may not)"
            raise BrokerError(
                f"the client id {self.client_id!r} is used by another program as well, and the broker lets only one of "
                f"them stay; give each its own `client_id`{other}",
                reason="taken_over",
            )

    # What a connection calls.

    def _received(self, inbound: Inbound) -> None:
        try:
            self._on_message(inbound)
        except Exception:
            _log.exception("a message on %.200r could not be taken", inbound.topic)

    def _confirmed(self, number: int, reason: int) -> None:
        now_s = time.monotonic()
        entry = self._outbox.confirmed(number, now_s)
        if entry is None:
            return
        rtt_s = now_s - entry.sent_s
        self.link.exchanged(rtt_s)
        if reason >= 128:
            (self._on_refused or self._losses.refused)(entry.message, reason)
        if not entry.receipt.done():
            refused = message_refusal(reason, entry.message)
            if refused is None:
                entry.receipt.set_result(rtt_s)
            else:
                entry.receipt.set_exception(refused)
                entry.receipt.exception()  # perhaps nobody looks at it
        self._pump_soon(asyncio.get_running_loop())

    def _tick(self) -> None:
        connection, oldest_s = self._connection, self._outbox.oldest_sent_s
        if connection is None:
            return
        if oldest_s is None:
            self._pump_soon(asyncio.get_running_loop())  # perhaps a suspect waits for its moment
            return
        keepalive_s = float(self._settings.keepalive_s)
        limit_s = self.link.timeout_s(_MIN_TIMEOUT_S, max(_MIN_TIMEOUT_S, keepalive_s))
        waited_s = time.monotonic() - max(oldest_s, connection.last_written_s)
        silent_s = time.monotonic() - connection.last_heard_s
        # What the network has not taken yet cannot be confirmed; what is heard meanwhile is a sign of life, for a time.
        if min(waited_s, silent_s) > limit_s or (
            not connection.is_blocked and waited_s > 4 * max(limit_s, keepalive_s)
        ):
            connection.abandon(f"the broker confirmed nothing for {waited_s:.3g} s")

    def _pump_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._is_pump_due and self._is_ready:
            self._is_pump_due = True
            loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Hand messages to the connection, as many as it takes."""
        self._is_pump_due = False
        connection = self._connection
        if connection is None or not self._is_ready:
            return
        limit = min(_MAX_IN_FLIGHT, connection.max_in_flight or _MAX_IN_FLIGHT)
        is_settled = time.monotonic() - self._ready_s >= SETTLE_S
        num_bytes = 0
        while not connection.is_blocked and not connection.closed.done():
            entry = self._outbox.take(limit, is_settled=is_settled)
            if entry is None:
                break
            self._send(connection, entry)
            num_bytes += entry.cost_bytes
            if num_bytes > _BYTES_PER_TURN:  # see whether the network takes them
                self._pump_soon(asyncio.get_running_loop())
                break
        if self._outbox.is_empty:
            self._drained.set()

    def _send(self, connection: Connection, entry: Entry[asyncio.Future[float]]) -> None:
        message, max_bytes = entry.message, connection.max_packet_bytes
        if max_bytes is None:
            max_bytes = self._outbox.max_packet_bytes(time.monotonic())
        if max_bytes is not None and message.num_bytes > max_bytes:
            self._give_up(entry, f"it takes {message.num_bytes} bytes, and the broker takes packets of {max_bytes}")
            return
        try:
            number = connection.publish(message)
        except BrokerError:
            _cancel(self._outbox.add_first([entry]))
            return
        except ValueError as error:
            self._give_up(entry, str(error))
            return
        if message.qos > 0:
            self._outbox.sent(entry, number, time.monotonic())
        elif not entry.receipt.done():
            entry.receipt.set_result(0.0)

    def _give_up(self, entry: Entry[asyncio.Future[float]], why: str) -> None:
        self._outbox.num_dropped[entry.keep] += 1
        _refuse(entry, why)
        self._losses.too_large(entry.message, why)

    def _tell(self, state: str, text: str) -> None:
        """Tell whoever listens; who does not, finds it in the log, what repeats itself only in detail."""
        address = f"{self._settings.host}:{self._settings.port}"
        is_repeated = state == self._state and state == "unreachable"
        level = logging.DEBUG if is_repeated or self._on_state is not None else logging.INFO
        _log.log(level, "broker %s: %s%s", address, state, f" ({text})" if text else "")
        self._state = state
        if self._on_state is not None:
            self._on_state(state, text)


class _Lost(Exception):
    """A connection ended while something was asked of the broker."""


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


def _cancel(entries: Iterable[Entry[asyncio.Future[float]]]) -> None:
    for entry in entries:
        entry.receipt.cancel()


def _refuse(entry: Entry[asyncio.Future[float]], why: str) -> None:
    if not entry.receipt.done():
        error = BrokerError(f"a message for {entry.message.topic:.200} cannot be delivered: {why}", reason="refused")
        entry.receipt.set_exception(error)
        entry.receipt.exception()  # perhaps nobody looks at it


def _check_topic(topic: str) -> None:
    is_bad = not topic or "+" in topic or "#" in topic or "\0" in topic or topic[0] == "$"
    if is_bad or len(topic) * 4 > _MAX_TOPIC_BYTES:
        raise RequestError(
            f"nothing can be sent to the topic {topic!r:.80}: no wildcards, no $ in front, not empty, not too long",
            field="topic",
        )
