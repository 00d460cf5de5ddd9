"""A request at work: what has been computed for it, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from edge_vl.answer import Answer
from edge_vl.costs import Costs, unit_shape
from edge_vl.decoding import Decoding
from edge_vl.engine import ImageEmbeds, Prefillable
from edge_vl.entries import Entries, entries_of
from edge_vl.mode_choice import Mode
from edge_vl.passes import MAX_PREFILL_TOKENS, Piece, next_pass, pieces_of
from edge_vl.plan import ImageChunk, Plan, TextChunk
from edge_vl.plan_check import may_cut_image, may_split
from edge_vl.policy import RunView
from edge_vl.request import Progress, Request
from edge_vl.resident import Resident

__all__ = ["Job", "Run", "run_name", "unit_name"]

_GRAFT_REFRESH_TOKENS = 8
"""First tokens of a kept image that are computed anew: they carry most of what changed before it."""


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A request that is ready to run.

    Attributes:
        request: who asks.
        plan: what its prompt is.
        entries: what the prompt's entries are.
        resident: the cache of the conversation that asks; None: any.
        on_answer: called with the answer before anybody else sees it, and only if it becomes the outcome.
        on_end: called once, before the outcome is seen, whatever it is.
    """

    request: Request
    plan: Plan
    entries: Entries
    resident: Resident | None
    on_answer: Callable[[Answer], None]
    on_end: Callable[[], None]


class Run:
    """The state of one request. Belongs to the language lane.

    Attributes:
        job: what is to be done.
        number: order of arrival.
        account: name of the stream whose device time it uses.
        began_at_s: weighted device time that the stream had had when this request began.
        entries: of its prompt and of what was answered.
        mode: how the lanes take turns for it.
        is_probe: that mode is tried to learn what it costs.
        resident: its cache; None before it began and after it ended.
        donor: the cache that kept entries are taken from.
        rest: what is still to be prefilled.
        embeds: by content key, for image pieces of the rest.
        missing: units to be encoded, in order, each once.
        logits: after the last entry; None before the prompt is in.
        decoding: the answer; None before its first token.
        device_s: device time it had.
        num_encoded: units encoded for it.
        max_text_tokens: of one pass.
        num_early: early tokens shown.
    """

    def __init__(self, job: Job, number: int) -> None:
        """Wait for a turn."""
        self.job = job
        self.number = number
        self.account = job.request.generation.stream or f"#{number}"
        self.began_at_s = 0.0
        self.entries: Entries = job.entries
        self.mode: Mode = "serial"
        self.is_probe = False
        self.resident: Resident | None = None
        self.donor: Resident | None = None
        self.rest: list[Piece] = pieces_of(job.plan.chunks)
        self.embeds: dict[str, ImageEmbeds] = {}
        self.missing: list[ImageChunk] = []
        self.logits: NDArray[np.float32] | None = None
        self.decoding: Decoding | None = None
        self.device_s = 0.0
        self.num_encoded = 0
        self.num_kept = 0
        self.num_grafted = 0
        self.max_text_tokens = MAX_PREFILL_TOKENS
        self.num_early = 0
        self._whole_pass: tuple[list[Piece], tuple[list[Piece], list[Piece]]] = ([], ([], []))
        self.done_s = 0.0

    @property
    def plan(self) -> Plan:
        """Its prompt."""
        return self.job.plan

    @property
    def request(self) -> Request:
        """Who asks."""
        return self.job.request

    @property
    def is_answering(self) -> bool:
        """Whether its prompt is in."""
        return self.resident is not None and not self.rest

    @property
    def may_split(self) -> bool:
        """Whether its pictures may be prefilled before all are encoded."""
        return may_split(self.plan)

    def place(self, resident: Resident, donor: Resident | None) -> None:
        """Take a cache that begins as the prompt does, and work out what is left.

        Args:
            resident: the cache; nothing else is in it.
            donor: a cache with equal entries at equal places behind the beginning; None: everything is computed.
        """
        self.resident, self.donor = resident, donor
        kept = resident.num_tokens
        chunks = list(self.plan.chunks)
        if self.decoding is not None and self.decoding.token_ids:  # it lost its cache while it answered
            said = tuple(self.decoding.token_ids)
            chunks.append(TextChunk(said, chunks[-1].position + chunks[-1].num_positions))
            self.entries = entries_of(chunks)
        self.rest = pieces_of(chunks, kept)
        self.logits = None
        if donor is not None:
            self.rest = self._grafted(donor, kept)

    def _grafted(self, donor: Resident, kept: int) -> list[Piece]:
        """Mark what the donor has at the same place; the first tokens of each image are computed all the same."""
        pieces: list[Piece] = []
        start = kept
        for piece in self.rest:
            end = start + piece.num_tokens
            is_equal = end <= donor.num_tokens and np.array_equal(donor.entries[start:end], self.entries[start:end])
            if is_equal and isinstance(piece.chunk, ImageChunk) and piece.num_tokens > _GRAFT_REFRESH_TOKENS:
                middle = piece.start + _GRAFT_REFRESH_TOKENS
                pieces.append(Piece(piece.chunk, piece.start, middle))
                pieces.append(Piece(piece.chunk, middle, piece.stop, is_graft=True))
            else:
                pieces.append(piece)
            start = end
        return pieces

    def give_up_grafts(self) -> None:
        """Compute what was to be taken from the donor."""
        self.rest = [replace(piece, is_graft=False) for piece in self.rest]

    def leave(self) -> tuple[Resident | None, Resident | None]:
        """Let go of both caches and return them."""
        caches = self.resident, self.donor
        self.resident = self.donor = None
        return caches

    def take_embeds(self, key: str, embeds: ImageEmbeds) -> None:
        """Take the embeds of a unit."""
        self.embeds[key] = embeds
        self.missing = [chunk for chunk in self.missing if chunk.unit.key != key]

    def needed_chunks(self) -> list[ImageChunk]:
        """Return the image chunks whose embeds the rest needs, each content once."""
        needed: dict[str, ImageChunk] = {}
        for piece in self.rest:
            if isinstance(piece.chunk, ImageChunk) and not piece.is_graft:
                needed.setdefault(piece.chunk.unit.key, piece.chunk)
        return list(needed.values())

    def next_pass(self, slice_tokens: int | None) -> tuple[list[Piece], list[Piece]]:
        """Return the next pass and what is left behind it.

        Args:
            slice_tokens: most tokens while an answer of somebody else runs; None: as long as it may be.
        """
        if slice_tokens is None and self._whole_pass[0] is self.rest:
            return self._whole_pass[1]
        most = self.max_text_tokens if slice_tokens is None else min(slice_tokens, self.max_text_tokens)
        may_cut = slice_tokens is not None and may_cut_image(self.plan) and not self._has_blocks()
        found = next_pass(self.rest, max_text_tokens=most, max_image_tokens=slice_tokens if may_cut else None)
        if slice_tokens is None:
            self._whole_pass = self.rest, found
        return found

    def _has_blocks(self) -> bool:
        """Say whether embeds came with positions of their own, or must go in together."""
        return any(embeds.positions is not None or not embeds.is_causal for embeds in self.embeds.values())

    def can_prefill(self) -> bool:
        """Say whether the next pass has all it needs."""
        if self.resident is None or not self.rest:
            return False
        if self.missing and (self.mode == "serial" or not self.may_split):
            return False
        pieces, _ = self.next_pass(None)
        return all(
            piece.is_graft or not isinstance(piece.chunk, ImageChunk) or piece.chunk.unit.key in self.embeds
            for piece in pieces
        )

    def items(self, pieces: Sequence[Piece]) -> list[Prefillable]:
        """Return what the language model takes for a pass."""
        items: list[Prefillable] = []
        for piece in pieces:
            if not isinstance(piece.chunk, ImageChunk):
                items.append(piece.text)
                continue
            whole = self.embeds[piece.chunk.unit.key]
            if piece.num_tokens == whole.num_tokens:
                items.append(whole)
            else:
                items.append(ImageEmbeds(whole.values[piece.start : piece.stop], whole.key))
        return items

    def note(self, num_tokens: int) -> None:
        """Note that so many more entries are in the cache."""
        assert self.resident is not None
        start = self.resident.num_tokens
        self.resident.note(self.entries[start : start + num_tokens])

    def note_token(self, token_id: int) -> None:
        """Note that a token of the answer is in the cache."""
        assert self.resident is not None
        self.resident.note(np.array([[0, token_id]], np.int64))

    def view(self, account_s: float, encoding_keys: frozenset[str]) -> RunView:
        """Return what the policy sees of it."""
        is_answering = self.is_answering
        return RunView(
            number=self.number,
            mode=self.mode,
            is_answering=is_answering,
            can_encode=any(chunk.unit.key not in encoding_keys for chunk in self.missing),
            can_prefill=not is_answering and self.can_prefill(),
            num_missing=len(self.missing),
            account_s=account_s if is_answering else self.began_at_s,
            due_s=self.request.remaining_s,
        )

    def progress(self, costs: Costs) -> Progress:
        """Estimate how far it has come. From any thread; what it reads may be a moment old."""
        missing = self.needed_chunks() if self.resident is None else list(self.missing)
        rest = list(self.rest)
        parts: list[float | None] = [costs.encode_s(unit_shape(chunk)) for chunk in missing]
        if rest:
            parts.append(costs.prefill_s(sum(piece.num_tokens for piece in rest)))
        said = 0 if self.decoding is None else len(self.decoding.token_ids)
        usual = costs.answer_tokens
        most = self.request.generation.max_tokens
        to_say = max(0.0, min(most, most if usual is None else usual) - said)
        parts.append(None if costs.decode_s is None else costs.decode_s * to_say)
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return Progress(0.0, None)
        remaining_s = sum(known)
        total_s = self.device_s + remaining_s
        return Progress(self.device_s / total_s if total_s > 0 else 0.0, remaining_s)


def unit_name(chunk: ImageChunk) -> str:
    """Name an image unit for the trace."""
    unit = chunk.unit
    where = f"{unit.row},{unit.column}" if unit.row else ""
    return f"picture {chunk.image + 1} {unit.kind} {where}".rstrip()


def run_name(pieces: Sequence[Piece]) -> str:
    """Name a pass for the trace."""
    num_text = num_image = 0
    for piece in pieces:
        if isinstance(piece.chunk, ImageChunk):
            num_image += piece.num_tokens
        else:
            num_text += piece.num_tokens
    if not num_image:
        return f"{num_text} text"
    return f"{num_text} text + {num_image} image" if num_text else f"{num_image} image"
