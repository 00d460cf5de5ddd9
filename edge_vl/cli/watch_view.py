"""What `edge-vl watch` shows: answers on standard output, everything else on standard error."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge_vl.answer import Token
from edge_vl.cli.terminal_text import terminal_json, terminal_line, terminal_text
from edge_vl.frame import Frame
from edge_vl.sources.camera_state import CameraState
from edge_vl.sources.pictures_source import PICTURE_SUFFIXES
from edge_vl.watch_events import AnswerBegan, WatchEvent

if TYPE_CHECKING:
    from rich.live import Live

__all__ = ["WatchView", "status_text"]

_GIVEN_UP = {"newer": "given up for a newer frame", "late": "given up: too late", "ended": "ended"}


class WatchView:
    """Shows a watch. Cameras tell their state on threads of their own; everything else is for one thread.

    On a terminal, a status line stands below what has been answered, and the answer in the making in it. Elsewhere the
    tokens go to standard output as they come.

    Attributes:
        is_live: whether frames are shown by their time and age; else by the name of their picture.
    """

    def __init__(self, *, as_json: bool, shows_text: bool, status: Callable[[], str]) -> None:
        """Decide how things are shown.

        Args:
            as_json: one object per answer, and nothing else, on standard output.
            shows_text: print the answers; False: only what changes.
            status: returns the status line.
        """
        self._as_json = as_json
        self._shows_text = shows_text and not as_json
        self._status = status
        self.is_live = True
        self._lock = threading.RLock()
        self._line = ""
        self._is_open = False
        self._is_mixed = _is_same_file()
        self._camera_status = ""
        self._is_tty = sys.stderr is not None and sys.stderr.isatty()
        self._is_shared = self._is_tty and sys.stdout is not None and sys.stdout.isatty()
        self._live: Live | None = self._make_live() if self._is_tty else None
        self._log = _LogAbove(self.note)

    def start(self) -> None:
        """Begin to show the status line, where there is a terminal."""
        if self._live is not None:
            logging.getLogger().addHandler(self._log)
            self._live.start()

    def stop(self) -> None:
        """Take the status line away. May be called twice."""
        if self._live is not None:
            self._live.stop()
            logging.getLogger().removeHandler(self._log)

    def on_event(self, event: WatchEvent) -> None:
        """Show an answer while it is made."""
        if not self._shows_text:
            return
        if isinstance(event, AnswerBegan):
            self._stream(self._head(event.frame))
        elif isinstance(event, Token):
            if event.kind == "text":
                self._stream(event.text.replace("\n", " "))
        else:
            self._end_line(f" [{_GIVEN_UP[event.reason]}]")

    def answered(self, frame: Frame, record: Mapping[str, Any]) -> None:
        """Show that an answer is complete, and what has changed with it."""
        if self._as_json:
            self._print(terminal_json(json.dumps(record, ensure_ascii=False)))
            return
        if self._shows_text:
            age_s, dropped = record["frame"]["age_s"], record["dropped"]
            shows_age = self.is_live and age_s is not None
            self._end_line(f"  [{age_s:.2f} s old, {dropped} dropped]" if shows_age else "")
        for state in record["when"]:
            if state["changed"]:
                self._print(f"{self._head(frame)}{state['question']} {_yes_no(state['state'])}")

    def camera(self, state: CameraState) -> None:
        """Tell that a camera came or went. From any thread."""
        with self._lock:
            before, self._camera_status = self._camera_status, state.status
        if state.status in ("online", "offline") and state.status != before:
            self.note(f"the camera is {state.status}{f': {state.reason}' if state.reason else ''}")

    def note(self, text: str) -> None:
        """Print a line to standard error. From any thread."""
        text = terminal_text(text)
        with self._lock:
            if self._live is not None:
                self._live.console.print(f"edge-vl: {text}", markup=False, highlight=False, soft_wrap=True)
            elif sys.stderr is not None:
                if self._is_open and self._is_mixed:
                    print(flush=True)
                    self._is_open = False
                print(f"edge-vl: {text}", file=sys.stderr, flush=True)

    def _head(self, frame: Frame) -> str:
        """Return what stands before an answer: when its frame was taken, or which picture it is."""
        if self.is_live:
            return _clock(frame)
        name = terminal_line(Path(frame.source).name or frame.source)
        return f"{name}: " if Path(frame.source).suffix.lower() in PICTURE_SUFFIXES else f"{name} {frame.index}: "

    def _stream(self, text: str) -> None:
        text = terminal_text(text)
        with self._lock:
            self._line += text
            if not self._is_shared and text:
                print(text, end="", flush=True)
                self._is_open = True

    def _end_line(self, text: str) -> None:
        with self._lock:
            line, self._line = self._line, ""
            if self._is_shared:
                self._print(line + text)
            elif line:
                print(text, flush=True)
                self._is_open = False

    def _print(self, line: str) -> None:
        """Print a whole line to standard output, above the status line."""
        line = terminal_text(line)
        with self._lock:
            if self._live is None or not self._is_shared:
                print(line, flush=True)
                return
            self._live.stop()
            print(line, flush=True)
            self._live.start()

    def _make_live(self) -> Live:
        from rich.console import Console, Group
        from rich.live import Live
        from rich.text import Text

        def shown() -> Group:
            status = Text(self._status(), style="dim", no_wrap=True, overflow="ellipsis")
            return Group(Text(self._line), status) if self._line and self._is_shared else Group(status)

        return Live(
            console=Console(stderr=True),
            get_renderable=shown,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )


class _LogAbove(logging.Handler):
    """Prints warnings of the log above the status line, which they would break otherwise."""

    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        """Print a line. Never raises."""
        try:
            self._note(self.format(record))
        except Exception:  # as handlers of `logging` do
            self.handleError(record)


def status_text(
    *,
    camera: CameraState | None,
    age_s: float | None,
    first_token_s: float | None,
    answers: int,
    dropped: int,
    late: int,
    bad: int,
    quiet: int,
    frames: int,
    elapsed_s: float,
) -> str:
    """Return the status line: what the camera does, how old its frame is, how fast answers come, what was lost."""
    fps = frames / elapsed_s if camera is None and elapsed_s > 0 else (camera.fps if camera else 0.0)
    parts = [camera.status if camera is not None else "playing", f"{fps:.1f} fps"]
    if age_s is not None:
        parts.append(f"frame {age_s:.2f} s old")
    if first_token_s is not None:
        parts.append(f"TTFT {first_token_s * 1000:.0f} ms")
    parts += [f"{answers} answers", f"{dropped} dropped"]
    parts += [f"{count} {name}" for name, count in (("quiet", quiet), ("late", late), ("bad", bad)) if count]
    return " | ".join(parts)


def _clock(frame: Frame) -> str:
    """Return the time of day when a frame was taken, here, with what separates it from the answer."""
    return datetime.fromtimestamp(frame.captured_wall_s).strftime("%H:%M:%S ")


def _is_same_file() -> bool:
    """Whether both outputs are one, as behind `2>&1`, so that a line of the one breaks into a line of the other."""
    try:
        return os.path.sameopenfile(sys.stdout.fileno(), sys.stderr.fileno())
    except (AttributeError, OSError, ValueError):  # one of them is closed, or none of the system's
        return False


def _yes_no(state: bool | None) -> str:
    return {True: "yes", False: "no", None: "unknown"}[state]
