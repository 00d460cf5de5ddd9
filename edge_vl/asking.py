"""The options that every way of asking takes."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, TypedDict

from edge_vl.errors import RequestError
from edge_vl.request import CancelFlag, Generation, Reuse
from edge_vl.sampling import Sampling

__all__ = ["AskOptions", "generation_of", "picture_list"]


class AskOptions(TypedDict, total=False):
    """Options of one question. Every one may be left out.

    Attributes:
        max_tokens: most tokens of the answer; 256.
        temperature: 0 takes the most likely token; 0.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the most likely tokens up to this probability; 1.
        min_p: drop tokens less likely than this share of the most likely one; 0.
        repetition_penalty: above 1 avoids tokens of the answer so far; 1.
        seed: equal seeds give equal answers; 0.
        stop: a string or several that end the answer and are not part of it.
        deadline_s: seconds from the call until the whole answer must be there; no limit.
        cancel: a `threading.Event` or the like, looked at between units of work.
        bgr: arrays have OpenCV's channel order; False.
        max_frame_age_s: seconds from the moment the picture was taken until the whole answer must be there; no limit.
        reuse: what of the frame before may be reused: `exact`: what is equal; `perceptual`: also tiles that look the
            same; `approximate`: also the KV cache behind a changed tile. The last two may change answers.
        stream: name of the stream of frames it belongs to; its requests share device time and remember its tiles.
        share: weight of that stream against others; 1.
        early_tokens: most tokens of kind `early` shown before the whole picture is in; 0.
        degrade: fewer tiles where the deadline would not hold otherwise; True.
    """

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    seed: int
    stop: str | Sequence[str]
    deadline_s: float | None
    cancel: CancelFlag | None
    bgr: bool
    max_frame_age_s: float | None
    reuse: Reuse
    stream: str
    share: float
    early_tokens: int
    degrade: bool


_SCHEDULING = ("max_frame_age_s", "reuse", "stream", "share", "early_tokens", "degrade")
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")


def generation_of(options: AskOptions, *, others: Sequence[str] = ()) -> Generation:
    """Check the options of a question.

    Args:
        options: see `AskOptions`.
        others: what the caller takes besides; for the error about an option that nobody knows.

    Raises:
        RequestError: an option is unknown, or its value makes no sense.
    """
    given: dict[str, Any] = dict(options)
    unknown = sorted(set(given) - set(AskOptions.__annotations__))
    if unknown:
        known = (*others, *AskOptions.__annotations__)
        close = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ";"
        raise RequestError(f"unknown option {unknown[0]!r:.60}{hint} Known: {', '.join(known)}", field=unknown[0])
    stop = given.get("stop") or ()
    if not isinstance(stop, (str, Sequence)):
        raise RequestError(f"stop must be a string or several, not a {type(stop).__name__}", field="stop")
    return Generation(
        sampling=Sampling(**{name: given[name] for name in _SAMPLING if name in given}),
        max_tokens=given.get("max_tokens", 256),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        deadline_s=given.get("deadline_s"),
        cancel=given.get("cancel"),
        **{name: given[name] for name in _SCHEDULING if name in given},
    )


def picture_list(pictures: Any) -> list[Any]:
    """Return one picture, several, or none as a list. An array is always one picture."""
    if pictures is None:
        return []
    return list(pictures) if isinstance(pictures, (list, tuple)) else [pictures]
