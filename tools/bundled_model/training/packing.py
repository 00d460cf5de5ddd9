"""Many independent questions behind one picture, packed into one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from tools.bundled_model.questions import COLOR_WORDS, KINDS, Fact, Question, ask
from tools.bundled_model.scenes import PLACES, SHAPES
from tools.bundled_model.tokenizer import END, image_text

ALL_KINDS = (*KINDS, "off_topic")
KIND_WEIGHTS = {
    "what_at": 1.0, "color_at": 0.6, "shape_at": 0.6, "color_of": 1.6, "shape_of": 1.4, "place_of": 1.8,
    "count_all": 1.0, "count_shape": 1.4, "count_color": 1.2, "exists": 2.0, "describe": 1.2, "json": 0.8,
    "off_topic": 0.25,
}  # fmt: skip
IGNORED = -100
NO_PLACE = 16
SHORT_ANSWER_TOKENS = 5
LONG_ANSWER_WEIGHT = 0.5


@dataclass(slots=True)
class Packed:
    """A batch of packed sequences.

    Attributes:
        ids: int64 (batch, length).
        positions: int64 (batch, length), restarted after the prefix for every run of questions.
        runs: int64 (batch, length), 0 for the prefix, then 1, 2, ...; -1 for padding.
        labels: int64 (batch, length), the next token where an answer is due, else `IGNORED`.
        weights: float32 (batch, length), how much a label counts.
        places: uint8 (batch, length), the objects that the next token rests on, one bit per place; `NO_PLACE` for
            none at all, 0 where the next token rests on the words before it.
        kinds: int64 (batch, length), the index of the kind where an answer begins, else `IGNORED`.
        asked: int64 (3, batch, length), shape, color, place named by the question where its answer begins (0 for
            none), else `IGNORED`.
    """

    ids: Tensor
    positions: Tensor
    runs: Tensor
    labels: Tensor
    weights: Tensor
    places: Tensor
    kinds: Tensor
    asked: Tensor

    def mask(self) -> Tensor:
        """Return what every position sees: bool (batch, 1, length, length)."""
        length = self.ids.size(1)
        query, key = self.runs[:, :, None], self.runs[:, None, :]
        order = torch.arange(length)
        visible = (order[:, None] >= order[None, :]) & ((key == query) | (key == 0))
        return visible[:, None]


def named(words: Sequence[str], text: str) -> int:
    """Return 1 + the index of the first of the words that the text holds, or 0."""
    return next((number for number, word in enumerate(words, 1) if word in text), 0)


def place_bits(question: Question) -> NDArray[np.uint8]:
    """Return `Packed.places` for every character of the answer and the space before it."""
    bits = np.zeros(len(question.answer) + 1, np.uint8)
    start = 1
    for piece in question.pieces:
        if piece.places is not None:
            bits[start : start + len(piece.text)] = sum(1 << PLACES.index(place) for place in piece.places) or NO_PLACE
        start += len(piece.text)
    return bits


class Token(NamedTuple):
    """One token's entries in `Packed`."""

    id: int
    label: int = IGNORED
    weight: float = 0.0
    places: int = 0
    kind: int = IGNORED
    asked: tuple[int, int, int] = (IGNORED, IGNORED, IGNORED)


class Packer:
    """Draws and tokenises questions."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.prefix = tokenizer.encode("<|im_start|>User:" + image_text()).ids
        self.next_prefix = tokenizer.encode("\nUser:" + image_text()).ids
        self.weights = np.array([KIND_WEIGHTS[kind] for kind in ALL_KINDS])
        self.weights /= self.weights.sum()

    def draw(self, facts: Sequence[Fact], rng: np.random.Generator) -> Question:
        """Draw a question that the scene allows."""
        while True:
            kind = ALL_KINDS[int(rng.choice(len(ALL_KINDS), p=self.weights))]
            question = ask(kind, facts, rng)
            if question is not None:
                return question

    def turn(self, question: Question, *, later: bool) -> list[Token]:
        """Return the tokens of a turn; a first turn follows the picture without a space."""
        before = f"\nUser: {question.text}" if later else question.text
        tokens = [Token(token) for token in self.tokenizer.encode(f"{before}{END}\nAssistant:").ids]
        text = question.text.lower()
        asked = (named(SHAPES, text), named(COLOR_WORDS, text), named(PLACES, text))
        tokens[-1] = tokens[-1]._replace(kind=ALL_KINDS.index(question.kind), asked=asked)
        answer = self.tokenizer.encode(f" {question.answer}{END}")
        weight = LONG_ANSWER_WEIGHT if len(answer.ids) > SHORT_ANSWER_TOKENS else 1.0
        rests = place_bits(question)
        for token, (first, last) in zip(answer.ids, answer.offsets, strict=True):
            places = int(rests[first:last].max(initial=0))
            tokens[-1] = tokens[-1]._replace(label=token, weight=weight, places=places)
            tokens.append(Token(token))
        return tokens

    def pack(self, scenes: Sequence[Sequence[Fact]], length: int, rng: np.random.Generator) -> Packed:
        """Pack as many questions per scene as fit into the length; a fifth of the runs have a second turn."""
        rows = []
        for scene in scenes:
            runs: list[list[Token]] = []
            room = length - len(self.prefix)
            while True:
                tokens = self.turn(self.draw(scene, rng), later=False)
                if rng.random() < 0.2:
                    tokens += self.turn(self.draw(scene, rng), later=True)
                room -= len(tokens)
                if room < 0:
                    break
                runs.append(tokens)
            rows.append(runs)
        return pack_turns(self.prefix, rows)

    def pack_dialogues(self, dialogues: Sequence[Sequence[Sequence[Fact]]], rng: np.random.Generator) -> Packed:
        """Lay out conversations: one to three turns about every picture, then the next picture."""
        rows = []
        for scenes in dialogues:
            tokens: list[Token] = []
            for number, scene in enumerate(scenes):
                header = self.next_prefix if number else self.prefix
                tokens += [Token(token) for token in header]
                for turn in range(int(rng.integers(1, 4))):
                    tokens += self.turn(self.draw(scene, rng), later=turn > 0)
            rows.append([tokens])
        return pack_turns((), rows)


def pack_turns(prefix: Sequence[int], rows: Sequence[Sequence[Sequence[Token]]]) -> Packed:
    """Lay out runs of tokens behind a common prefix, one row per picture."""
    size = len(prefix)
    shape = (len(rows), size + max(sum(map(len, runs)) for runs in rows))
    ids, labels = np.zeros(shape, np.int64), np.full(shape, IGNORED)
    positions, kinds = np.zeros(shape, np.int64), np.full(shape, IGNORED)
    weights, places = np.zeros(shape, np.float32), np.zeros(shape, np.uint8)
    run_of, asked = np.full(shape, -1), np.full((3, *shape), IGNORED)
    ids[:, :size], positions[:, :size], run_of[:, :size] = prefix, np.arange(size), 0
    for row, runs in enumerate(rows):
        start = size
        for number, tokens in enumerate(runs, 1):
            span = slice(start, start + len(tokens))
            columns = list(zip(*tokens, strict=True))
            ids[row, span], labels[row, span], weights[row, span] = columns[:3]
            places[row, span], kinds[row, span], asked[:, row, span] = columns[3], columns[4], np.array(columns[5]).T
            positions[row, span], run_of[row, span] = np.arange(size, size + len(tokens)), number
            start = span.stop
    arrays: tuple[NDArray[np.generic], ...] = (ids, positions, run_of, labels, weights, places, kinds, asked)
    return Packed(*(torch.from_numpy(values) for values in arrays))
