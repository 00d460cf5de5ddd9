from __future__ import annotations

import socket
from pathlib import Path

import pytest

from edge_vl.environment import service_manager
from edge_vl.gateway.sd_notify import ServiceManager


def test_it_says_what_systemd_waits_for(tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(2)
        manager = ServiceManager(str(path), 4_000_000)
        manager.ready("connected")
        manager.alive()
        manager.stopping()
        said = [listener.recv(1024) for _ in range(3)]
    assert said == [b"READY=1\nSTATUS=connected", b"WATCHDOG=1", b"STOPPING=1"]
    assert manager.alive_every_s == 2.0


@pytest.mark.parametrize("address", [None, "/nowhere/notify", "@nobody-listens-there"])
def test_where_nobody_listens_nothing_happens(address: str | None) -> None:
    manager = ServiceManager(address)
    manager.ready()
    manager.alive()
    assert manager.alive_every_s is None


def test_the_environment_says_where_and_how_often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    assert service_manager() == (None, None)
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    assert service_manager() == ("/run/notify", 30_000_000)
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert service_manager() == ("/run/notify", None)
