"""What is known about a decoder's cut, kept from one load to the next: its pieces, or why it runs whole.

An entry is one file in the cache folder, named after the graph's identity and everything that made it. It carries a
checksum over its name and content, so that one that was changed, or comes from elsewhere, counts as not there.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import ModelError
from edge_vl_onnxruntime.onnx_file import read_onnx_header
from edge_vl_onnxruntime.proven_cut import ProvenCut, describe_cut, read_cut
from edge_vl_onnxruntime.session import ENGINE, import_onnxruntime

__all__ = ["CutStore"]

_ENTRIES_KEPT = 32
_END_BYTES = 1 << 20
_CHECKSUM = "checksum"


class CutStore:
    """The entry of one decoder.

    Attributes:
        key: tells the decoder and everything that makes its pieces from others.
    """

    def __init__(self, root: Path | None, path: Path, text_config: Mapping[str, Any], isa: str) -> None:
        """Name the entry.

        Args:
            root: the cache folder; None: nothing is kept. Nor is it of a graph that is damaged or incomplete.
            path: the graph.
            text_config: what the cutter is told besides.
            isa: the kernels that the proof runs on.
        """
        self._path = path.resolve()
        self._file: Path | None = None
        parts = _parts(self._path)
        self.key = _digest(parts, text_config, isa)
        if root is not None and parts:
            self._file = root / ENGINE / f"cut-{self.key}.npz"

    def load(self) -> ProvenCut | str | None:
        """Return a proven cut, or why the graph runs whole; None if that is not known."""
        if self._file is None or not self._file.is_file():
            return None
        try:
            with np.load(io.BytesIO(self._file.read_bytes()), allow_pickle=False) as entry:
                arrays = dict(entry.items())
            if arrays.pop(_CHECKSUM).tobytes() != _checksum(self._file.name, arrays):
                return None
            facts = json.loads(arrays["facts"].tobytes())
            if "reason" not in facts:
                return read_cut(facts, arrays, self._path)
            reason = facts["reason"]
            return reason if isinstance(reason, str) and reason else None
        except Exception:  # not whole, or of another time: it is made again
            return None

    def reason(self) -> str | None:
        """Return why the graph runs whole, empty if it is proven that it need not; None if that is not known."""
        known = self.load()
        return "" if isinstance(known, ProvenCut) else known

    def save(self, known: ProvenCut | str) -> None:
        """Keep a proven cut, or why the graph runs whole. What cannot be written is found out again next time."""
        if self._file is None:
            return
        arrays: dict[str, NDArray[Any]] = {}
        facts = {"reason": known} if isinstance(known, str) else describe_cut(known, arrays)
        arrays["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
        arrays[_CHECKSUM] = np.frombuffer(_checksum(self._file.name, arrays), np.uint8)
        aside = ""
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(prefix=".cut-", dir=self._file.parent, delete=False) as file:
                aside = file.name
                np.savez(file, allow_pickle=False, **arrays)
            Path(aside).replace(self._file)
            aside = ""
            for old in sorted(self._file.parent.glob("cut-*.npz"), key=_age, reverse=True)[_ENTRIES_KEPT:]:
                old.unlink()
        if aside:
            with contextlib.suppress(OSError):
                Path(aside).unlink()

    def forget(self) -> None:
        """Remove the entry."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink()


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _checksum(name: str, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Hash an entry: its name, and names, types, shapes and content of its arrays."""
    digest = hashlib.blake2b(name.encode(), digest_size=32)
    for key, values in sorted(arrays.items()):
        digest.update(f"|{key}|{values.dtype.str}|{values.shape}|".encode())
        digest.update(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return digest.digest()


def _parts(path: Path) -> list[Path]:
    """Return the graph and the files with its weights; nothing if it is damaged or one of them is missing."""
    try:
        weights = read_onnx_header(path).weights
    except ModelError:
        return []
    return [path, *sorted(path.parent / location for location in {weight.location for weight in weights} - {""})]


def _digest(parts: Sequence[Path], text_config: Mapping[str, Any], isa: str) -> str:
    """Hash what the files are, by name, size, time and ends, and what reads them."""
    digest = hashlib.blake2b(digest_size=12)
    version = import_onnxruntime().__version__
    digest.update(f"{version}|{isa}|{json.dumps(text_config, sort_keys=True, default=str)}".encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    for part in parts:
        digest.update(b"|" + os.fsencode(part))
        if not part.is_file():
            continue
        with contextlib.suppress(OSError), part.open("rb") as file:
            state = os.fstat(file.fileno())
            digest.update(f"|{state.st_size}|{state.st_mtime_ns}|".encode())
            digest.update(file.read(_END_BYTES))
            file.seek(max(0, state.st_size - _END_BYTES))
            digest.update(file.read(_END_BYTES))
    return digest.hexdigest()
