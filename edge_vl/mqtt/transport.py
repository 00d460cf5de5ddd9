"""One connection to a broker: made once, used once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge_vl.errors import BrokerError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.dialer import Dialer
from edge_vl.mqtt.packet import Inbound, Outbound, QoS
from edge_vl.mqtt.paho_client import (
    MAX_PACKET_BYTES,
    ErrorKeeper,
    Version,
    check_installed,
    connect_properties,
    incoming_bytes,
    message_properties,
    new_client,
)
from edge_vl.mqtt.refusals import dial_error, refusal
from edge_vl.mqtt.tls import client_context, tls_error

if TYPE_CHECKING:
    from paho.mqtt.client import Client
    from paho.mqtt.properties import Properties

__all__ = ["Connection", "Handlers", "Loss", "Version", "check_installed"]

_FILTERS_PER_PACKET = 8
"""Brokers of clouds take no more in one packet."""

_TICK_S = 1.0

_UNSPECIFIED, _PROTOCOL_ERROR, _KEEPALIVE_TIMEOUT, _TAKEN_OVER = 128, 130, 141, 142
"""Reasons for the end of a connection, in the numbers of MQTT 5; the library uses them for 3.1.1 too."""


@dataclass(frozen=True, slots=True)
class Loss:
    """How a connection ended.

    Attributes:
        text: for a person.
        is_by_broker: the broker closed it, as opposed to silence, an error of the network, or ourselves.
        is_taken_over: the broker says that another program connected under the same client id. Only MQTT 5 tells.
    """

    text: str
    is_by_broker: bool = False
    is_taken_over: bool = False


@dataclass(frozen=True, slots=True)
class Handlers:
    """Whom a connection tells; all are called in the event loop and must not block.

    Attributes:
        on_message: something came in.
        on_confirmed: the broker has the message of that number; the reason is below 128 when it accepts it.
        on_writable: what was given to the connection has left it.
        on_tick: about once a second.
    """

    on_message: Callable[[Inbound], None]
    on_confirmed: Callable[[int, int], None]
    on_writable: Callable[[], None]
    on_tick: Callable[[], None]


class Connection:
    """One connection to a broker.

    It drives paho's client by that client's documented calls for foreign event loops (`loop_read`, `loop_write`,
    `loop_misc` and the callbacks of its socket). aiomqtt does the same, but with the loop's own pool of threads, which
    a host that never answers fills up and for which a program waits at its end; it leaves open the socket of an attempt
    that timed out, hears only by its time-out of a broker that hangs up, and makes a task for each message.

    Attributes:
        closed: done when the connection is gone.
        max_in_flight: messages that may be sent and not confirmed at once, as the broker says; 3.1.1 does not say.
        max_packet_bytes: likewise the size of a packet; None: not said.
        last_heard_s: `time.monotonic()` when something came in.
        last_written_s: likewise when the network took something that it had not taken at once.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        version: Version,
        client_id: str,
        will: Outbound | None,
        handlers: Handlers,
        dialer: Dialer,
        is_version_known: bool = True,
        listen_first_s: float = 0.0,
        least_answer_s: float | None = None,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            settings: how the broker is reached.
            version: spoken; a broker that does not know it may refuse it in several ways.
            client_id: what this client calls itself.
            will: what the broker sends if the connection ends without `close`.
            handlers: whom it tells.
            dialer: opens the socket.
            is_version_known: whether the broker has spoken this version before.
            listen_first_s: how long to listen before anything is said. Whoever is refused for a missing certificate
                and talks on may lose the words of the refusal, because the broker resets the connection.
            least_answer_s: after which a broker that has taken the connection and says nothing counts as one that does
                not know the version; more on a slow network. None: it may take as long as connecting may.
        """
        self.version: Version = version
        self.closed: asyncio.Future[Loss] = asyncio.get_running_loop().create_future()
        self.max_in_flight: int | None = None
        self.max_packet_bytes: int | None = None
        self.last_heard_s = self.last_written_s = time.monotonic()
        self._settings = settings
        self._client_id = client_id
        self._will = will
        self._handlers = handlers
        self._dialer = dialer
        self._is_version_known = is_version_known
        self._listen_first_s = listen_first_s
        self._least_answer_s = least_answer_s
        self._loop = asyncio.get_running_loop()
        self._accepted: asyncio.Future[None] = self._loop.create_future()
        self._client: Client | None = None
        self._socket: Any = None
        self._errors = ErrorKeeper()
        self._replies: dict[int, asyncio.Future[list[int]]] = {}
        self._properties: dict[tuple[object, ...], Properties] = {}
        self._is_writing = False
        self._is_write_due = False
        self._tick_handle: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Connect, and wait until the broker has accepted.

        Raises:
            BrokerError: `unreachable`: nobody answers, or not within `connect_timeout_s`; `lost`: the connection ended
                before the broker had answered; `refused`, `tls`; `unsupported`: it does not speak this version.
        """
        name, limit_s = f"{self._settings.host}:{self._settings.port}", self._settings.connect_timeout_s
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(limit_s):
                await self._dialer.run(self._dial, self._discard)
                dial_s = time.monotonic() - began_s
                self._watch_socket()
                if self._listen_first_s > 0:
                    await asyncio.wait([self._accepted], timeout=self._listen_first_s)
                self._write()
                if self._least_answer_s is not None:
                    await asyncio.wait([self._accepted], timeout=max(self._least_answer_s, 4 * dial_s))
                    if not self._accepted.done():
                        text = f"the broker {name} took the connection and did not answer in MQTT {self.version}"
                        raise BrokerError(text, reason="unsupported")
                await self._accepted
        except TimeoutError:
            self.abandon()
            text = f"the broker {name} did not answer within {limit_s:g} s"
            raise BrokerError(text, reason="unreachable") from None
        except BrokerError:
            self.abandon()
            raise
        except (OSError, ValueError) as error:
            self.abandon()
            raise dial_error(error, name) from error
        except BaseException:
            self.abandon()
            raise

    def publish(self, message: Outbound) -> int:
        """Hand a message to the connection, and return the number that it will be confirmed by.

        Raises:
            ValueError: the topic or the size cannot be sent.
            BrokerError: the connection is gone (`lost`).
        """
        client = self._living()
        properties = self._properties_of(message) if self.version == "5" else None
        info = client.publish(message.topic, message.payload, message.qos, message.is_retained, properties)
        if info.rc != 0:
            raise BrokerError("the connection to the broker is gone", reason="lost")
        return info.mid

    @property
    def is_blocked(self) -> bool:
        """Whether something that was handed over has not left yet, because the network takes no more."""
        return self._is_writing

    async def subscribe(self, filters: Mapping[str, QoS]) -> list[str]:
        """Subscribe, and return the filters that the broker refused.

        Raises:
            BrokerError: the connection ended before the broker had answered (`lost`).
        """
        refused = []
        items = list(filters.items())
        for first in range(0, len(items), _FILTERS_PER_PACKET):
            part = items[first : first + _FILTERS_PER_PACKET]
            result, number = self._living().subscribe([(topic_filter, int(qos)) for topic_filter, qos in part])
            codes = await self._reply(int(result), number)
            refused += [topic_filter for (topic_filter, _), code in zip(part, codes, strict=False) if code >= 128]
        return refused

    async def unsubscribe(self, filters: Iterable[str]) -> None:
        """Unsubscribe.

        Raises:
            BrokerError: the connection ended before the broker had answered (`lost`).
        """
        names = list(filters)
        for first in range(0, len(names), _FILTERS_PER_PACKET):
            result, number = self._living().unsubscribe(names[first : first + _FILTERS_PER_PACKET])
            await self._reply(int(result), number)

    async def close(self, timeout_s: float) -> None:
        """Say goodbye, so that the broker sends no will, and close; cut the connection if that takes too long."""
        if not self.closed.done() and self._client is not None:
            with contextlib.suppress(OSError, ValueError):
                self._client.disconnect()
            await asyncio.wait([self.closed], timeout=timeout_s)
        self.abandon()

    def abandon(self, text: str = "the connection was given up") -> None:
        """Cut the connection at once; the broker will send the will. Any number of times."""
        self._forget_socket()
        self._discard()
        self._end(Loss(text))

    def _discard(self) -> None:
        """Close the socket and let go of the client, which would call us when it is collected."""
        client, self._client = self._client, None
        if client is None:
            return
        client.on_socket_close = client.on_socket_unregister_write = client.on_disconnect = None
        sock = client.socket()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.close()

    def _dial(self) -> None:
        """Make the client and its socket; in the dialer's thread."""
        client = new_client(self._settings, self.version, self._client_id, self._will, self._errors)
        client.on_connect = self._on_connect
        client.on_disconnect = self._on_disconnect
        client.on_publish = self._on_publish
        client.on_message = self._on_message
        client.on_subscribe = client.on_unsubscribe = self._on_reply
        client.on_socket_close = self._on_socket_close
        client.on_socket_register_write = self._on_want_write
        client.on_socket_unregister_write = self._on_all_written
        context = client_context(self._settings) if self._settings.is_tls else None
        if context is not None:
            client.tls_set_context(context)
        client.connect_async(
            self._settings.host,
            self._settings.port,
            keepalive=max(2, self._settings.keepalive_s // 2),
            clean_start=True,
            # A broker older than MQTT 5 may wait for more when it sees properties, instead of refusing the version.
            properties=connect_properties() if self.version == "5" and self._is_version_known else None,
        )
        try:
            client.reconnect()
        except BaseException:
            if context is not None:
                context.close_last()
            raise
        self._client = client

    def _properties_of(self, message: Outbound) -> Properties | None:
        """Return what only MQTT 5 carries; the messages of one stream share it, and making it is dear."""
        key = (message.content_type, message.correlation, message.response_topic, message.expiry_s)
        if key == ("", None, None, None):
            return None
        properties = self._properties.get(key)
        if properties is None:
            if len(self._properties) >= 64:
                self._properties.clear()
            properties = self._properties[key] = message_properties(message)
        return properties

    def _living(self) -> Client:
        if self._client is None or self.closed.done():
            raise BrokerError("the connection to the broker is gone", reason="lost")
        return self._client

    async def _reply(self, result: int, number: int | None) -> list[int]:
        if result != 0 or number is None:
            raise BrokerError("the connection to the broker is gone", reason="lost")
        reply: asyncio.Future[list[int]] = self._loop.create_future()
        self._replies[number] = reply
        try:
            return await reply
        finally:
            self._replies.pop(number, None)

    # What the event loop calls.

    def _watch_socket(self) -> None:
        client = self._living()
        self._socket = client.socket()
        if self._socket is None:
            raise BrokerError("the broker closed the connection at once", reason="lost")
        # Else a small message waits for the confirmation of the one before it, which the other end may delay by 40 ms.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop.add_reader(self._socket.fileno(), self._read)
        self._tick()

    def _read(self) -> None:
        client = self._client
        if client is None:
            return
        self.last_heard_s = time.monotonic()
        try:
            client.loop_read()
            # A TLS socket may hold decrypted bytes that no longer make the file descriptor readable.
            while self._settings.is_tls and self._socket is not None and self._socket.pending() > 0:
                client.loop_read()
        except Exception as error:
            self._fail(error)
            return
        num_bytes = incoming_bytes(client)
        if num_bytes > MAX_PACKET_BYTES:
            self.abandon(f"the broker sends a message of {num_bytes} bytes; at most {MAX_PACKET_BYTES} are taken in")

    def _write(self) -> None:
        self._is_write_due = False
        client = self._client
        if client is None or self._socket is None:
            return
        try:
            client.loop_write()
        except Exception as error:
            self._fail(error)
            return
        if self._socket is None:
            return
        if client.want_write():
            if not self._is_writing:
                self._is_writing = True
                self._loop.add_writer(self._socket.fileno(), self._write_more)
        elif self._is_writing:
            self._stop_writing()
            self._handlers.on_writable()

    def _write_more(self) -> None:
        self.last_written_s = time.monotonic()
        self._write()

    def _stop_writing(self) -> None:
        if self._is_writing and self._socket is not None:
            self._loop.remove_writer(self._socket.fileno())
        self._is_writing = False

    def _tick(self) -> None:
        if self._client is None or self.closed.done():
            return
        self._tick_handle = self._loop.call_later(_TICK_S, self._tick)
        try:
            self._client.loop_misc()
        except Exception as error:
            self._fail(error)
            return
        if self._accepted.done() and not self.closed.done():
            self._handlers.on_tick()

    def _fail(self, error: BaseException) -> None:
        """End a connection of which the library could not make sense."""
        self.abandon(f"the connection to the broker broke: {error}")

    def _forget_socket(self) -> None:
        if self._tick_handle is not None:
            self._tick_handle.cancel()
            self._tick_handle = None
        if self._socket is not None and self._socket.fileno() >= 0:
            self._stop_writing()
            self._loop.remove_reader(self._socket.fileno())
        self._is_writing = False
        self._socket = None

    def _end(self, loss: Loss) -> None:
        if not self.closed.done():
            self.closed.set_result(loss)
        if not self._accepted.done():
            self._accepted.set_exception(self._early_end(loss))
            self._accepted.exception()  # perhaps nobody waits for it
        for reply in self._replies.values():
            if not reply.done():
                reply.set_exception(BrokerError(loss.text, reason="lost"))

    def _early_end(self, loss: Loss) -> BrokerError:
        error = self._errors.last
        if isinstance(error, ssl.SSLError) and not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return tls_error(error, f"{self._settings.host}:{self._settings.port}")
        return BrokerError(f"the broker did not accept the connection: {loss.text}", reason="lost")

    # What the library calls, inside of `loop_read`, `loop_write` and `loop_misc`.

    def _on_connect(self, _client: Client, _data: object, _flags: object, reason: Any, properties: Any) -> None:
        if self._accepted.done():
            return
        if reason.value == 0:
            self.max_in_flight = getattr(properties, "ReceiveMaximum", None)
            self.max_packet_bytes = getattr(properties, "MaximumPacketSize", None)
            self._accepted.set_result(None)
        else:
            self._accepted.set_exception(refusal(int(reason.value), str(reason), self._settings, self._client_id))
            self._accepted.exception()

    def _on_disconnect(self, _client: Client, _data: object, flags: Any, reason: Any, _properties: object) -> None:
        error, code = self._errors.last, int(reason.value)
        is_told = bool(flags.is_disconnect_packet_from_server)
        is_cut = isinstance(error, ConnectionError | ssl.SSLEOFError | ssl.SSLZeroReturnError)
        is_closed = code == _UNSPECIFIED and (error is None or is_cut)
        if is_told:
            text = f"the broker ended the connection: {reason}"
        elif code == _KEEPALIVE_TIMEOUT:
            text = "nothing came from the broker any more"
        elif code == _PROTOCOL_ERROR:
            text = "the broker sent what is not MQTT"
        elif error is not None:
            text = f"the connection to the broker was lost: {error}"
        else:
            text = "the broker closed the connection"
        self._end(Loss(text, is_by_broker=is_told or is_closed, is_taken_over=is_told and code == _TAKEN_OVER))

    def _on_publish(self, _client: Client, _data: object, number: int, reason: Any, _properties: object) -> None:
        self._handlers.on_confirmed(number, int(reason.value))

    def _on_message(self, _client: Client, _data: object, message: Any) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return  # no filter of ours is meant for it
        properties = message.properties
        inbound = Inbound(
            topic,
            bytes(message.payload),
            time.monotonic(),
            bool(message.retain),
            getattr(properties, "ResponseTopic", None),
            getattr(properties, "CorrelationData", None),
            message.qos,
        )
        self._handlers.on_message(inbound)

    def _on_reply(self, _client: Client, _data: object, number: int, reasons: Any, _properties: object) -> None:
        reply = self._replies.get(number)
        if reply is not None and not reply.done():
            reply.set_result([int(reason.value) for reason in reasons])

    def _on_socket_close(self, _client: Client, _data: object, _socket: object) -> None:
        self._forget_socket()

    def _on_want_write(self, _client: Client, _data: object, _socket: object) -> None:
        """Write soon, together with whatever else is handed over until then; not in the dialer's thread."""
        if self._socket is not None and not self._is_write_due:
            self._is_write_due = True
            self._loop.call_soon(self._write)

    def _on_all_written(self, _client: Client, _data: object, _socket: object) -> None:
        """Nothing: `_write` sees for itself."""
