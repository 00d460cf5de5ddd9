"""`edge-vl chat`: several questions about a picture."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from edge_vl.cli import options
from edge_vl.cli.lines import LineReader
from edge_vl.cli.output import print_answer, print_notes
from edge_vl.errors import ContextLengthError, EdgeVLError, ImageError, Interrupted, RequestError
from edge_vl.models import find_model

__all__ = ["chat"]

_HELP = "/picture PATH shows another picture, /quit leaves; anything else is a question"


def chat(
    picture: Annotated[
        str | None, typer.Argument(help="The picture to talk about; none for a model that reads text only.")
    ] = None,
    model: options.Model = "bundled",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
    deadline_s: options.DeadlineS = None,
    degrade: options.Degrade = True,
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
    """Talk about a picture: one question a line, answers stream to standard output."""
    from edge_vl.pictures import load_picture
    from edge_vl.runtime import Runtime

    has_vision = find_model(model).has_vision
    if has_vision and picture is None:
        raise RequestError("chat needs a picture to talk about: edge-vl chat PICTURE", field="picture")
    if picture is not None:
        if not has_vision:
            raise ImageError(f"model {model} reads text only; it cannot see pictures")
        load_picture(picture)  # a bad picture is reported before the model loads
    with (
        Runtime.open(
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
        ) as runtime,
        runtime.conversation() as conversation,
    ):
        shown = picture
        lines = LineReader()
        print_notes(runtime.notes)
        print(_HELP, file=sys.stderr)
        _prompt()
        while (line := lines.read()) is not None:
            command, _, argument = line.partition(" ")
            try:
                if not line:
                    continue
                if command in {"/quit", "/exit"}:
                    break
                if command == "/picture":
                    load_picture(argument.strip())
                    shown = argument.strip()
                    continue
                if command.startswith("/"):
                    print(_HELP, file=sys.stderr)
                    continue
                with conversation.stream(
                    line,
                    [] if shown is None else shown,
                    max_tokens=max_tokens,
                    temperature=temperature,
                    top_p=top_p,
                    seed=seed,
                    deadline_s=deadline_s,
                    degrade=degrade,
                ) as stream:
                    print_answer(stream)
                shown = None  # the conversation has seen it
            except (ImageError, RequestError, ContextLengthError, Interrupted) as error:
                _complain(error)
            finally:
                _prompt()


def _prompt() -> None:
    """Show that a question may be typed: on standard error, and only where somebody types."""
    if sys.stdin is not None and sys.stdin.isatty():
        print("> ", end="", file=sys.stderr, flush=True)


def _complain(error: EdgeVLError) -> None:
    print(f"edge-vl: {error}", file=sys.stderr)
