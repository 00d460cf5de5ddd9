"""What llama.cpp writes to its log: nothing goes to the terminal, and errors while something loads are kept.

llama-cpp-python installs a Python function as the log's callback. Every line from a native thread would then wait for
the interpreter. So the callback is a native function without effect, and only while files load, when errors tell what
is wrong with them, a Python function listens.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["NativeLog"]

_ERROR, _CONTINUED = 4, 5  # ggml_log_level


class NativeLog:
    """The log of one copy of the library. Safe to use from any thread."""

    def __init__(self, llama: Any, mtmd: Any) -> None:
        """Silence the log.

        Args:
            llama: the module `llama_cpp.llama_cpp`.
            mtmd: the module `llama_cpp.mtmd_cpp`.
        """
        self._llama = llama
        self._mtmd = mtmd
        # Takes no arguments and changes nothing; what the caller leaves in registers does not matter to it.
        self._ignore = ctypes.cast(llama.llama_supports_mmap, llama.llama_log_callback)
        self._listen = llama.llama_log_callback(self._receive)
        self._lock = threading.Lock()
        self._listeners: dict[int, list[str]] = {}
        self._continues_error = threading.local()
        self._set(self._ignore)

    @contextmanager
    def collect(self) -> Iterator[list[str]]:
        """Keep the errors that this thread's calls write, in order.

        Yields:
            A list that fills while the block runs.
        """
        lines: list[str] = []
        thread = threading.get_ident()
        with self._lock:
            outer = self._listeners.get(thread)
            if not self._listeners:
                self._set(self._listen)
            self._listeners[thread] = lines
        try:
            yield lines
        finally:
            with self._lock:
                if outer is None:
                    del self._listeners[thread]
                else:
                    self._listeners[thread] = outer
                if not self._listeners:
                    self._set(self._ignore)

    def _set(self, callback: Any) -> None:
        for install in (self._llama.llama_log_set, self._mtmd.mtmd_log_set, self._mtmd.mtmd_helper_log_set):
            install(callback, None)

    def _receive(self, level: int, text: bytes | None, _: object) -> None:
        """Take one line; called by the library."""
        lines = self._listeners.get(threading.get_ident())
        if lines is None or not text:
            return
        piece = text.decode("utf-8", "replace")
        if level == _ERROR:
            lines.append(piece)
        elif level == _CONTINUED and lines and getattr(self._continues_error, "value", False):
            lines[-1] += piece
        self._continues_error.value = level == _ERROR or (
            level == _CONTINUED and getattr(self._continues_error, "value", False)
        )
