"""A way to run the command line in this process."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from edge_vl.cli import run


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


RunCli = Callable[..., Done]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> RunCli:
    """Run `edge-vl` with arguments and, maybe, standard input."""

    def call(*arguments: str, stdin: bytes = b"") -> Done:
        capfd.readouterr()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = run(list(arguments))
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture
def png(tmp_path: Path) -> Path:
    """Make a red square on white, at the top left."""
    pixels = np.full((128, 128, 3), 235, np.uint8)
    pixels[14:50, 14:50] = (220, 20, 30)
    path = tmp_path / "red.png"
    Image.fromarray(pixels).save(path)
    return path
