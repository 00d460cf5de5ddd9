"""Stock llama.cpp through llama-cpp-python's plain bindings: the oracle of these tests."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import llama_cpp
import numpy as np
from llama_cpp import mtmd_cpp as mtmd
from numpy.typing import NDArray


class StockLlama:
    """A text model and, maybe, its vision encoder."""

    def __init__(self, text: Path, vision: Path | None = None, *, vocabulary_only: bool = False) -> None:
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.vocab_only = vocabulary_only
        self._model: Any = llama_cpp.llama_model_load_from_file(str(text).encode(), options)
        assert self._model, text
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._context: Any = None
        self._vision: Any = None
        if not vocabulary_only:
            settings = llama_cpp.llama_context_default_params()
            settings.n_ctx = settings.n_batch = settings.n_ubatch = 512
            settings.n_threads = settings.n_threads_batch = 1
            self._context = llama_cpp.llama_init_from_model(self._model, settings)
            assert self._context
        if vision is not None:
            choices = mtmd.mtmd_context_params_default()
            choices.n_threads, choices.use_gpu, choices.print_timings, choices.warmup = 1, False, False, False
            self._vision = mtmd.mtmd_init_from_file(str(vision).encode(), self._model, choices)
            assert self._vision, vision

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._vision:
            mtmd.mtmd_free(self._vision)
        if self._context:
            llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    @property
    def num_parameters(self) -> int:
        return int(llama_cpp.llama_model_n_params(self._model))

    def tokenize(self, text: str, *, special: bool) -> list[int]:
        data = text.encode()
        ids = (llama_cpp.llama_token * (len(data) + 8))()
        count = llama_cpp.llama_tokenize(self._vocabulary, data, len(data), ids, len(ids), False, special)
        assert count >= 0
        return list(ids[:count])

    def is_end(self, token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(self._vocabulary, token))

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Return the logits after the last of some tokens: (vocabulary,)."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        tokens = (llama_cpp.llama_token * len(ids))(*ids)  # the batch only points at it
        assert llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(tokens, len(ids))) == 0
        return self._last_logits()

    def _last_logits(self) -> NDArray[np.float32]:
        size = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, -1), (size,)).copy()

    def read(self, prompt: str, pixels: NDArray[np.uint8]) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
        """Read a prompt with one picture at `<image>`.

        Returns:
            The image embeds of each unit, and the logits after the prompt.
        """
        height, width = pixels.shape[:2]
        bitmap = mtmd.mtmd_bitmap_init(width, height, pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
        chunks = mtmd.mtmd_input_chunks_init()
        data = prompt.encode().replace(b"<image>", mtmd.mtmd_get_marker(self._vision))
        text = mtmd.mtmd_input_text()
        text.text, text.text_len, text.add_special, text.parse_special = data, len(data), False, True
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        assert mtmd.mtmd_tokenize(self._vision, chunks, ctypes.byref(text), bitmaps, 1) == 0
        embeds = [
            self._encode(mtmd.mtmd_input_chunks_get(chunks, number))
            for number in range(mtmd.mtmd_input_chunks_size(chunks))
            if mtmd.mtmd_input_chunk_get_type(mtmd.mtmd_input_chunks_get(chunks, number)) != 0
        ]
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        past = llama_cpp.llama_pos(0)
        assert (
            mtmd.mtmd_helper_eval_chunks(self._vision, self._context, chunks, 0, 0, 512, True, ctypes.byref(past)) == 0
        )
        mtmd.mtmd_bitmap_free(bitmap)
        mtmd.mtmd_input_chunks_free(chunks)
        return embeds, self._last_logits()

    def _encode(self, chunk: Any) -> NDArray[np.float32]:
        assert mtmd.mtmd_encode_chunk(self._vision, chunk) == 0
        size = (mtmd.mtmd_input_chunk_get_n_tokens(chunk), llama_cpp.llama_model_n_embd_inp(self._model))
        return np.ctypeslib.as_array(mtmd.mtmd_get_output_embd(self._vision), size).copy()
