"""Both lanes of a runtime, loaded."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from edge_vl.engine import LanguageModel, VisionEncoder
from edge_vl.lane import Lane

__all__ = ["Lanes"]


@dataclass(slots=True, eq=False)
class Lanes:
    """What sees and what speaks, each with the lane that it runs on.

    Attributes:
        model: name of the model.
        vision: the encoder; None for a model that reads text only.
        vision_lane: where it runs.
        language: the language model.
        language_lane: where it runs; the scheduler's loop itself runs there, too.
        profile: id of the device profile that chose them.
        notes: what is not as that profile wants it.
        load_vision: loads the encoder once more.
        load_language: loads the language model once more.
        num_abandoned: threads that hang in a native call and cannot be ended.
    """

    model: str
    vision: VisionEncoder | None
    vision_lane: Lane
    language: LanguageModel
    language_lane: Lane
    profile: str = ""
    notes: tuple[str, ...] = ()
    load_vision: Callable[[], VisionEncoder] | None = None
    load_language: Callable[[], LanguageModel] | None = None
    num_abandoned: int = 0
    _sees: bool = True
    _speaks: bool = True
    _retired: list[Lane] = field(default_factory=list)

    def encoder_on(self, lane: Lane) -> VisionEncoder | None:
        """Return the encoder that may be called on a lane; None: there is none."""
        return self.vision if lane is self.vision_lane and self._sees else None

    def replace_vision(self, *, is_hung: bool, reload: bool) -> Future[None]:
        """Give up the vision lane and begin another one.

        Args:
            is_hung: the old thread does not come back; otherwise the old encoder is closed on it.
            reload: load the encoder once more; otherwise the new lane stays empty.

        Returns:
            Done when the encoder is there; an error of loading arrives in it.
        """
        old, load = self.vision, self.load_vision
        self._retire(self.vision_lane, None if old is None else old.close, is_hung=is_hung)
        self.vision_lane, self._sees = Lane("vision"), False

        def begin() -> None:
            if reload and load is not None:
                self.vision, self._sees = load(), True

        return self.vision_lane.submit(begin)

    def replace_language(self, *, is_hung: bool, reload: bool) -> Future[None]:
        """Give up the language lane and begin another one; as `replace_vision`."""
        load = self.load_language
        self._retire(self.language_lane, self.language.close, is_hung=is_hung)
        self.language_lane, self._speaks = Lane("language"), False

        def begin() -> None:
            if reload and load is not None:
                self.language, self._speaks = load(), True

        return self.language_lane.submit(begin)

    def _retire(self, lane: Lane, close: Callable[[], None] | None, *, is_hung: bool) -> None:
        """Close what a lane had behind whatever it still does; a hung one does so if it ever comes back."""
        if close is not None:
            lane.submit(close)
        lane.finish()
        if is_hung:
            self.num_abandoned += 1
        else:
            self._retired.append(lane)

    def finish(self) -> None:
        """Close the encoder and the language model behind whatever is queued, and take no more jobs. Does not wait."""
        self.language_lane.submit(lambda: self.language.close() if self._speaks else None)
        self.language_lane.finish()
        self.vision_lane.submit(lambda: self.vision.close() if self.vision is not None and self._sees else None)
        self.vision_lane.finish()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait for the end of both lanes, at most `timeout_s` for each. After `finish`."""
        self.language_lane.close(timeout_s)
        self.vision_lane.close(timeout_s)
        for lane in self._retired:
            lane.close(timeout_s)
