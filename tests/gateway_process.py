"""A gateway as its users have it: the command line, in a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.mqtt_observer import Observer
from tests.paced_engine import PacedEngine, offer

__all__ = ["GatewayProcess"]

_ROOT = Path(__file__).resolve().parent.parent
_START_S = 60.0


class GatewayProcess:
    """One gateway.

    Attributes:
        node: its name.
        base: what its topics begin with.
        log: file of what it says.
        port: of its broker.
    """

    def __init__(
        self,
        folder: Path,
        port: int,
        *,
        node: str = "gw",
        broker_port: int | None = None,
        broker: Mapping[str, str | int | float] | None = None,
        top: str = "",
        tables: str = "",
        keep_mib: int = 16,
        context_length: int = 2048,
        engine: PacedEngine | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Write its file.

        Args:
            folder: for its files; made if need be.
            port: of the broker.
            node: its name.
            broker_port: where it reaches the broker, if there is something in between.
            broker: further keys of `[broker]`.
            top: further lines of `[node]`.
            tables: further tables.
            keep_mib: memory for what may be needed again; little, so that it has its size soon.
            context_length: most tokens of a prompt and its answer.
            engine: what speaks; None: ONNX Runtime, as it is.
            environment: further variables.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.node = node
        self.base = f"edge_vl/{node}"
        self.port = port
        self.log = folder / "gateway.log"
        self.config = folder / "gateway.toml"
        more = "".join(
            f"{name} = {value if not isinstance(value, str) else repr(value)}\n"
            for name, value in (broker or {}).items()
        )
        language = "onnxruntime" if engine is None else engine.name
        self.config.write_text(
            f'[broker]\nurl = "mqtt://127.0.0.1:{broker_port or port}"\n{more}\n'
            f'[node]\nname = "{node}"\n{top}\n\n'
            f'[model]\nname = "bundled"\nvision_engine = "onnxruntime"\nlanguage_engine = "{language}"\nthreads = 1\n'
            f"keep_mib = {keep_mib}\ncontext_length = {context_length}\n\n"
            f"{tables}\n"
        )
        self._environment = {
            **os.environ,
            "EDGE_VL_CACHE_DIR": str(folder / "cache"),
            "PYTHONPATH": str(_ROOT) if engine is None else offer(folder / "engine", engine),
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The process that runs, or ran last."""
        assert self._process is not None, "the gateway was not started"
        return self._process

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, is_online: bool = True) -> None:
        """Start it and, unless told otherwise, wait until it says that it is online."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "edge_vl", "gateway", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self.config.parent,
            )
        if is_online:
            with Observer(self.port, [f"{self.base}/status"]) as observer:
                self.wait_online(observer)

    def wait_online(self, observer: Observer, timeout_s: float = _START_S) -> None:
        """Wait until an observer of its status hears that it is online."""
        until_s = time.monotonic() + timeout_s
        while not any(heard.payload == b"online" for heard in observer.heard(f"{self.base}/status")[-1:]):
            assert self.is_running, f"the gateway has ended:\n{self.said()}"
            assert time.monotonic() < until_s, f"the gateway is not online after {timeout_s:g} s:\n{self.said()}"
            time.sleep(0.02)

    def stop(self, timeout_s: float = 10.0) -> int:
        """Ask it to end; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        """End it as a failure of power does."""
        self.process.kill()
        self.process.wait(10)

    def said(self) -> str:
        """Return the end of its log."""
        return self.log.read_text(errors="replace")[-4000:]

    def __enter__(self) -> Self:
        """Start it."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Make sure that it has ended."""
        if self.is_running:
            self.process.terminate()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.kill()
