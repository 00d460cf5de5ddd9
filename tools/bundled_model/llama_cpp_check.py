"""Hold the bundled GGUF pair against the bundled ONNX files, with llama.cpp's own picture handling.

    pip install llama-cpp-python && python -m tools.bundled_model.llama_cpp_check [NUM_SCENES]

Both lanes differ (llama.cpp resizes pictures by itself and computes in f16), so what is compared is the share of true
answers, and how many answers are the same.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import llama_cpp
import llama_cpp.mtmd_cpp as mtmd
import numpy as np
from numpy.typing import NDArray

import edge_vl
from edge_vl_onnxruntime import engine
from tools.bundled_model.questions import KINDS, ask, facts
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene, random_size

GGUF = Path(edge_vl.__file__).parent / "bundled_model" / "gguf"
MAX_TOKENS = 128


class LlamaCpp:
    """The pair in llama.cpp, with its multimodal library."""

    def __init__(self) -> None:
        """Load both files."""
        llama_cpp.llama_backend_init()
        text = next(GGUF.glob("*text*.gguf"))
        self._model: Any = llama_cpp.llama_model_load_from_file(
            str(text).encode(), llama_cpp.llama_model_default_params()
        )
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_threads = 1024, 1024, 1
        self._context: Any = llama_cpp.llama_init_from_model(self._model, settings)
        options = mtmd.mtmd_context_params_default()
        options.n_threads, options.use_gpu, options.print_timings = 1, False, False
        projector = next(GGUF.glob("mmproj*.gguf"))
        self._vision: Any = mtmd.mtmd_init_from_file(str(projector).encode(), self._model, options)
        if not self._vision:
            raise SystemExit(f"llama.cpp refuses {projector}")
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)

    def answer(self, pixels: NDArray[np.uint8], question: str) -> str:
        """Ask one question, greedily."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)
        marker = mtmd.mtmd_get_marker(self._vision).decode()
        prompt = f"<|im_start|>User:{marker}{question}<end_of_utterance>\nAssistant:"
        data = np.ascontiguousarray(pixels)
        height, width = data.shape[:2]
        bitmap = mtmd.mtmd_bitmap_init(width, height, data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8)))
        chunks = mtmd.mtmd_input_chunks_init()
        text = mtmd.mtmd_input_text()
        text.text, text.text_len = prompt.encode(), len(prompt.encode())
        text.add_special, text.parse_special = False, True
        bitmaps = (mtmd.mtmd_bitmap_p_ctypes * 1)(bitmap)
        code = mtmd.mtmd_tokenize(self._vision, chunks, ctypes.byref(text), bitmaps, 1)
        past = llama_cpp.llama_pos(0)
        code = code or mtmd.mtmd_helper_eval_chunks(
            self._vision, self._context, chunks, 0, 0, 512, True, ctypes.byref(past)
        )
        mtmd.mtmd_bitmap_free(bitmap)
        mtmd.mtmd_input_chunks_free(chunks)
        if code:
            raise SystemExit(f"llama.cpp failed with {code}")
        return self._decode()

    def _decode(self) -> str:
        pieces = b""
        size = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        for _ in range(MAX_TOKENS):
            logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self._context, -1), (size,))
            token = int(logits.argmax())
            if llama_cpp.llama_vocab_is_eog(self._vocabulary, token):
                break
            buffer = ctypes.create_string_buffer(64)
            length = llama_cpp.llama_token_to_piece(self._vocabulary, token, buffer, 64, 0, False)
            pieces += buffer.raw[:length]
            tokens = (llama_cpp.llama_token * 1)(token)
            llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(tokens, 1))
        return pieces.decode().strip()


def main() -> None:
    """Ask both, print the counts and every answer that differs."""
    num_scenes = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    llama = LlamaCpp()
    asked = same = llama_right = onnx_right = 0
    with edge_vl.Runtime.open("bundled", vision_engine=engine, language_engine=engine) as runtime:
        for seed in range(num_scenes):
            scene = random_scene(seed, held_out=True)
            pixels = render(scene, *random_size(seed))
            for number, kind in enumerate(KINDS):
                question = ask(kind, facts(scene), np.random.default_rng((seed, 4, number)))
                if question is None:
                    continue
                one, other = llama.answer(pixels, question.text), runtime.ask(pixels, question.text).text
                asked += 1
                same += one == other
                llama_right += one == question.answer
                onnx_right += other == question.answer
                if one != other:
                    print(f"{question.text} | true: {question.answer} | llama.cpp: {one} | onnxruntime: {other}")
    print(f"{asked} questions: {same} same answers; right: llama.cpp {llama_right}, onnxruntime {onnx_right}")


if __name__ == "__main__":
    main()
