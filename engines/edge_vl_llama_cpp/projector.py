"""A vision encoder with its projector in llama.cpp's multimodal library (mtmd), and the chunks that it makes."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import EngineFault, ModelError
from edge_vl_llama_cpp.files import GGUFFile
from edge_vl_llama_cpp.library import ENGINE, Device, explain
from edge_vl_llama_cpp.native_model import NativeModel

__all__ = ["NativeChunk", "Projector", "ProjectorSettings"]


@dataclass(frozen=True, slots=True)
class ProjectorSettings:
    """How an encoder is loaded.

    Attributes:
        threads: of the lane.
        image_tokens: force pictures to be resized to this many image tokens; 0: as the file says.
    """

    threads: int
    image_tokens: int = 0


class NativeChunk:
    """An image chunk of our own: pixels as the encoder takes them. Freed with this object, on any thread."""

    def __init__(self, mtmd: Any, pointer: Any) -> None:
        """Take a chunk.

        Args:
            mtmd: the module `llama_cpp.mtmd_cpp`.
            pointer: an `mtmd_input_chunk` of our own, which holds an image.
        """
        self.pointer = pointer
        self.num_tokens = int(mtmd.mtmd_input_chunk_get_n_tokens(pointer))
        self.num_positions = int(mtmd.mtmd_input_chunk_get_n_pos(pointer))
        weakref.finalize(self, mtmd.mtmd_input_chunk_free, pointer).atexit = False


class Projector:
    """A loaded encoder. `chunks` may be called from any thread, the rest from the lane's."""

    def __init__(self, model: NativeModel, file: GGUFFile, device: Device, settings: ProjectorSettings) -> None:
        """Load it.

        Args:
            model: share of the text model, for its vocabulary and dimensions; once loaded, it is closed with this.
            file: the encoder's file.
            device: where it runs.
            settings: how.

        Raises:
            ModelError: llama.cpp cannot load it, or it does not fit the text model.
        """
        library = model.library
        mtmd = library.mtmd
        options = mtmd.mtmd_context_params_default()
        options.use_gpu = not device.is_cpu
        options.device = device.pointer or None
        options.print_timings = False
        options.n_threads = settings.threads
        options.warmup = False  # the first picture makes the buffers, in the size that is needed
        if settings.image_tokens:
            options.image_min_tokens = options.image_max_tokens = settings.image_tokens
        with library.log.collect() as errors:
            pointer = mtmd.mtmd_init_from_file(os.fsencode(file.path), model.pointer, options)
        if not pointer:
            raise ModelError(f"llama.cpp cannot load {file.path}: {explain(errors)}", file=str(file.path))
        self._library = library
        self._mtmd = mtmd
        self._model = model
        self._pointer: Any = pointer
        self._marker = bytes(mtmd.mtmd_get_marker(pointer))
        self._changed = threading.Condition()
        self._num_users = 0
        self.width = model.input_width
        self.sees = bool(mtmd.mtmd_support_vision(pointer))
        self.is_causal = not mtmd.mtmd_decode_use_non_causal(pointer, None)
        self.has_row_positions = bool(mtmd.mtmd_decode_use_mrope(pointer))

    def chunks(self, pixels: NDArray[np.uint8]) -> list[tuple[int, ...] | NativeChunk]:
        """Resize and cut a picture as the model wants it.

        Args:
            pixels: uint8 (height, width, 3), RGB.

        Returns:
            Token ids and image chunks, in sequence order.

        Raises:
            ValueError: llama.cpp cannot use the picture; the message is its reason.
            EngineFault: the encoder is closed.
        """
        with self._use("encode") as pointer:
            found = self._tokenize(pointer, pixels)
            if isinstance(found, int):  # once more, listening
                with self._library.log.collect() as errors:
                    found = self._tokenize(pointer, pixels)
                if isinstance(found, int):
                    raise ValueError(explain(errors))
            return found

    def encode(self, chunk: NativeChunk) -> NDArray[np.float32]:
        """Encode a chunk.

        Returns:
            float32 (num_image_tokens, width), owned by the caller.

        Raises:
            EngineFault: llama.cpp failed, or the encoder is closed.
        """
        with self._use("encode") as pointer:
            code = self._mtmd.mtmd_encode_chunk(pointer, chunk.pointer)
            if code:
                raise EngineFault(ENGINE, "encode", f"mtmd_encode_chunk returned {code}")
            values = np.empty((chunk.num_tokens, self.width), np.float32)
            ctypes.memmove(values.ctypes.data, self._mtmd.mtmd_get_output_embd(pointer), values.nbytes)
            return values

    def positions(self, chunk: NativeChunk) -> NDArray[np.int32]:
        """Return int32 (num_image_tokens, 3): time, row and column of each token, from the chunk's first position."""
        positions = (self._mtmd.mtmd_decoder_pos * chunk.num_tokens)()
        image = self._mtmd.mtmd_input_chunk_get_tokens_image(chunk.pointer)
        self._mtmd.mtmd_helper_image_get_decoder_pos(image, 0, positions)
        table = np.frombuffer(positions, np.uint32).reshape(chunk.num_tokens, -1)  # time, column, row, unused
        return np.ascontiguousarray(table[:, [0, 2, 1]].astype(np.int32))

    def close(self) -> None:
        """Give the memory back once nobody cuts a picture any more. May be called twice."""
        with self._changed:
            pointer, self._pointer = self._pointer, None
            self._changed.wait_for(lambda: not self._num_users)
        if pointer is not None:
            self._mtmd.mtmd_free(pointer)
            self._model.close()

    @contextmanager
    def _use(self, stage: str) -> Iterator[Any]:
        """Keep the encoder from being freed while the block runs."""
        with self._changed:
            if self._pointer is None:
                raise EngineFault(ENGINE, stage, "the vision encoder is closed")
            pointer = self._pointer
            self._num_users += 1
        try:
            yield pointer
        finally:
            with self._changed:
                self._num_users -= 1
                self._changed.notify_all()

    def _tokenize(self, pointer: Any, pixels: NDArray[np.uint8]) -> list[tuple[int, ...] | NativeChunk] | int:
        """Return the chunks of a picture, or llama.cpp's code for what went wrong."""
        mtmd = self._mtmd
        pixels = np.ascontiguousarray(pixels)
        height, width = pixels.shape[:2]
        bitmap = mtmd.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
        chunks = mtmd.mtmd_input_chunks_init()
        try:
            text = mtmd.mtmd_input_text(self._marker, len(self._marker), False, True)
            bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
            code = mtmd.mtmd_tokenize(pointer, chunks, ctypes.byref(text), bitmaps, 1)
            if code:
                return int(code)
            size = mtmd.mtmd_input_chunks_size(chunks)
            return [self._own(mtmd.mtmd_input_chunks_get(chunks, index)) for index in range(size)]
        finally:
            mtmd.mtmd_input_chunks_free(chunks)
            mtmd.mtmd_bitmap_free(bitmap)

    def _own(self, chunk: Any) -> tuple[int, ...] | NativeChunk:
        """Copy a chunk out of the list that will be freed."""
        mtmd = self._mtmd
        if mtmd.mtmd_input_chunk_get_type(chunk) == mtmd.MTMD_INPUT_CHUNK_TYPE_IMAGE:
            return NativeChunk(mtmd, mtmd.mtmd_input_chunk_copy(chunk))
        count = ctypes.c_size_t(0)
        tokens = mtmd.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(count))
        return tuple(int(tokens[index]) for index in range(count.value))
