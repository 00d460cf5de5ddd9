"""A session that runs beside what uses it, from being connected to being closed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping

from edge_vl.errors import BrokerError, EdgeVLError
from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.mqtt.packet import Inbound, QoS
from edge_vl.mqtt.session import Session

__all__ = ["RunningSession"]

_log = logging.getLogger(__name__)


class RunningSession:
    """Runs a session in a task of its own. The first connection is tried once; later ones for ever.

    Attributes:
        session: what runs.
        hopeless: why it will not be connected any more; None: it is, or tries.
    """

    def __init__(
        self,
        settings: BrokerSettings,
        *,
        filters: Mapping[str, QoS],
        on_message: Callable[[Inbound], None],
        on_end: Callable[[BrokerError], None],
        outbox_bytes: int,
        client_id_stem: str,
    ) -> None:
        """Prepare the session.

        Args:
            settings: how the broker is reached.
            filters: what is listened to.
            on_message: takes what comes in.
            on_end: called once, when it will not be connected any more.
            outbox_bytes: bound of what waits to be sent.
            client_id_stem: what the client id begins with.
        """
        self.session = Session(
            settings,
            filters=filters,
            on_message=on_message,
            on_state=self._note,
            outbox_bytes=outbox_bytes,
            client_id_stem=client_id_stem,
        )
        self.hopeless: BrokerError | None = None
        self._on_end = on_end
        self._timeout_s = settings.connect_timeout_s + 1.0
        self._trouble = asyncio.Event()
        self._words = ""
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Start, and wait until it is connected.

        Raises:
            BrokerError: it cannot be, or the broker refuses.
        """
        self._task = asyncio.create_task(self._run())
        connected = asyncio.create_task(self.session.wait_connected(self._timeout_s))
        trouble = asyncio.create_task(self._trouble.wait())
        try:
            await asyncio.wait({connected, trouble, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if self.hopeless is not None:
                raise self.hopeless.again()
            if not connected.done():
                raise BrokerError(self._words, reason="unreachable")
            await connected
        except BaseException:
            connected.cancel()
            with contextlib.suppress(asyncio.CancelledError, EdgeVLError):
                await connected
            await self.close()
            raise
        finally:
            trouble.cancel()

    async def close(self) -> None:
        """Send what waits, disconnect, and wait for the end."""
        task, self._task = self._task, None
        if task is None:
            return
        if self.hopeless is None:
            with contextlib.suppress(EdgeVLError):
                await self.session.stop()
        if not task.done():
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def _note(self, state: str, words: str) -> None:
        if state in ("unreachable", "lost"):
            self._words = words
            self._trouble.set()

    async def _run(self) -> None:
        try:
            await self.session.run()
            self.hopeless = BrokerError("the connection to the broker was closed", reason="lost")
        except BrokerError as error:
            self.hopeless = error
        except EdgeVLError as error:
            self.hopeless = BrokerError(str(error), reason="lost")
        except Exception as error:  # a defect: who waits for an answer must hear of it all the same
            _log.exception("the connection to the broker ended with a defect")
            words = f"the connection to the broker ended with {type(error).__name__}: {error}"
            self.hopeless = BrokerError(words, reason="lost")
        self._on_end(self.hopeless)
