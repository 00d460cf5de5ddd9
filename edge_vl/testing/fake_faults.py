"""Planned misbehaviour of the fake engine, and its memory of what was called."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["FakeCall", "FakeFault", "FakeLatencies", "Stage"]

Stage = Literal["load_vision", "load_language", "encode", "prefill", "decode"]


@dataclass(frozen=True, slots=True)
class FakeLatencies:
    """How long the stages take, in seconds; all zero by default.

    Attributes:
        load_s: either load.
        encode_s: one unit.
        prefill_s: one call of prefill.
        prefill_token_s: each token of it, on top.
        decode_s: one token.
    """

    load_s: float = 0.0
    encode_s: float = 0.0
    prefill_s: float = 0.0
    prefill_token_s: float = 0.0
    decode_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class FakeFault:
    """One planned misbehaviour.

    Attributes:
        stage: where.
        at: in which call of that stage, counted from 0 over the life of the engine.
        times: in how many calls in a row.
        kind: `raise` an `EngineFault` (or `error`), return `nan`s, return a `wrong_shape`, or `hang` until released.
        error: raised in place of an `EngineFault`.
        reached: set when the call is there, so that a test need not sleep.
        release: set it to let a hanging call go on.
    """

    stage: Stage
    at: int = 0
    times: int = 1
    kind: Literal["raise", "nan", "wrong_shape", "hang"] = "raise"
    error: BaseException | None = None
    reached: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class FakeCall:
    """One call that the fake engine got.

    Attributes:
        stage: which.
        num_tokens: entries appended by a prefill or decode; image tokens made by an encode.
        token_ids: the token of a decode, the text tokens of a prefill.
        key: content key of an encoded unit.
        thread_id: `threading.get_ident()` of the caller.
        want_logits: of a prefill.
    """

    stage: Stage
    num_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    key: str = ""
    thread_id: int = 0
    want_logits: bool = True
