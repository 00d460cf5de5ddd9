"""A broker for trying things out, inside the process, reachable from this machine alone."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from types import TracebackType
from typing import Any, Self

from edge_vl.errors import BrokerError

__all__ = ["DemoBroker"]

DEFAULT_PORT = 1883

_HOST = "127.0.0.1"
_START_TIMEOUT_S = 15.0
_STOP_TIMEOUT_S = 3.0
_NOISY_LOGGERS = ("amqtt", "transitions")


class DemoBroker:
    """Runs amqtt in a thread of its own. Use it in `with`.

    It is for trying only: it speaks MQTT 3.1.1, forgets everything when it ends, and has faults that other brokers
    have not, so that groups of gateways do not work with it.

    Attributes:
        port: where it listens, once it runs.
        is_other_port: whether that is another one than usual, because the usual one is taken.
    """

    def __init__(self, port: int | None = None) -> None:
        """Keep the port.

        Args:
            port: None: 1883, or any free one where that is taken.
        """
        self.is_other_port = port is None and not _is_free(DEFAULT_PORT)
        self.port = _free_port() if self.is_other_port else DEFAULT_PORT if port is None else port
        self._loop: asyncio.AbstractEventLoop | None = None
        self._broker: Any = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"mqtt://{_HOST}:{self.port}"

    def __enter__(self) -> Self:
        """Start it and wait until it listens.

        Raises:
            BrokerError: amqtt is not installed, or the port cannot be had.
        """
        try:
            from amqtt.broker import Broker
        except ModuleNotFoundError as error:
            raise BrokerError(
                f"the demo needs a broker of its own: {error}; install it with: pip install 'edge-vl[onnx,demo]'",
                reason="unsupported",
            ) from error
        if not _is_free(self.port):
            raise BrokerError(f"port {self.port} of this machine is taken; choose another one", reason="unreachable")
        for name in _NOISY_LOGGERS:  # a traceback for each client that goes without a word
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        # Its own default listens to the whole network and lets everybody in.
        config = {
            "listeners": {"default": {"type": "tcp", "bind": f"{_HOST}:{self.port}"}},
            "plugins": {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}},
        }
        self._loop = loop = asyncio.new_event_loop()
        loop.set_exception_handler(lambda _loop, _context: None)  # its tasks end with errors that nobody collects
        self._thread = threading.Thread(target=self._run, args=(loop,), name="edge_vl-demo-broker", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._start(Broker, config), loop).result(_START_TIMEOUT_S)
        except Exception as error:  # amqtt raises errors of its own, asyncio's and the system's
            self._end_thread()
            raise BrokerError(f"the demo's broker did not start: {error}", reason="unreachable") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop it."""
        loop = self._loop
        if loop is None or self._thread is None:
            return
        stopping = asyncio.run_coroutine_threadsafe(self._stop(), loop)
        try:
            stopping.result(_STOP_TIMEOUT_S)
        except Exception:  # it is going away in any case
            stopping.cancel()
        self._end_thread()

    async def _start(self, broker: Any, config: dict[str, Any]) -> None:
        self._broker = broker(config)
        await self._broker.start()

    async def _stop(self) -> None:
        await self._broker.shutdown()

    @staticmethod
    def _run(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        loop.run_forever()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()

    def _end_thread(self) -> None:
        assert self._loop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_TIMEOUT_S)
        self._thread = self._loop = None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port))
        except OSError:
            return False
    return True


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])
