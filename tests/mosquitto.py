"""A mosquitto of a test's own, on the loopback interface: started, stopped, killed, started again on the same port."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["Mosquitto", "free_port", "has_mosquitto", "running_mosquitto"]


def has_mosquitto() -> bool:
    """Whether it is installed."""
    return _program() is not None


def _program() -> str | None:
    return shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Mosquitto:
    """One broker.

    Attributes:
        port: where it listens.
        log: file of what it says.
    """

    def __init__(self, folder: Path, *, port: int | None = None, options: Sequence[str] = ()) -> None:
        """Write its configuration.

        Args:
            folder: for its files.
            port: None: any free one.
            options: further lines; without any that says `listener` or `allow_anonymous`, everybody may connect.
        """
        self.port = free_port() if port is None else port
        self.log = folder / "mosquitto.log"
        self._config = folder / "mosquitto.conf"
        lines = list(options)
        if not any(line.startswith("listener") for line in lines):
            lines.insert(0, f"listener {self.port} 127.0.0.1")
        if not any(line.startswith("allow_anonymous") for line in lines):
            lines.append("allow_anonymous true")
        self._config.write_text("\n".join([*lines, "persistence false", "user root", ""]))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        program = _program()
        assert program is not None, "mosquitto is not installed"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([program, "-v", "-c", str(self._config)], stdout=log, stderr=log)
        until_s = time.monotonic() + 10
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 0.2):
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError(f"mosquitto did not start:\n{self.log.read_text(errors='replace')}")

    def stop(self, *, is_kill: bool = False) -> None:
        """End it: politely, or at once."""
        if self._process is None:
            return
        if is_kill:
            self._process.kill()
        else:
            self._process.terminate()
        self._process.wait(10)
        self._process = None

    def restart(self, *, is_kill: bool = False, pause_s: float = 0.0) -> None:
        """End it and start it again on the same port; retained messages are gone."""
        self.stop(is_kill=is_kill)
        time.sleep(pause_s)
        self.start()


@contextlib.contextmanager
def running_mosquitto(folder: Path, *, options: Sequence[str] = ()) -> Iterator[Mosquitto]:
    """Run one for the body."""
    broker = Mosquitto(folder, options=options)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
