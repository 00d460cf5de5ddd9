"""Makes connections: in the version of MQTT that the broker speaks, each one anew."""

from __future__ import annotations

import asyncio
import secrets
import socket

from edge_vl.errors import BrokerError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.dialer import Dialer
from edge_vl.mqtt.packet import Outbound
from edge_vl.mqtt.transport import Connection, Handlers, Loss, Version

__all__ = ["Opener", "first_of", "new_client_id"]

_LISTEN_FIRST_S = 0.5
"""How long to wait for the words of a broker that has closed an encrypted connection without any."""

_LEAST_ANSWER_S = 2.0
"""How long a broker may say nothing to the first attempt in MQTT 5: some older ones wait for more than there is."""

_GOODBYE_S = 0.5


async def first_of(
    stopping: asyncio.Event, *futures: asyncio.Future[None] | asyncio.Future[Loss], limit_s: float | None = None
) -> None:
    """Wait until one of several things is done, or nobody wants any of them, or time is up.

    Cancelled, it cancels those futures too.
    """
    stop = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait([*futures, stop], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        for future in futures:
            future.cancel()
        raise
    finally:
        stop.cancel()


def new_client_id(stem: str) -> str:
    """Return an id that nobody else has; brokers of 3.1.1 must take 23 letters and need not take more."""
    host = "".join(letter for letter in socket.gethostname() if letter.isascii() and letter.isalnum())
    return f"{stem[:7]}-{host[:6]}-{secrets.token_hex(4)}"


class Opener:
    """Makes connections to one broker, one at a time.

    Attributes:
        client_id: what this client calls itself on all of them.
        version: the version of MQTT that is spoken, or tried next.
    """

    def __init__(self, settings: BrokerSettings, *, client_id: str, will: Outbound | None, handlers: Handlers) -> None:
        """Prepare; nothing is connected yet.

        Args:
            settings: how the broker is reached.
            client_id: what this client calls itself.
            will: what the broker sends if a connection ends without a goodbye.
            handlers: whom the connections tell.
        """
        self.client_id = client_id
        self.version: Version = "3.1.1" if settings.protocol == "3.1.1" else "5"
        self._settings = settings
        self._will = will
        self._handlers = handlers
        self._dialer = Dialer()
        self._is_version_known = False
        self._is_certificate_missing = False

    async def open(self, stopping: asyncio.Event) -> Connection | None:
        """Connect; return None if `stopping` was set meanwhile.

        A broker that refuses MQTT 5 is spoken to in 3.1.1 from then on. One older than MQTT 5 may close the connection
        or say nothing instead of naming the reason: it is asked in 3.1.1, too, as long as it has never answered.

        Raises:
            BrokerError: there is no connection; its reason says whether it is of use to try again.
        """
        try:
            connection = await self._open_in_its_version(stopping)
        except BrokerError as error:
            # It may be the lack of a certificate, which whoever talks on does not hear; next time listen first.
            is_cut = error.reason == "lost" and self._settings.is_tls
            self._is_certificate_missing = is_cut and self._settings.cert is None
            raise
        if connection is not None:
            self._is_version_known = True
        return connection

    async def lives_in_silence(self, client_id: str, limit_s: float, stopping: asyncio.Event) -> bool:
        """Whether a connection that says nothing, under some id, lives for so long."""
        silent = Handlers(_nothing, _nothing, _nothing, _nothing)
        try:
            connection = await self._open_as(self.version, stopping, client_id, None, silent)
        except BrokerError:
            return False
        if connection is None:
            return False
        try:
            await first_of(stopping, connection.closed, limit_s=limit_s)
            return not connection.closed.done() and not stopping.is_set()
        finally:
            await connection.close(_GOODBYE_S)

    async def _open_in_its_version(self, stopping: asyncio.Event) -> Connection | None:
        try:
            return await self._open_as(self.version, stopping, self.client_id, self._will, self._handlers)
        except BrokerError as error:
            may_be_old = error.reason == "unsupported" or (error.reason == "lost" and not self._is_version_known)
            if self._settings.protocol != "auto" or self.version != "5" or not may_be_old:
                raise
        connection = await self._open_as("3.1.1", stopping, self.client_id, self._will, self._handlers)
        if connection is not None:
            self.version = "3.1.1"
        return connection

    async def _open_as(
        self, version: Version, stopping: asyncio.Event, client_id: str, will: Outbound | None, handlers: Handlers
    ) -> Connection | None:
        may_be_old = self._settings.protocol == "auto" and version == "5" and not self._is_version_known
        connection = Connection(
            self._settings,
            version=version,
            client_id=client_id,
            will=will,
            handlers=handlers,
            dialer=self._dialer,
            is_version_known=self._is_version_known,
            listen_first_s=_LISTEN_FIRST_S if self._is_certificate_missing else 0.0,
            least_answer_s=_LEAST_ANSWER_S if may_be_old else None,
        )
        opening = asyncio.ensure_future(connection.open())
        await first_of(stopping, opening)
        if opening.done():
            opening.result()
            return connection
        opening.cancel()
        await asyncio.wait([opening])
        connection.abandon()
        return None


def _nothing(*_: object) -> None:
    """Take no notice."""
