"""Fixtures of the tests of sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rtsp_server import RtspServer, running_rtsp_server, why_no_rtsp_server


@pytest.fixture
def rtsp_server(tmp_path: Path) -> Iterator[RtspServer]:
    """Run an RTSP server of the test's own; skips where GStreamer's is not installed."""
    if why_no_rtsp_server():
        pytest.skip(why_no_rtsp_server())
    with running_rtsp_server(tmp_path) as server:
        yield server


@pytest.fixture
def guarded_rtsp_server(tmp_path: Path) -> Iterator[RtspServer]:
    """Run one that wants user `watcher` and password `s3cret/word`; skips where GStreamer's is not installed."""
    if why_no_rtsp_server():
        pytest.skip(why_no_rtsp_server())
    with running_rtsp_server(tmp_path, user="watcher", password="s3cret/word") as server:
        yield server
