"""What the engine contract is about, and what its tests are written with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from edge_vl.engine import Engine, ImageEmbeds, KVCache, LaneOptions, LanguageModel, Prefillable, VisionEncoder
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import ImageUnit, TextChunk

__all__ = ["ContractSubject", "expect", "skip"]


class ContractSubject:
    """The engine and model under test.

    Attributes:
        has_vision: the engine offers a vision lane.
        has_language: it offers a language lane.
        tolerance: largest relative L2 difference of logits between two ways to the same sequence.
    """

    has_vision = True
    has_language = True
    tolerance = 1e-3

    def engine(self) -> Engine:
        """Return the engine under test."""
        raise NotImplementedError

    def model(self) -> ModelSpec:
        """Return a model that it can load."""
        raise NotImplementedError

    def broken_model(self) -> ModelSpec | None:
        """Return a model whose files are missing or broken; None where the engine reads no files."""
        return None

    def options(self) -> LaneOptions:
        """Return how to load."""
        return LaneOptions(threads=1)

    def token_ids(self, count: int) -> tuple[int, ...]:
        """Return ordinary tokens of the model's vocabulary."""
        return tuple(5 + (7 * index) % 60 for index in range(count))

    def make_unit(self, vision: VisionEncoder, seed: int) -> ImageUnit:
        """Return a noisy unit of the encoder's size."""
        height, width = vision.spec.tile_height or 64, vision.spec.tile_width or 64
        pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
        return ImageUnit.of(pixels, "tile", 1, 1)

    def make_prompt(self, language: LanguageModel) -> list[Prefillable]:
        """Return text, image embeds, text."""
        tokens = self.token_ids(9)
        values = np.random.default_rng(5).standard_normal((4, language.spec.hidden_size)).astype(np.float32)
        return [TextChunk(tokens[:4], 0), ImageEmbeds(values, "picture"), TextChunk(tokens[4:], 8)]

    def make_rows(self, language: LanguageModel) -> list[Prefillable]:
        """Return the prompt, one row a part."""
        rows: list[Prefillable] = []
        for part in self.make_prompt(language):
            if isinstance(part, TextChunk):
                rows += [TextChunk((token_id,), len(rows) + step) for step, token_id in enumerate(part.token_ids)]
            else:
                rows += [ImageEmbeds(part.values[row : row + 1], part.key) for row in range(part.num_tokens)]
        return rows

    def continue_prompt(self, language: LanguageModel, token_id: int) -> NDArray[np.float32]:
        """Return the logits after the prompt and one token, from a cache of their own."""
        cache = language.new_cache()
        self.prefill(language, cache, self.make_prompt(language))
        logits = language.decode(cache, token_id)
        cache.close()
        return logits

    def prefill(self, language: LanguageModel, cache: KVCache, run: list[Prefillable]) -> NDArray[np.float32]:
        """Append a run and return its logits."""
        logits = language.prefill(cache, run)
        assert logits is not None
        return logits

    def assert_same(self, found: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
        """Compare logits; equal up to the tolerance."""
        difference = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
        assert difference <= self.tolerance, f"logits differ by {difference:.2e}"

    @contextmanager
    def open_vision(self) -> Iterator[VisionEncoder]:
        """Load a vision encoder, and close it in the end; skip where the engine has none."""
        if not self.has_vision:
            skip("no vision lane")
        vision = self.engine().load_vision(self.model(), self.options())
        try:
            yield vision
        finally:
            vision.close()

    @contextmanager
    def open_language(self) -> Iterator[LanguageModel]:
        """Load a language model, and close it in the end; skip where the engine has none."""
        if not self.has_language:
            skip("no language lane")
        language = self.engine().load_language(self.model(), self.options())
        try:
            yield language
        finally:
            language.close()


def skip(why: str) -> NoReturn:
    """Skip a test; pytest is needed only while tests run."""
    import pytest

    pytest.skip(why)


@contextmanager
def expect(kind: type[Exception]) -> Iterator[None]:
    """Expect an error of that kind, with a message."""
    try:
        yield
    except kind as error:
        if not str(error):
            raise AssertionError(f"{kind.__name__} without a message") from error
    else:
        raise AssertionError(f"no {kind.__name__} was raised")
