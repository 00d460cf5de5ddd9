"""What is done to the pictures of a question before it is queued, on the thread of whoever asks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from edge_vl.asking import picture_list
from edge_vl.co_scheduler import CoScheduler
from edge_vl.costs import Costs
from edge_vl.decoding_turns import DecodingTurns
from edge_vl.engine import Tokenizer
from edge_vl.errors import ImageError, RequestError
from edge_vl.families import Family
from edge_vl.frame import Frame
from edge_vl.grid_cache import GridCache
from edge_vl.ladder import Rung, RungChoice, margin_of, pick_rung
from edge_vl.message import Message
from edge_vl.option_checks import require_text
from edge_vl.picture_limits import PictureLimits
from edge_vl.pictures import Picture, load_picture
from edge_vl.plan import ImageGrid
from edge_vl.request import Request
from edge_vl.tile_memory import TileMemory

__all__ = ["Preparation"]

_MARKUP_TOKENS = 24
"""What a template and markers add to a question, roughly."""


class Preparation:
    """Decodes pictures, cuts them, and sees to it that what is left to be done can be done in time. Any thread."""

    def __init__(
        self, model: str, family: Family, tokenizer: Tokenizer, scheduler: CoScheduler, limits: PictureLimits
    ) -> None:
        """Keep what it looks at. `close` lets go of the pictures that it keeps."""
        self._model = model
        self._family = family
        self._tokenizer = tokenizer
        self._scheduler = scheduler
        self._limits = limits
        self._turns = DecodingTurns(limits.max_pixels_at_once)
        self._tiles = TileMemory()
        self._grids = GridCache(scheduler.limits.max_grids_bytes)

    def close(self) -> None:
        """Let go of pictures."""
        self._grids.clear()
        self._tiles.clear()

    def message(
        self,
        request: Request,
        pictures: Picture | Sequence[Picture] | None,
        question: str,
        *,
        bgr: bool,
        has_vision: bool,
    ) -> Message:
        """Return the message of one turn.

        Raises:
            RequestError: there is no question.
            ImageError: a picture cannot be used.
            Settled: it came too late, or was cancelled.
        """
        require_text(question, "question")
        if not question.strip():
            raise RequestError("the question is empty", field="question")
        if pictures is None and has_vision:
            raise ImageError(
                "there is no picture: None was given, as a camera's latest() gives before its first frame and while it "
                "is offline; for a question without a picture pass an empty list []",
                detected="None",
            )
        grids: list[ImageGrid] = []
        before_s = 0.0
        for index, picture in enumerate(picture_list(pictures)):
            if not has_vision:
                raise ImageError(f"model {self._model} reads text only; it cannot see pictures", index=index)
            request.begin("picture")
            with self._turns.turn(request.check) as wait_turn:
                with request.trace.span("picture", detail=f"picture {index + 1}"):
                    frame = load_picture(picture, bgr=bgr, index=index, limits=self._limits, before_decoding=wait_turn)
                if not isinstance(frame.captured_s, float | int) or not math.isfinite(frame.captured_s):
                    found = f"captured_s is {frame.captured_s!r:.40}"
                    raise ImageError(f"picture {index + 1}: {found}, not seconds on the monotonic clock", index=index)
                request.note_captured(frame.captured_s)
                request.begin("tile")
                with request.trace.span("tile", detail=f"picture {index + 1}, {frame.width}x{frame.height}"):
                    grid, cost_s = self._cut(request, frame, index, question, before_s)
                del frame  # its pixels are not needed any more, and the next one's turn may come
            before_s += cost_s
            grids.append(grid)
        return Message("user", (*grids, question))

    def _cut(
        self, request: Request, frame: Frame, index: int, question: str, before_s: float
    ) -> tuple[ImageGrid, float]:
        """Cut a picture, into fewer units if the deadline would not hold otherwise; return the predicted time, too."""
        whole = self._grids.cut(frame, None, self._family.tile)
        grid, num_similar = self._as_before(request, whole, index, None)
        cost_s = 0.0
        if request.remaining_s is not None and request.generation.degrade:
            choice, cost_s = self._choice(request, frame, grid, question, before_s)
            if choice is not None:
                request.degraded += (f"picture {index + 1}: {choice.reason}",)
                longest_edge = choice.rung.longest_edge
                smaller = self._grids.cut(frame, longest_edge, self._family.tile)
                grid, num_similar = self._as_before(request, smaller, index, longest_edge)
        request.num_similar += num_similar
        return grid, cost_s

    def _choice(
        self, request: Request, frame: Frame, grid: ImageGrid, question: str, before_s: float
    ) -> tuple[RungChoice | None, float]:
        """Choose a smaller setting for a picture where the whole would come too late.

        Args:
            request: has a deadline.
            frame: the picture.
            grid: of its best setting.
            question: about it.
            before_s: predicted time for the pictures before it.

        Returns:
            The choice, None for the best setting, and what it adds to the request.
        """
        costs = self._scheduler.book.snapshot()
        usual = costs.answer_tokens
        answer_tokens = None if usual is None else min(usual, float(request.generation.max_tokens))
        text_tokens = len(self._tokenizer.encode_text(question)) + _MARKUP_TOKENS
        rungs = self._family.rungs(frame)
        best, others_s = rungs[0], before_s + self._scheduler.backlog_s()
        remaining_s = request.remaining_s or 0.0
        num_missing = self._scheduler.num_missing(grid.units)
        if num_missing < len(grid.units):  # some are there already, so it costs less than it looks
            cost_s = costs.request_s(best.shape, num_missing, text_tokens + best.num_image_tokens, answer_tokens)
            if cost_s is None or (others_s + cost_s) * (1 + margin_of(costs)) <= remaining_s:
                return None, _picture_s(costs, best, num_missing)
        choice = pick_rung(
            rungs,
            costs,
            text_tokens=text_tokens,
            answer_tokens=answer_tokens,
            remaining_s=remaining_s,
            queue_s=others_s,
        )
        if choice.rung is best:
            return None, _picture_s(costs, best, num_missing)
        return choice, _picture_s(costs, choice.rung, choice.rung.num_units)

    def _as_before(
        self, request: Request, grid: ImageGrid, index: int, longest_edge: int | None
    ) -> tuple[ImageGrid, int]:
        """Let units that look like those encoded last be those, where the caller allows it; return how many did."""
        generation = request.generation
        if generation.reuse == "exact":
            return grid, 0
        return self._tiles.of(generation.stream, index, longest_edge).replace(grid)


def _picture_s(costs: Costs, rung: Rung, num_units: int) -> float:
    """Predict what a picture adds to a request; 0 where that is not known."""
    return costs.request_s(rung.shape, num_units, rung.num_image_tokens, 1.0) or 0.0
