"""Which files of a model are wanted: the form and the precision of each lane, in order of preference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edge_vl.errors import RequestError

__all__ = ["FORMS", "GGUF_DTYPES", "ONNX_DTYPES", "FileForm", "WantedFiles"]

FileForm = Literal["onnx", "gguf"]
FORMS: tuple[FileForm, ...] = ("onnx", "gguf")

ONNX_DTYPES = {
    "fp32": "",
    "fp16": "_fp16",
    "int8": "_int8",
    "uint8": "_uint8",
    "quantized": "_quantized",
    "q4": "_q4",
    "q4f16": "_q4f16",
    "bnb4": "_bnb4",
}
"""File name suffix of each precision of an ONNX export in the layout of transformers.js, most faithful first."""

GGUF_DTYPES = (
    *("f32", "bf16", "f16", "q8_k_xl", "q8_0", "q6_k_xl", "q6_k_l", "q6_k", "q5_k_xl", "q5_k_l", "q5_k_m", "q5_k_s"),
    *("q5_1", "q5_0", "q4_k_xl", "q4_k_l", "q4_k_m", "q4_k_s", "iq4_nl", "iq4_xs", "q4_1", "q4_0", "mxfp4"),
    *("q3_k_xl", "q3_k_l", "q3_k_m", "q3_k_s", "iq3_m", "iq3_s", "iq3_xs", "iq3_xxs", "q2_k_xl", "q2_k_l", "q2_k"),
    *("q2_k_s", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "iq1_m", "iq1_s", "tq2_0", "tq1_0"),
)
"""Precisions that names of GGUF files end with, most faithful first."""

_SAME = (("fp32", "f32"), ("fp16", "f16"))


@dataclass(frozen=True, slots=True)
class WantedFiles:
    """What a device wants to run, best first. A precision that is not listed is not taken.

    Where one form lacks a lane, the next one is tried. The empty precision stands for a GGUF file that does not say.

    Attributes:
        vision_forms: of the vision encoder: `onnx` graph or `gguf` (mmproj).
        language_forms: of the language model.
        onnx_vision_dtypes: keys of `ONNX_DTYPES`. Full precision is first: engines make int8 from it themselves.
        onnx_language_dtypes: likewise.
        gguf_vision_dtypes: of `GGUF_DTYPES`.
        gguf_language_dtypes: likewise.
    """

    vision_forms: tuple[FileForm, ...] = ("onnx", "gguf")
    language_forms: tuple[FileForm, ...] = ("gguf", "onnx")
    onnx_vision_dtypes: tuple[str, ...] = ("fp32", "fp16", "int8", "uint8", "quantized", "q4", "q4f16", "bnb4")
    onnx_language_dtypes: tuple[str, ...] = ("fp32", "q4", "int8", "uint8", "quantized", "fp16", "q4f16", "bnb4")
    gguf_vision_dtypes: tuple[str, ...] = tuple(dict.fromkeys(("f16", "q8_0", "bf16", "f32", *GGUF_DTYPES, "")))
    gguf_language_dtypes: tuple[str, ...] = tuple(dict.fromkeys(("q8_0", "q4_k_m", "f16", *GGUF_DTYPES, "")))

    def of_form(self, form: str) -> WantedFiles:
        """Return the same, of one form only; `auto` changes nothing.

        Raises:
            RequestError: there is no such form.
        """
        if form == "auto":
            return self
        for known in FORMS:
            if form == known:
                return replace(self, vision_forms=(known,), language_forms=(known,))
        raise RequestError(f"unknown form {form!r}; known: auto, {', '.join(FORMS)}", field="form")

    def with_dtypes(self, *, vision: str = "auto", language: str = "auto") -> WantedFiles:
        """Return the same, in one precision only; `auto` leaves a lane as it is.

        Args:
            vision: of either form: `fp16` and `f16` mean the same.
            language: likewise.

        Raises:
            RequestError: neither form knows such a precision.
        """
        wanted = self
        if vision != "auto":
            onnx, gguf = _dtypes(vision, "vision_dtype")
            wanted = replace(wanted, onnx_vision_dtypes=onnx, gguf_vision_dtypes=gguf)
        if language != "auto":
            onnx, gguf = _dtypes(language, "language_dtype")
            wanted = replace(wanted, onnx_language_dtypes=onnx, gguf_language_dtypes=gguf)
        return wanted


def _dtypes(dtype: str, field: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a precision as ONNX and as GGUF names it; nothing where a form does not know it."""
    dtype = dtype.lower()
    names = next((pair for pair in _SAME if dtype in pair), (dtype, dtype))
    onnx, gguf = _known(names[0], tuple(ONNX_DTYPES)), _known(names[1], GGUF_DTYPES)
    if not onnx and not gguf:
        raise RequestError(
            f"unknown precision {dtype!r}; ONNX: {', '.join(ONNX_DTYPES)}; GGUF: {', '.join(GGUF_DTYPES)}", field=field
        )
    return onnx, gguf


def _known(dtype: str, known: Sequence[str]) -> tuple[str, ...]:
    return (dtype,) if dtype in known else ()
