"""Models that no family of ours knows: the encoder cuts the pictures, the template of the model lays out the turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, Protocol, runtime_checkable

from edge_vl.engine import PictureCutter, Tokenizer, VisionSpec
from edge_vl.errors import ImageError, RequestError
from edge_vl.frame import Frame
from edge_vl.message import Message
from edge_vl.model_spec import ModelSpec
from edge_vl.plan import Chunk, ExactnessRules, ImageChunk, ImageGrid, ImageUnit, Plan, TextChunk
from edge_vl.template import ChatTemplate, ImageSlot, tokenize_prompt

__all__ = ["Native", "OpensSequence"]


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
        rules = ExactnessRules(prefill_cut="any", text_prefix_ok=True) if cutter is None else cutter.rules
        self._rules = replace(rules, rollback=rollback if rollback == "whole" else rules.rollback)

    @property
    def rules(self) -> ExactnessRules:
        """Those of the encoder, or stricter where the cache of the language model forces it."""
        return self._rules

    def check_lanes(self, vision: VisionSpec | None, tokenizer: Tokenizer) -> None:
        """Check nothing: the encoder has the widths and markers from the language model's own file."""

    def tile(self, frame: Frame) -> ImageGrid:
        """Let the encoder cut a picture."""
        if self._cutter is None:
            raise ImageError(f"model {self._name} reads text only; it cannot see pictures", index=frame.index)
        return self._cutter.cut(frame)

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
