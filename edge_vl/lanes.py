"""Both lanes of a runtime, loaded."""

from __future__ import annotations

from dataclasses import dataclass

from edge_vl.engine import LanguageModel, VisionEncoder
from edge_vl.lane import Lane

__all__ = ["Lanes"]


@dataclass(frozen=True, slots=True)
class Lanes:
    """What sees and what speaks, each with the lane that it runs on.

    Attributes:
        model: name of the model.
        vision: the encoder; None for a model that reads text only.
        vision_lane: where it runs.
        language: the language model.
        language_lane: where it runs; the serial loop itself runs there, too.
        profile: id of the device profile that chose them.
        notes: what is not as that profile wants it.
    """

    model: str
    vision: VisionEncoder | None
    vision_lane: Lane
    language: LanguageModel
    language_lane: Lane
    profile: str = ""
    notes: tuple[str, ...] = ()

    def finish(self) -> None:
        """Close the encoder and the language model behind whatever is queued, and take no more jobs. Does not wait."""
        self.language_lane.submit(self.language.close)
        self.language_lane.finish()
        if self.vision is not None:
            self.vision_lane.submit(self.vision.close)
        self.vision_lane.finish()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of both lanes, at most `timeout_s` for each. After `finish`."""
        self.language_lane.close(timeout_s)
        self.vision_lane.close(timeout_s)
