"""The log while `edge-vl watch` has a status line on a terminal."""

from __future__ import annotations

import logging
import os
import pty
import re
import subprocess
import sys

from edge_vl.cli.watch_view import WatchView

_WATCH = """
import logging, time
from edge_vl.cli.watch_view import WatchView

view = WatchView(as_json=False, shows_text=True, status=lambda: "STATUS")
view.start()
time.sleep(0.3)
logging.getLogger("edge_vl.sources").warning("careful %d\\x1b[2J", 1)
time.sleep(0.3)
view.stop()
logging.getLogger("edge_vl.sources").warning("alone")
"""


def test_a_warning_stands_on_a_line_of_its_own_above_the_status_line() -> None:
    leader, follower = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", _WATCH], stdout=follower, stderr=follower) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                read = os.read(leader, 65536)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            shown += read
        assert process.wait(20) == 0
    os.close(leader)
    assert b"\x1b[2J" not in shown
    plain = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", shown).decode()
    assert re.search(r"STATUS[\s\S]*[\r\n]edge-vl: careful 1\N{REPLACEMENT CHARACTER}\[2J\r?\n[\s\S]*STATUS", plain)
    assert plain.count("careful") == 1
    assert plain.rstrip().endswith("alone")


def test_without_a_terminal_the_log_is_left_alone() -> None:
    before = list(logging.getLogger().handlers)
    view = WatchView(as_json=False, shows_text=True, status=lambda: "STATUS")
    view.start()
    assert logging.getLogger().handlers == before
    view.stop()
