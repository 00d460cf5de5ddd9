"""What the commands print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from edge_vl.answer import Answer
from edge_vl.answer_stream import AnswerStream
from edge_vl.cli.terminal_text import terminal_json
from edge_vl.errors import EdgeVLError

__all__ = ["errors_as_json", "print_answer", "print_notes", "print_timings"]


@contextmanager
def errors_as_json(*, is_wanted: bool) -> Iterator[None]:
    """Print an error as the one JSON object that a script waits for, then let it go on to the exit code."""
    try:
        yield
    except EdgeVLError as error:
        if is_wanted:
            facts = {"type": type(error).__name__, "message": str(error)}
            facts |= {name: getattr(error, name) for name in ("stage", "text") if hasattr(error, name)}
            print(terminal_json(json.dumps({"error": facts}, ensure_ascii=False)))
        raise


def print_answer(stream: AnswerStream) -> None:
    """Stream an answer to standard output, and what the model thinks first to standard error."""
    for token in stream:
        out = sys.stdout if token.kind == "text" else sys.stderr
        print(token.text, end="", file=out, flush=True)
    print(flush=True)


def print_notes(notes: Sequence[str]) -> None:
    """Print to standard error what is not as the device profile wants it, before the answer."""
    for note in notes:
        print(f"edge-vl: note: {note}", file=sys.stderr)


def print_timings(answer: Answer, *, loaded_s: float) -> None:
    """Print the trace of an answer to standard error, and how long the model took to load before it."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    timings = answer.timings
    lanes = [f"{answer.language_engine} {answer.dtypes['language']} speaks"]
    if answer.vision_engine:
        lanes.insert(0, f"{answer.vision_engine} {answer.dtypes['vision']} sees")
    table = Table(title=f"{answer.model}, profile {answer.profile}: {', '.join(lanes)}", title_justify="left")
    for heading in ("start", "took", "tokens", "lane", "stage"):
        table.add_column(heading, justify="left" if heading in ("lane", "stage") else "right")
    spans = [span for span in timings.spans if span.stage != "decode"]
    for span in spans:
        is_reused = span.source != "computed"
        tokens = str(span.num_tokens) if span.num_tokens else ""
        took = "reused" if is_reused else _ms(span.duration_s)
        what = escape(f"{span.stage}: {span.detail}".rstrip(": "))
        table.add_row(_ms(span.start_s), took, tokens, span.lane, f"{what}, from {span.source}" if is_reused else what)
    if timings.first_token_s is not None:
        table.add_row(_ms(timings.first_token_s), "", "", "", "first token")
    steps = [span for span in timings.spans if span.stage == "decode"]
    if steps:
        decode_s = timings.stage_s("decode")
        took, each = _ms(decode_s), _ms(decode_s / len(steps))
        table.add_row(_ms(steps[0].start_s), took, str(len(steps)), "language", f"decode, {each} each")
    console = Console(stderr=True)
    console.print(table)
    for note in timings.schedule.get("engine_notes", ()):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    rate = f", {timings.tokens_per_s:.0f} tokens/s" if timings.tokens_per_s else ""
    usage = answer.usage
    console.print(
        f"{_ms(timings.total_s)} in all, after {_ms(loaded_s)} of loading{rate}\n"
        f"prompt {usage.prompt_tokens} tokens ({usage.image_tokens} of pictures), "
        f"answer {usage.completion_tokens}; finished by {answer.finish_reason}",
        highlight=False,
    )
    schedule = timings.schedule
    if "mode" in schedule:
        console.print(
            f"mode {schedule['mode']}: {schedule.get('reason', '')}\n"
            f"lanes overlap {timings.overlap_ratio:.0%}, prompt reused {timings.reuse_rate:.0%}",
            highlight=False,
            markup=False,
        )


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
