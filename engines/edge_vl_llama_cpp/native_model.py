"""Text models in memory, shared by both lanes.

The language lane needs the weights. The vision lane needs the vocabulary and the dimensions only: it takes the language
lane's copy where there is one, and otherwise loads the file without its weights.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edge_vl.errors import EngineFault, ModelError
from edge_vl_llama_cpp.library import ENGINE, Device, Library, explain

__all__ = ["ModelPool", "NativeModel"]

_Key = tuple[str, int, int, str, bool]


class _Entry:
    """One model in memory and how many use it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.num_users = 0
        self.pointer: Any = None


class NativeModel:
    """One user's share of a text model. Safe to use from any thread; closed, it refuses."""

    def __init__(self, library: Library, path: Path, pointer: Any, give_back: Any) -> None:
        """Take a loaded model.

        Args:
            library: that loaded it.
            path: file that it came from.
            pointer: the `llama_model`.
            give_back: called once, when this share is closed.
        """
        self.library = library
        self.path = path
        self._pointer = pointer
        self._give_back = give_back
        self._lock = threading.Lock()
        self.vocabulary: Any = library.llama.llama_model_get_vocab(pointer)
        self.vocab_size = int(library.llama.llama_vocab_n_tokens(self.vocabulary))
        self.input_width = int(library.llama.llama_model_n_embd_inp(pointer))
        rope = int(library.llama.llama_model_rope_type(pointer))
        self.num_position_sections = 4 if rope in _SECTIONED_ROPES else 1
        self.is_recurrent = bool(
            library.llama.llama_model_is_recurrent(pointer) or library.llama.llama_model_is_hybrid(pointer)
        )

    @property
    def pointer(self) -> Any:
        """The `llama_model`, for calls on the thread that closes this share."""
        if self._pointer is None:
            raise EngineFault(ENGINE, "load", "the model is closed")
        return self._pointer

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the model from being freed while the block runs.

        Raises:
            EngineFault: it is closed.
        """
        with self._lock:
            if self._pointer is None:
                raise EngineFault(ENGINE, "load", "the model is closed")
            yield

    def close(self) -> None:
        """Give this share back; the last one frees the memory. May be called twice."""
        with self._lock:
            if self._pointer is None:
                return
            self._pointer = None
            self._give_back()


_SECTIONED_ROPES = {8, 40}  # LLAMA_ROPE_TYPE_MROPE and _IMROPE: positions of a time, a row and a column


class ModelPool:
    """The text models in memory. Safe to use from any thread."""

    def __init__(self) -> None:
        """Begin empty."""
        self._lock = threading.Lock()
        self._entries: dict[_Key, _Entry] = {}

    def open(self, library: Library, path: Path, device: Device, *, with_weights: bool) -> NativeModel:
        """Return a share of a model, loaded now or by somebody else before.

        Args:
            library: loads it.
            path: its file, which has been checked.
            device: where its layers go.
            with_weights: False where the vocabulary and the dimensions are enough.

        Raises:
            ModelError: llama.cpp cannot load it.
        """
        state = path.stat()
        base = (str(path.resolve()), state.st_mtime_ns, state.st_size)
        whole: _Key = (*base, device.name, True)
        key: _Key = whole if with_weights else (*base, "cpu", False)
        with self._lock:
            if not with_weights and whole in self._entries:
                key = whole
            entry = self._entries.setdefault(key, _Entry())
            entry.num_users += 1
        try:
            with entry.lock:
                if entry.pointer is None:
                    entry.pointer = _load(library, path, device, with_weights=key[-1])
            return NativeModel(library, path, entry.pointer, lambda: self._give_back(library, key, entry))
        except BaseException:
            self._give_back(library, key, entry)
            raise

    def _give_back(self, library: Library, key: _Key, entry: _Entry) -> None:
        with self._lock:
            entry.num_users -= 1
            if entry.num_users:
                return
            if self._entries.get(key) is entry:
                del self._entries[key]
            pointer, entry.pointer = entry.pointer, None
        if pointer is not None:
            library.llama.llama_model_free(pointer)


def _load(library: Library, path: Path, device: Device, *, with_weights: bool) -> Any:
    llama = library.llama
    settings = llama.llama_model_default_params()
    chosen = (ctypes.c_void_p * 2)(*([device.pointer] if not device.is_cpu else []))
    settings.devices = ctypes.cast(chosen, ctypes.c_void_p)
    settings.n_gpu_layers = 0 if device.is_cpu else -1
    if not with_weights:
        settings.no_alloc, settings.load_mode = True, llama.LLAMA_LOAD_MODE_NONE  # not mapped: it asserts that
    with library.log.collect() as errors:
        pointer = llama.llama_model_load_from_file(os.fsencode(path), settings)
    if not pointer:
        raise ModelError(f"llama.cpp cannot load {path}: {explain(errors)}", file=str(path))
    return pointer
