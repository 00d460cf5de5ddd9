"""Scripts of questions with trouble in between, and asking them of a runtime on the bundled model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_vl import Cancelled, EngineFault, Runtime
from edge_vl.answer_stream import AnswerStream
from edge_vl.conversation import Conversation
from edge_vl.engine import LaneOptions, LanguageModel, Tokenizer, VisionEncoder
from edge_vl.families.idefics3 import Idefics3
from edge_vl.frame import Frame
from edge_vl.lane import Lane
from edge_vl.lanes import Lanes
from edge_vl.message import Message
from edge_vl.mode_choice import Mode
from edge_vl.models import find_model
from edge_vl.plan import ImageGrid, Plan
from edge_vl.scheduler_limits import SchedulerLimits
from tests.conftest import flush
from tests.recording import Recorded, Recording, RecordingLanguage, RecordingVision, Stage, Trouble

__all__ = [
    "ENGINES",
    "QUESTIONS",
    "Asked",
    "EveryGrid",
    "Outcome",
    "Shown",
    "ask_all",
    "asking",
    "differing",
    "load",
    "script",
]

ENGINES = ("onnxruntime", "llama_cpp")

QUESTIONS = (
    "What color is the circle?",
    "How many shapes are there?",
    "Is there a red square?",
    "Describe the picture.",
    "What is at the top left?",
    "Which one is larger?",
)

SIZES = {
    (48, 64): (1, 0.45),
    (64, 128): (3, 0.22),
    (60, 190): (4, 0.08),
    (96, 96): (5, 0.06),
    (96, 288): (5, 0.04),
    (128, 128): (5, 0.06),
    (128, 256): (9, 0.04),
    (192, 192): (10, 0.02),
    (960, 1280): (13, 0.01),
    (256, 256): (17, 0.02),
}
"""Height and width of pictures: how many units they give, and how often they come."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A picture.

    Attributes:
        seed: of its noise.
        height: rows.
        width: columns.
        is_changed: its lower right corner differs: of the units mostly the last tile and the thumbnail.
    """

    seed: int
    height: int
    width: int
    is_changed: bool = False

    def pixels(self) -> NDArray[np.uint8]:
        """Return uint8 (height, width, 3)."""
        pixels = np.random.default_rng(self.seed).integers(0, 256, (self.height, self.width, 3), np.uint8)
        if self.is_changed:
            pixels[-8:, -8:] ^= 0xFF
        return pixels


@dataclass(frozen=True, slots=True)
class Asked:
    """One question of a script.

    Attributes:
        pictures: shown with it.
        question: asked.
        max_tokens: of the answer.
        talk: number of the conversation that it is a turn of; None: it stands alone.
        trouble: what goes wrong.
    """

    pictures: tuple[Shown, ...]
    question: str
    max_tokens: int
    talk: int | None = None
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What came of one question.

    Attributes:
        result: what came.
        stage: where the fault was; empty where there was none.
        happened: where trouble that was planned happened; empty where there was none.
        order: of the engine's calls.
        text: of the answer.
        plan: of the prompt.
        recorded: logits, from behind the prompt to the last token.
    """

    result: Literal["answered", "cancelled", "failed"]
    stage: str
    happened: str
    order: str
    text: str
    plan: Plan
    recorded: tuple[Recorded, ...]

    @property
    def is_answered(self) -> bool:
        """Whether there is an answer."""
        return self.result == "answered"


class EveryGrid(Idefics3):
    """The bundled model's family, with tiles for pictures up to 256 pixels: from one unit to seventeen.

    Attributes:
        plans: laid out so far.
    """

    def __init__(self) -> None:
        """Read the bundled model's settings."""
        super().__init__(find_model("bundled"))
        self.plans: list[Plan] = []

    def tile(self, frame: Frame, longest_edge: int | None = None) -> ImageGrid:
        """Cut a picture without making it larger."""
        return super().tile(frame, longest_edge or min(256, max(frame.height, frame.width)))

    def layout(self, messages: Sequence[Message], tokenizer: Tokenizer) -> Plan:
        """Lay out, and keep the plan."""
        plan = super().layout(messages, tokenizer)
        self.plans.append(plan)
        return plan


def script(seed: int, count: int, *, trouble: float = 0.3, changes: bool = False) -> list[Asked]:
    """Return a random script.

    Args:
        seed: of all that is random.
        count: questions, at least; a conversation is not broken off.
        trouble: share of questions that are cancelled or fail.
        changes: whether pictures come back with one corner changed.
    """
    random = np.random.default_rng(seed)
    asked: list[Asked] = []
    seen: list[Shown] = []
    num_talks = 0

    def picture() -> Shown:
        height, width = list(SIZES)[random.choice(len(SIZES), p=[share for _, share in SIZES.values()])]
        one = Shown(int(random.integers(1 << 30)), height, width)
        seen.append(one)
        return one

    def again() -> Shown:
        one = seen[-1 - int(random.integers(min(5, len(seen))))]
        return Shown(one.seed, one.height, one.width, is_changed=changes and bool(random.integers(2)))

    def pictures() -> tuple[Shown, ...]:
        kind = random.random()
        if kind < 0.2:
            return ()
        if kind < 0.45 and seen:
            return (again(),)
        if kind < 0.55:
            return tuple(picture() for _ in range(int(random.integers(2, 4))))
        return (picture(),)

    def mishap(shown: tuple[Shown, ...]) -> Trouble | None:
        if random.random() >= trouble:
            return None
        stages: list[Stage] = ["encode", "encode", "prefill", "prefill", "decode"]
        kinds: list[Literal["cancel", "raise", "nan"]] = ["cancel", "cancel", "raise", "nan"]
        stage, kind = stages[random.integers(len(stages))], kinds[random.integers(len(kinds))]
        num_units = sum(SIZES[one.height, one.width][0] for one in shown)
        most = {"encode": max(1, num_units), "prefill": num_units + 1, "decode": 3}[stage]
        return Trouble("raise" if (kind, stage) == ("nan", "prefill") else kind, stage, int(random.integers(most)) + 1)

    def question() -> str:
        return str(random.choice(QUESTIONS))

    while len(asked) < count:
        if random.random() > 0.08:
            shown = pictures()
            asked.append(Asked(shown, question(), int(random.integers(1, 5)), None, mishap(shown)))
            continue
        num_talks += 1
        for number in range(int(random.integers(2, 4))):
            shown = (picture(),) if number == 0 or random.random() < 0.2 else ()
            went_wrong = mishap(shown)
            if went_wrong is not None:  # whoever is not answered asks about the same picture again
                asked.append(Asked(shown, question(), 3, num_talks, went_wrong))
            asked.append(Asked(shown, question(), 3, num_talks))
    return asked


def load(engine: str) -> tuple[VisionEncoder, LanguageModel]:
    """Load both lanes of the bundled model with one thread each."""
    factory = import_module(f"edge_vl_{engine}").engine
    model, options = find_model("bundled"), LaneOptions(threads=1)
    return factory.load_vision(model, options), factory.load_language(model, options)


@dataclass(frozen=True, slots=True, eq=False)
class Asking:
    """A runtime that writes down what it does.

    Attributes:
        runtime: on the bundled model.
        recording: what its lanes write.
        family: has its plans.
        vision_lane: where units are encoded.
    """

    runtime: Runtime
    recording: Recording
    family: EveryGrid
    vision_lane: Lane

    def ask(self, one: Asked, talk: Conversation | None) -> Outcome:
        """Ask, wait for what comes of it, and return that."""
        recording = self.recording
        if one.trouble is not None:  # the vision lane may still work for a request that was cancelled
            self.vision_lane.submit(lambda: None).result()
        recording.begin(one.trouble)
        options: Any = {"max_tokens": one.max_tokens, "cancel": recording.cancel}
        pictures = [shown.pixels() for shown in one.pictures]
        stream: AnswerStream
        if talk is None:
            stream = self.runtime.stream(pictures, one.question, **options)
        else:
            stream = talk.stream(one.question, pictures, **options)
        plan = self.family.plans[-1]
        result: Literal["answered", "cancelled", "failed"] = "answered"
        text = stage = ""
        try:
            text = stream.answer.text
        except Cancelled:
            result = "cancelled"
        except EngineFault as error:
            result, stage = "failed", error.stage
        if result != "answered":
            flush(self.runtime)  # a pass that runs belongs to this request
        return Outcome(result, stage, recording.happened, recording.order, text, plan, recording.end())


@contextmanager
def asking(engine: str, mode: Mode, limits: SchedulerLimits) -> Iterator[Asking]:
    """Open a recording runtime."""
    recording, family = Recording(), EveryGrid()
    vision_lane, language_lane = Lane("vision"), Lane("language")
    factory = import_module(f"edge_vl_{engine}").engine
    model, options = find_model("bundled"), LaneOptions(threads=1)
    vision = vision_lane.submit(factory.load_vision, model, options).result()
    language = language_lane.submit(factory.load_language, model, options).result()
    lanes = Lanes(
        "bundled",
        RecordingVision(vision, recording),
        vision_lane,
        RecordingLanguage(language, recording),
        language_lane,
    )
    with Runtime(model, family, lanes, mode=mode, limits=limits) as runtime:
        flush(runtime)
        yield Asking(runtime, recording, family, vision_lane)


def ask_all(
    engine: str,
    mode: Mode,
    questions: Sequence[Asked],
    limits: SchedulerLimits,
    *,
    spoiled_key: str = "",
) -> tuple[list[Outcome], int]:
    """Ask all questions of a script of one runtime, one after the other.

    Args:
        engine: of both lanes.
        mode: how the lanes take turns.
        questions: the script.
        limits: of the scheduler.
        spoiled_key: content key of a unit whose embeds come out a little different.

    Returns:
        What came of them, and how often one lane began to work while the other did.
    """
    outcomes: list[Outcome] = []
    with asking(engine, mode, limits) as asker:
        asker.recording.spoiled_key = spoiled_key
        number: int | None = None
        talk: Conversation | None = None
        for one in questions:
            if one.talk != number and talk is not None:
                talk.close()
                talk = None
            if one.talk is not None and talk is None:
                talk = asker.runtime.conversation()
            number = one.talk
            outcomes.append(asker.ask(one, talk))
        if talk is not None:
            talk.close()
    return outcomes, asker.recording.num_beside


def differing(one: Sequence[Outcome], other: Sequence[Outcome]) -> dict[int, Literal["result", "borders", "logits"]]:
    """Return the questions whose outcomes differ, and in what; logits are compared bit by bit."""
    found: dict[int, Literal["result", "borders", "logits"]] = {}
    for number, (left, right) in enumerate(zip(one, other, strict=True)):
        if (left.result, left.text) != (right.result, right.text):
            found[number] = "result"
        elif not left.is_answered:
            continue
        elif [each.history for each in left.recorded] != [each.history for each in right.recorded]:
            found[number] = "borders"
        elif any(a.logits.tobytes() != b.logits.tobytes() for a, b in zip(left.recorded, right.recorded, strict=True)):
            found[number] = "logits"
    return found
