"""An engine for the bundled model that takes its time, and need not come to an end: long, slow answers at no cost.

Another process finds it as it finds every engine, by an entry point: `offer` writes one into a folder for PYTHONPATH.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import (
    EngineStatus,
    KVCache,
    LaneOptions,
    LanguageModel,
    LanguageSpec,
    Prefillable,
    Tokenizer,
    VisionEncoder,
)
from edge_vl.model_spec import ModelSpec
from edge_vl_onnxruntime import engine as onnxruntime_engine

__all__ = ["PacedEngine", "offer"]

_ROOT = Path(__file__).resolve().parent.parent


class PacedEngine:
    """ONNX Runtime, with pauses.

    Attributes:
        name: as its entry point's.
        token_s: pause before each token of an answer.
        prompt_s: pause before each pass over a part of the prompt.
        is_endless: whether the model cannot end an answer, so that each is as long as it may be.
        load_s: pause while it is loaded; the file `loading` in the folder of the process says that it has begun.
    """

    def __init__(
        self, name: str, *, token_s: float = 0.0, prompt_s: float = 0.0, is_endless: bool = False, load_s: float = 0.0
    ) -> None:
        """Choose the pauses."""
        self.load_s = load_s
        self.name = name
        self.token_s = token_s
        self.prompt_s = prompt_s
        self.is_endless = is_endless

    def status(self) -> EngineStatus:
        """Pass on."""
        return onnxruntime_engine.status()

    def describe(self, model: ModelSpec) -> Mapping[str, Any]:
        """Pass on."""
        return onnxruntime_engine.describe(model)

    def load_vision(self, model: ModelSpec, options: LaneOptions) -> VisionEncoder:
        """Pass on."""
        return onnxruntime_engine.load_vision(model, options)

    def load_language(self, model: ModelSpec, options: LaneOptions) -> LanguageModel:
        """Load a language model that takes its time."""
        if self.load_s:
            Path("loading").touch()
            time.sleep(self.load_s)
        return _PacedLanguage(onnxruntime_engine.load_language(model, options), self)


class _PacedLanguage:
    """A language model that takes its time."""

    def __init__(self, inner: LanguageModel, pace: PacedEngine) -> None:
        self._inner, self._pace = inner, pace
        self.new_cache, self.close = inner.new_cache, inner.close
        tokenizer = inner.tokenizer
        self._silent = sorted({*tokenizer.eos_token_ids, *tokenizer.special_tokens.values()})

    @property
    def spec(self) -> LanguageSpec:
        return self._inner.spec

    @property
    def tokenizer(self) -> Tokenizer:
        return self._inner.tokenizer

    def prefill(
        self, cache: KVCache, run: Sequence[Prefillable], *, want_logits: bool = True
    ) -> NDArray[np.float32] | None:
        time.sleep(self._pace.prompt_s)
        return self._spoken(self._inner.prefill(cache, run, want_logits=want_logits))

    def decode(self, cache: KVCache, token_id: int) -> NDArray[np.float32]:
        time.sleep(self._pace.token_s)
        logits = self._spoken(self._inner.decode(cache, token_id))
        assert logits is not None
        return logits

    def _spoken(self, logits: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        """Leave the model only tokens that have text."""
        if logits is not None and self._pace.is_endless:
            logits[self._silent] = -np.inf
        return logits


def offer(folder: Path, engine: PacedEngine) -> str:
    """Make a package of an engine, as another process would have it installed.

    Args:
        folder: where to; made if need be.
        engine: what it offers.

    Returns:
        What that process needs in PYTHONPATH.
    """
    module = f"{engine.name}_package"
    facts = folder / f"{module}-1.0.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[edge_vl.engines]\n{engine.name} = {module}:engine\n")
    (folder / f"{module}.py").write_text(
        "from tests.paced_engine import PacedEngine\n\n"
        f"engine = PacedEngine({engine.name!r}, token_s={engine.token_s!r}, prompt_s={engine.prompt_s!r}, "
        f"is_endless={engine.is_endless!r}, load_s={engine.load_s!r})\n"
    )
    return f"{folder}:{_ROOT}"
