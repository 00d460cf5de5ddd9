"""`edge-vl ask`: one question about one or more pictures."""

from __future__ import annotations

import io
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from edge_vl.cli import options
from edge_vl.cli.output import errors_as_json, print_answer, print_notes, print_timings
from edge_vl.cli.trace_files import TraceFiles
from edge_vl.errors import EdgeVLError, ImageError, RequestError
from edge_vl.models import find_model

__all__ = ["ask", "read_picture"]

MAX_STDIN_BYTES = 64 * 1024 * 1024


def ask(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="PICTURE... QUESTION",
            help="Pictures (- reads standard input; none for a text-only model), then the question.",
        ),
    ],
    model: options.Model = "bundled",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
    stop: options.Stop = None,
    deadline_s: options.DeadlineS = None,
    degrade: options.Degrade = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show where the time went.")] = False,
    trace: options.TracePath = None,
    waterfall: options.WaterfallPath = None,
    profile: options.Profile = "auto",
    vision_engine: options.VisionEngine = "auto",
    language_engine: options.LanguageEngine = "auto",
    vision_dtype: options.VisionDtype = "auto",
    language_dtype: options.LanguageDtype = "auto",
    kv: options.KV = "auto",
    threads: options.Threads = None,
    context_length: options.ContextLength = None,
    memory_budget_mib: options.MemoryBudgetMib = None,
    mode: options.Mode = "profile",
) -> None:
    """Ask a question about one or more pictures; the answer streams to standard output."""
    with errors_as_json(is_wanted=as_json):
        *names, question = words
        _check_words(names, question, has_vision=find_model(model).has_vision)
        files = TraceFiles(trace, waterfall)
        files.check([name for name in names if _is_file(name)])
        pictures = [read_picture(name) for name in names]

        from edge_vl.runtime import Runtime

        began_s = time.monotonic()
        with Runtime.open(
            model,
            profile=profile,
            vision_engine=vision_engine,
            language_engine=language_engine,
            vision_dtype=vision_dtype,
            language_dtype=language_dtype,
            kv=kv,
            threads=threads,
            context_length=context_length,
            memory_budget_mib=memory_budget_mib,
            mode=mode,
        ) as runtime:
            loaded_s = time.monotonic() - began_s
            if not as_json:
                print_notes(runtime.notes)
            with runtime.stream(
                pictures,
                question,
                max_tokens=max_tokens,
                temperature=temperature,
                top_p=top_p,
                seed=seed,
                stop=stop or (),
                deadline_s=deadline_s,
                degrade=degrade,
            ) as stream:
                try:
                    if as_json:
                        print(json.dumps(stream.answer.to_dict(), ensure_ascii=False))
                    else:
                        print_answer(stream)
                except EdgeVLError as error:
                    files.write_failed(stream.timings, error, question)
                    raise
                if verbose:
                    print_timings(stream.answer, loaded_s=loaded_s)
                files.write(stream.answer, question)


class StandardInput(io.BytesIO):
    """What standard input held; the name stands in error messages."""

    name = "standard input"


def read_picture(name: str) -> str | StandardInput:
    """Return a path as it is, and what standard input holds for `-`."""
    if name != "-":
        return name
    if sys.stdin is None:
        raise ImageError("standard input is closed, so it holds no picture", detected="nothing")
    data = sys.stdin.buffer.read(MAX_STDIN_BYTES + 1)
    if len(data) > MAX_STDIN_BYTES:
        raise ImageError(f"standard input holds more than {MAX_STDIN_BYTES} bytes", detected="too many bytes")
    return StandardInput(data)


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a zero character
        return False


def _check_cameras(names: list[str], question: str) -> None:
    """Refuse what is a camera or an address, with the command that answers about it."""
    from edge_vl.sources.address import masked
    from edge_vl.sources.open import names_camera

    for name in names:
        if names_camera(name):
            shown = shlex.join([masked(name), question])
            what = "an address" if "://" in name else "a camera"
            raise RequestError(
                f"{masked(name)} is {what}, not a picture; for one answer about what a camera shows now: "
                f"edge-vl watch {shown} --max-answers 1",
                field="words",
            )


def _check_words(names: list[str], question: str, *, has_vision: bool) -> None:
    if not names and has_vision:
        raise RequestError(
            "ask needs a picture and a question, the question last: edge-vl ask PICTURE... QUESTION", field="words"
        )
    if names.count("-") > 1:
        raise RequestError("standard input (-) holds one picture only", field="words")
    if question == "-" or _is_file(question):
        raise RequestError(
            f"the last argument is the question, but {question!r} is a picture; give the question behind it",
            field="words",
        )
    missing = [name for name in names if name != "-" and not _is_file(name)]
    if missing:
        _check_cameras(missing, question)
    missing = missing[int(missing[:1] == names[:1]) :]  # what is wrong with the first one is told by who reads it
    if missing and "." not in missing[0]:
        raise RequestError(f"there is no picture {missing[0]!r}; put the question in quotes", field="words")
