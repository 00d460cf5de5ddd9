"""Traces that tests draw and write."""

from __future__ import annotations

from collections.abc import Sequence

from edge_vl.trace import Span, Timings


def timings_of(
    spans: Sequence[Span], *, tokens: Sequence[float] = (), total_s: float | None = None, mode: str = "serial"
) -> Timings:
    """Return a trace of spans and of the moments of the answer's tokens."""
    ends = [0.0, *(span.start_s + span.duration_s for span in spans), *tokens]
    return Timings(
        spans=tuple(sorted(spans, key=lambda span: span.start_s)),
        first_token_s=tokens[0] if tokens else None,
        total_s=max(ends) if total_s is None else total_s,
        token_s=tuple(tokens),
        schedule={"mode": mode, "reason": "asked for", "numbers": {"encode_s": 0.2}},
    )


def overlapped_trace(*, scale: float = 1.0, num_tokens: int = 20) -> Timings:
    """Return a trace of two tiles and a thumbnail, whose prefill overlaps the next encode, and of an answer."""
    spans = [
        Span("picture", 0.0, 0.01, 0, "picture 1", "caller"),
        Span("tile", 0.01, 0.01, 0, "picture 1, 640x480", "caller"),
        Span("queue", 0.02, 0.001, 0, "", "caller"),
        Span("prefill", 0.021, 0.0, 30, "30 of 240", "language", "kv"),
        Span("encode", 0.021, 0.0, 64, "picture 1 tile 1,1", "vision", "embeds"),
        Span("prefill", 0.021, 0.04, 66, "2 text + 64 image", "language"),
        Span("encode", 0.021, 0.1, 64, "picture 1 tile 1,2", "vision"),
        Span("encode", 0.121, 0.1, 64, "picture 1 thumbnail", "vision"),
        Span("prefill", 0.121, 0.04, 66, "2 text + 64 image", "language"),
        Span("prefill", 0.221, 0.05, 78, "14 text + 64 image", "language"),
    ]
    tokens = [0.271 + 0.02 * index for index in range(num_tokens + 1)]
    spans += [Span("decode", at_s, 0.02, 1) for at_s in tokens[:-1]]
    scaled = [
        Span(
            span.stage,
            span.start_s * scale,
            span.duration_s * scale,
            span.num_tokens,
            span.detail,
            span.lane,
            span.source,
        )
        for span in spans
    ]
    return timings_of(scaled, tokens=[at_s * scale for at_s in tokens], mode="overlapped")
