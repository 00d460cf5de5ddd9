"""Finding the GGUF files of a model: the text model's, and the vision encoder's with its projector (mmproj)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from edge_vl.errors import ModelError
from edge_vl.gguf_header import GGUFHeader, GGUFTensor, read_gguf_header
from edge_vl.gguf_pair import check_pair
from edge_vl.gguf_spec import gguf_files
from edge_vl.model_spec import ModelSpec

__all__ = ["GGUFFile", "dtypes_of", "find_projector_file", "find_text_file", "list_files"]

_LFS_POINTER = b"version https://git-lfs"

_FILE_TYPES = {
    0: "fp32",
    1: "fp16",
    2: "q4_0",
    3: "q4_1",
    7: "q8_0",
    8: "q5_0",
    9: "q5_1",
    10: "q2_k",
    11: "q3_k_s",
    12: "q3_k_m",
    13: "q3_k_l",
    14: "q4_k_s",
    15: "q4_k_m",
    16: "q5_k_s",
    17: "q5_k_m",
    18: "q6_k",
    19: "iq2_xxs",
    20: "iq2_xs",
    21: "q2_k_s",
    22: "iq3_xs",
    23: "iq3_xxs",
    24: "iq1_s",
    25: "iq4_nl",
    26: "iq3_s",
    27: "iq3_m",
    28: "iq2_s",
    29: "iq2_m",
    30: "iq4_xs",
    31: "iq1_m",
    32: "bf16",
    36: "tq1_0",
    37: "tq2_0",
    38: "mxfp4",
}
"""Name of a mixture of types by `general.file_type` (llama_ftype)."""

_PLAIN = {"f32": "fp32", "f16": "fp16"}

_FAITHFUL_FIRST = (
    *("fp32", "fp16", "bf16", "q8_0", "q6_k", "q5_k_m", "q5_1", "q5_k_s", "q5_k", "q5_0", "q4_k_m", "q4_1", "q4_k_s"),
    *("q4_k", "iq4_nl", "iq4_xs", "q4_0", "mxfp4", "q3_k_l", "q3_k_m", "iq3_m", "iq3_s", "q3_k_s", "q3_k", "iq3_xs"),
    *("iq3_xxs", "q2_k", "q2_k_s", "iq2_m", "iq2_s", "iq2_xs", "iq2_xxs", "tq2_0", "tq1_0", "iq1_m", "iq1_s"),
)
"""The order in which `auto` looks."""


@dataclass(frozen=True, slots=True, eq=False)
class GGUFFile:
    """One file, known by its header.

    Attributes:
        path: the file; of a split one the first part.
        dtype: precision of the weights: `fp32`, `fp16`, or ggml's name in lower case, such as `q8_0` or `q4_k_m`.
        architecture: `clip` for a vision encoder.
        values: single values of its metadata, and lists of numbers.
        tensors: by name.
        header: the same values and tensors, as they were read.
        repeated_token: a text that two tokens of its vocabulary have; empty for none.
    """

    path: Path
    dtype: str
    architecture: str
    values: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]
    header: GGUFHeader
    repeated_token: str = ""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, fastest dimension first; empty if it is not there."""
        tensor = self.tensors.get(name)
        return tensor.shape if tensor else ()

    @property
    def is_projector(self) -> bool:
        """Whether it is a vision encoder's file."""
        return self.architecture == "clip"

    def number(self, key: str) -> int:
        """Return a whole number of the architecture's section; the largest where each layer has one; 0 for none."""
        return max(self.numbers(key), default=0)

    def numbers(self, key: str) -> tuple[int, ...]:
        """Return whole numbers of the architecture's section: one, or one for each layer."""
        value = self.values.get(f"{self.architecture}.{key}", ())
        entries = value if isinstance(value, (list, tuple)) else (value,)
        return tuple(entry for entry in entries if isinstance(entry, int))

    @property
    def projector_type(self) -> str:
        """What llama.cpp calls the kind of projector; empty for one without."""
        for key in ("clip.vision.projector_type", "clip.projector_type"):
            value = self.values.get(key)
            if isinstance(value, str) and value:
                return value
        return ""

    @property
    def projection_width(self) -> int:
        """Width of the image embeds; 0 where the file does not say."""
        return self.number("vision.projection_dim")


def list_files(model: ModelSpec) -> tuple[GGUFFile, ...]:
    """Return the files of a model that can be read, in file order; never raises."""
    found: list[GGUFFile] = []
    for path in gguf_files(model.path):
        with suppress(ModelError):
            found.append(_read(path))
    return tuple(found)


def dtypes_of(files: Iterable[GGUFFile]) -> list[str]:
    """Return their precisions, most faithful first, each once."""
    return sorted({file.dtype for file in files}, key=_rank)


def find_text_file(model: ModelSpec, dtype: str) -> GGUFFile:
    """Find the text model's file.

    Args:
        model: `model.file` wins; otherwise its folder is searched, first `gguf/`, then the folder itself.
        dtype: a precision, or `auto` for the most faithful.

    Raises:
        ModelError: it is not there, not in that precision, or cannot be read.
    """
    if model.file is not None:
        file = _read(model.file)
        if file.is_projector:
            raise ModelError(f"{file.path} is a vision encoder (mmproj), not a text model", file=str(file.path))
        if dtype not in ("auto", file.dtype):
            raise ModelError(f"{file.path} has its weights in {file.dtype}, not in {dtype}", file=str(file.path))
        return file
    files = [file for file in _read_all(model) if not file.is_projector]
    if not files:
        raise ModelError(
            f"{model.path} has no text model as GGUF (*.gguf), neither in gguf/ nor in the folder itself",
            file=str(model.path),
        )
    return _choose(model, "text model", files, dtype)


def find_projector_file(model: ModelSpec, text: GGUFFile, dtype: str) -> GGUFFile:
    """Find the vision encoder's file that belongs to a text model.

    Args:
        model: its folder is searched, first `gguf/`, then the folder itself.
        text: the text model.
        dtype: a precision, or `auto` for the most faithful.

    Raises:
        ModelError: there is none, none fits the text model, or it cannot be read.
    """
    files = [file for file in _read_all(model) if file.is_projector]
    if not files:
        raise ModelError(
            f"{model.name} reads text only: {model.path} has no vision encoder (mmproj-*.gguf), neither in gguf/ nor "
            "in the folder itself",
            file=str(model.path),
        )
    seeing = [file for file in files if file.projector_type and file.values.get("clip.has_vision_encoder", True)]
    if not seeing:
        raise ModelError(f"{files[0].path} has no vision encoder; it may be one for sound", file=str(files[0].path))
    width = text.number("embedding_length")
    fitting = [file for file in seeing if not width or file.projection_width in (0, width)]
    if not fitting:
        other = seeing[0]
        raise ModelError(
            f"{other.path} makes image embeds {other.projection_width} wide and {text.path} takes {width}: they are "
            "not of one model; download the mmproj file that was published with the text model",
            file=str(other.path),
        )
    paired: list[GGUFFile] = []
    refused: ModelError | None = None
    for file in fitting:
        try:
            check_pair(text.header, file.header, with_names=False)
            paired.append(file)
        except ModelError as error:
            refused = refused or error
    if refused is not None and not paired:
        raise refused
    return _choose(model, "vision encoder", paired, dtype)


def _choose(model: ModelSpec, what: str, files: Sequence[GGUFFile], dtype: str) -> GGUFFile:
    """Choose by precision, and refuse to guess between different models."""
    known = dtypes_of(files)
    if dtype != "auto" and dtype not in known:
        raise ModelError(f"{model.path} has no {what} in {dtype}; it has {', '.join(known)}", file=str(model.path))
    wanted = known[0] if dtype == "auto" else dtype
    candidates = [file for file in files if file.dtype == wanted]
    first = candidates[0]
    for other in candidates[1:]:
        if _shape(other) != _shape(first):
            raise ModelError(
                f"{model.path} has different models in {wanted} ({first.path.name}, {other.path.name}); name one file",
                file=str(model.path),
            )
    return first


def _shape(file: GGUFFile) -> tuple[str, str, int, int]:
    section = "vision." if file.is_projector else ""
    sizes = (file.number(f"{section}embedding_length"), file.number(f"{section}block_count"))
    return (file.architecture, file.projector_type, *sizes)


def _read_all(model: ModelSpec) -> list[GGUFFile]:
    return [_read(path) for path in gguf_files(model.path)]


def _read(path: Path) -> GGUFFile:
    """Read one header, or say plainly what is wrong with the file."""
    try:
        state = path.stat()
        with path.open("rb") as file:
            head = file.read(len(_LFS_POINTER))
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}", file=str(path)) from error
    if not head:
        raise ModelError(f"{path} is empty; download it again", file=str(path))
    if head == _LFS_POINTER:
        raise ModelError(f"{path} is a Git LFS pointer, not the model; run `git lfs pull`", file=str(path))
    return _read_state(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _read_state(path: Path, _mtime_ns: int, _size: int) -> GGUFFile:
    """Read a header once for each state of its file: a vocabulary of 150,000 takes a tenth of a second."""
    header = read_gguf_header(path)
    values = {
        key: value
        for key, value in header.metadata.items()
        if not isinstance(value, list) or (value and not isinstance(value[0], str) and len(value) <= 1024)
    }
    tensors = {tensor.name: tensor for tensor in header.tensors}
    short = GGUFHeader(path, values, header.tensors, header.kinds)
    return GGUFFile(path, _dtype(header), header.architecture, values, tensors, short, _repeated_token(header))


def _repeated_token(header: GGUFHeader) -> str:
    """Return a text that two tokens have; texts that are empty or no UTF-8 are told apart by llama.cpp.

    A text ends where it has a zero byte.
    """
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return ""
    tokens = [token.partition("\0")[0] for token in tokens]
    if len(set(tokens)) == len(tokens):
        return ""
    texts = Counter(token for token in tokens if token and "\ufffd" not in token)
    return next((text for text, count in texts.items() if count > 1), "")


def _dtype(header: GGUFHeader) -> str:
    """Name the precision: as the file does, unless most of its bytes say otherwise."""
    most = header.dtype
    named = _FILE_TYPES.get(header.metadata.get("general.file_type", -1), "")
    plain = _PLAIN.get(most, most)
    if named == plain or "_k" in named or named.startswith("iq"):
        return named
    return plain


def _rank(dtype: str) -> tuple[int, str]:
    place = _FAITHFUL_FIRST.index(dtype) if dtype in _FAITHFUL_FIRST else len(_FAITHFUL_FIRST)
    return place, dtype
