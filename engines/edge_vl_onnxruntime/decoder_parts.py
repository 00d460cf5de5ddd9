"""What a language model is loaded from, and the first rows that it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import ImageEmbeds, LaneOptions, LanguageModel, LanguageSpec, Tokenizer
from edge_vl.errors import EngineFault, ModelError
from edge_vl_onnxruntime.decoder_graph import DecoderGraph
from edge_vl_onnxruntime.embedding import Embedding
from edge_vl_onnxruntime.session import Session

__all__ = ["DecoderParts", "try_out"]


@dataclass(frozen=True, slots=True, eq=False)
class DecoderParts:
    """What a language model is loaded from.

    Attributes:
        path: the decoder's graph.
        text_config: of the model's `config.json`.
        options: how to load.
        context_limit: entries that the model takes, whatever the options say.
        tokenizer: of the model.
        open_embedding: loads the token embeddings that go with a decoder.
        describe: says what a decoder is.
    """

    path: Path
    text_config: Mapping[str, Any]
    options: LaneOptions
    context_limit: int
    tokenizer: Tokenizer
    open_embedding: Callable[[DecoderGraph], Embedding]
    describe: Callable[[Session, DecoderGraph], LanguageSpec]

    @property
    def context_length(self) -> int:
        """Entries that a sequence may have."""
        return min(self.context_limit, self.options.context_length or self.context_limit)


def try_out(model: LanguageModel) -> list[NDArray[np.float32]]:
    """Run a few rows and one token, so that a model that does not work is found at load.

    Returns:
        Their logits.

    Raises:
        ModelError: it does not work.
    """
    random = np.random.default_rng(0)
    spec = model.spec
    rows = random.standard_normal((min(3, spec.context_length), spec.hidden_size)).astype(np.float32)
    cache = model.new_cache()
    try:
        logits = [model.prefill(cache, [ImageEmbeds(rows, "probe")])]
        if spec.context_length > cache.num_tokens:
            logits.append(model.decode(cache, 0))
    except EngineFault as error:
        raise ModelError(f"{spec.file} does not work with its embeddings: {error.cause}", file=spec.file) from error
    finally:
        cache.close()
    return [row for row in logits if row is not None]
