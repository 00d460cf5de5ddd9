"""Models that no family of ours knows: the encoder cuts the pictures, the template of the model lays out the turns."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from PIL import Image

from edge_vl.costs import unit_shape
from edge_vl.engine import PictureCutter, Tokenizer, VisionSpec
from edge_vl.errors import ImageError, RequestError
from edge_vl.frame import Frame
from edge_vl.ladder import Rung
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import Chunk, ExactnessRules, ImageChunk, ImageGrid, ImageUnit, Plan, TextChunk
from edge_vl.template import ChatTemplate, ImageSlot, tokenize_prompt

__all__ = ["Native", "OpensSequence"]

_MAX_HALVINGS = 8  # of a picture's area, on the ladder
_MIN_LONGEST_EDGE = 96  # pixels of a smaller rung
_MAX_LADDERS = 64  # sizes of pictures whose ladders are remembered


@runtime_checkable
class OpensSequence(Protocol):
    """A tokenizer whose model wants tokens at the very beginning of every sequence, whatever the template says."""

    @property
    def opening_token_ids(self) -> tuple[int, ...]:
        """These tokens."""
        ...


class Native:
    """Lays out what the vision encoder cut. Safe to call from any thread."""

    def __init__(self, spec: ModelSpec, cutter: PictureCutter | None, rollback: Literal["any", "whole"]) -> None:
        """Compile the template of a model.

        Args:
            spec: the model.
            cutter: its vision encoder; None for a model that reads text only.
            rollback: what the language model's caches can forget.

        Raises:
            ModelError: the template is not valid.
        """
        self._name = spec.name
        self._cutter = cutter
        self._template = ChatTemplate(spec)
        text_only = ExactnessRules(prefill_cut="any", text_prefix_ok=True, rollback="any")
        rules = text_only if cutter is None else cutter.rules
        self._rules = replace(rules, rollback=rollback if rollback == "whole" else rules.rollback)
        self._ladders: dict[tuple[int, int], tuple[Rung, ...]] = {}
        self._lock = threading.Lock()

    @property
    def rules(self) -> ExactnessRules:
        """Those of the encoder, or stricter where the cache of the language model forces it."""
        return self._rules

    def check_lanes(self, vision: VisionSpec | None, tokenizer: Tokenizer) -> None:
        """Check nothing: the encoder has the widths and markers from the language model's own file."""

    def rungs(self, frame: Frame) -> tuple[Rung, ...]:
        """Return the settings that a picture can be cut with: itself, scaled down in steps of half the area.

        How many units and tokens a size gives, only the encoder knows. It cuts a black picture of each size once, which
        takes about as long as cutting the picture twice. Where its counts depend on more than the size, they are
        estimates.

        Returns:
            Best first, each with fewer image tokens than the one before. The last has one unit where scaling down leads
            there; encoders that always make as many tokens, or choose their tiles by the aspect ratio alone, have one
            rung.

        Raises:
            ImageError: the picture itself cannot be cut.
        """
        size = frame.height, frame.width
        with self._lock:
            known = self._ladders.get(size)
        if known is None:
            known = self._measured_rungs(frame)
            with self._lock:
                while len(self._ladders) >= _MAX_LADDERS:
                    del self._ladders[next(iter(self._ladders))]
                self._ladders[size] = known
        return known

    def tile(self, frame: Frame, longest_edge: int | None = None) -> ImageGrid:
        """Let the encoder cut a picture, scaled down first if its longer side is above `longest_edge`."""
        if self._cutter is None:
            raise ImageError(f"model {self._name} reads text only; it cannot see pictures", index=frame.index)
        size = _scaled_size(frame, longest_edge)
        if size != (frame.height, frame.width):
            height, width = size
            image = Image.fromarray(frame.pixels).resize((width, height), Image.Resampling.LANCZOS)
            frame = replace(frame, pixels=np.asarray(image))
        return self._cutter.cut(frame)

    def _measured_rungs(self, frame: Frame) -> tuple[Rung, ...]:
        rungs: list[Rung] = []
        longest = max(frame.height, frame.width)
        for halvings in range(_MAX_HALVINGS + 1):
            longest_edge = None if not halvings else round(longest / math.sqrt(2**halvings))
            if longest_edge is not None and longest_edge < _MIN_LONGEST_EDGE:
                break
            black = np.zeros((*_scaled_size(frame, longest_edge), 3), np.uint8)
            try:
                units = self.tile(replace(frame, pixels=black)).units
            except ImageError:
                if not rungs:
                    raise
                break  # it is too small, or rounding has made it too narrow
            first = ImageChunk(units[0], 0, units[0].num_tokens, 0, units[0].num_positions)
            rung = Rung(longest_edge, len(units), sum(unit.num_tokens for unit in units), unit_shape(first))
            if not rungs or rung.num_image_tokens < rungs[-1].num_image_tokens:
                rungs.append(rung)
        return tuple(rungs)

    def layout(self, messages: Sequence[Message], tokenizer: Tokenizer) -> Plan:
        """Lay a conversation out, up to where the model is to answer.

        Raises:
            ModelError: the template cannot be rendered.
            RequestError: there are no messages.
        """
        if not messages:
            raise RequestError("a conversation needs at least one message", field="messages")
        grids = [part for message in messages for part in message.parts if isinstance(part, ImageGrid)]
        prompt, marker = self._template.render_marked(messages)
        entries = tokenize_prompt(prompt, tokenizer, image_marker=marker)
        opening = tokenizer.opening_token_ids if isinstance(tokenizer, OpensSequence) else ()
        if tuple(entries[: len(opening)]) != opening:
            entries = [*opening, *entries]
        chunks = tuple(_chunks(_spelled_out(entries, grids)))
        return Plan(chunks, self._rules, opens_reasoning=prompt.text.rstrip().endswith("<think>"))


def _spelled_out(
    entries: Sequence[int | ImageSlot], grids: Sequence[ImageGrid]
) -> Iterator[int | tuple[int, ImageUnit]]:
    """Put the units of each picture, with the markers around them, in its slot."""
    for entry in entries:
        if isinstance(entry, int):
            yield entry
            continue
        grid = grids[entry.index]
        for unit, markers in zip(grid.units, grid.markers[:-1], strict=True):
            yield from markers
            yield entry.index, unit
        yield from grid.markers[-1]


def _chunks(entries: Iterator[int | tuple[int, ImageUnit]]) -> Iterator[Chunk]:
    """Gather ids into text chunks and give everything its position."""
    run: list[int] = []
    position = 0
    for entry in entries:
        if isinstance(entry, int):
            run.append(entry)
            continue
        if run:
            yield TextChunk(tuple(run), position)
            position += len(run)
            run = []
        image, unit = entry
        yield ImageChunk(unit, image, unit.num_tokens, position, unit.num_positions)
        position += unit.num_positions
    if run:
        yield TextChunk(tuple(run), position)


def _scaled_size(frame: Frame, longest_edge: int | None) -> tuple[int, int]:
    """Return (height, width) of a picture whose longer side is at most `longest_edge`."""
    height, width = frame.height, frame.width
    longest = max(height, width)
    if longest_edge is None or longest_edge >= longest:
        return height, width
    return max(1, round(height * longest_edge / longest)), max(1, round(width * longest_edge / longest))
