"""`edge-vl watch`: one question about what a camera shows, again and again."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from edge_vl.cli import options
from edge_vl.cli.interrupt import normal_end
from edge_vl.cli.output import errors_as_json, print_notes
from edge_vl.cli.watching import Watching
from edge_vl.errors import RequestError
from edge_vl.models import find_model
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.view import View

if TYPE_CHECKING:
    from edge_vl.asking import AskOptions
    from edge_vl.sources.source import Source

__all__ = ["watch"]

_CAMERA, _OUT = "Camera", "Output"
_WHEN_MAX_TOKENS = 16
"""Of the answer to a yes/no question: its first word is what counts."""


def watch(
    source: Annotated[
        str,
        typer.Argument(
            help="A picture, folder, pattern or video file; a webcam (0, /dev/video0); a stream (rtsp://, http://); "
            "synthetic or synthetic:WIDTHxHEIGHT@FPS; gst:PIPELINE; csi:0; picamera:0."
        ),
    ],
    question: Annotated[
        str | None, typer.Argument(help="Asked about the newest frame; may be left out with --when.")
    ] = None,
    every_s: Annotated[
        float | None, typer.Option(help="Least seconds from one answer to the next; default: as fast as it goes.")
    ] = None,
    on_motion: Annotated[bool, typer.Option("--on-motion", help="Answer only when something has changed.")] = False,
    max_silence_s: Annotated[
        float, typer.Option(help="With --on-motion: answer after so many seconds all the same.")
    ] = 60.0,
    when: Annotated[
        list[str] | None,
        typer.Option(
            help="A yes/no question about each frame; tells when its answer changes. May be given several times."
        ),
    ] = None,
    when_after: Annotated[int, typer.Option(min=1, help="Equal answers in a row before --when changes.")] = 2,
    max_answers: Annotated[int | None, typer.Option(min=1, help="End after so many answers.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per answer.", rich_help_panel=_OUT)
    ] = False,
    save_dir: Annotated[
        Path | None,
        typer.Option(help="Keep each answer here: the frame as JPEG, the rest as JSON.", rich_help_panel=_OUT),
    ] = None,
    save_max_mib: Annotated[
        float, typer.Option(help="Most that they may take; the oldest go first.", rich_help_panel=_OUT)
    ] = 1024.0,
    save_keep_days: Annotated[
        float | None, typer.Option(help="Delete them after so many days.", rich_help_panel=_OUT)
    ] = None,
    mqtt: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Publish answers: mqtt://user@host/PREFIX/NODE, on PREFIX/NODE/camera/NAME/... The password is in "
            "EDGE_VL_MQTT_PASSWORD. The exit code is 4 if answers could not be published.",
            rich_help_panel=_OUT,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the camera is called.", show_default="camera", rich_help_panel=_CAMERA)
    ] = None,
    rotate: Annotated[int, typer.Option(help="Turn frames clockwise: 0, 90, 180 or 270.", rich_help_panel=_CAMERA)] = 0,
    region: Annotated[
        str | None,
        typer.Option(
            metavar="L,T,R,B",
            help="Look at a part only: left, top, right, bottom edge as shares of the frame, 0 to 1.",
            rich_help_panel=_CAMERA,
        ),
    ] = None,
    max_fps: Annotated[
        float, typer.Option(help="Most frames per second of a camera that are decoded.", rich_help_panel=_CAMERA)
    ] = 15.0,
    read_timeout_s: Annotated[
        float, typer.Option(help="Seconds without a frame after which a camera is offline.", rich_help_panel=_CAMERA)
    ] = 5.0,
    username: Annotated[str | None, typer.Option(help="For a stream.", rich_help_panel=_CAMERA)] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="Holds the stream's password, one line.", rich_help_panel=_CAMERA)
    ] = None,
    loop: Annotated[
        bool, typer.Option("--loop", help="Begin pictures or a recording again at their end.", rich_help_panel=_CAMERA)
    ] = False,
    as_fast_as_possible: Annotated[
        bool,
        typer.Option(
            "--as-fast-as-possible",
            help="Answer every frame of a recording instead of playing it in real time.",
            rich_help_panel=_CAMERA,
        ),
    ] = False,
    model: options.Model = "bundled",
    max_tokens: options.MaxTokens = 256,
    temperature: options.Temperature = 0.0,
    top_p: options.TopP = 1.0,
    seed: options.Seed = 0,
    stop: options.Stop = None,
    deadline_s: Annotated[
        float | None, typer.Option(help="Seconds from the start of an answer until it must be there, or is given up.")
    ] = None,
    max_frame_age_s: Annotated[
        float | None, typer.Option(help="Seconds from when a frame was taken until its answer must be there.")
    ] = None,
    reuse: Annotated[
        Literal["exact", "perceptual", "approximate"],
        typer.Option(help="What of the frame before may be reused; from perceptual on, answers may change."),
    ] = "exact",
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
    """Ask about what a camera, a recording or pictures show, again and again; answers stream to standard output.

    A camera is watched until Ctrl-C (or SIGTERM), which is its normal end: the exit code is 0.
    """
    watching: Watching | None = None
    with errors_as_json(is_wanted=as_json):
        with normal_end(), contextlib.ExitStack() as stack:
            questions = tuple(when or ())
            if question is None and not questions:
                raise RequestError("watch needs a question: edge-vl watch SOURCE QUESTION, or --when", field="question")
            if not find_model(model).has_vision:
                raise RequestError(f"model {model} reads text only; it cannot see frames", field="model")
            settings = CameraSettings(
                max_fps=max_fps,
                read_timeout_s=read_timeout_s,
                view=View(rotate, _region(region)),
            )
            watching = Watching(question, questions, when_after, as_json=as_json, max_answers=max_answers)
            if save_dir is not None:
                from edge_vl.saved_answers import SavedAnswers

                watching.saved = SavedAnswers(save_dir, max_mib=save_max_mib, keep_days=save_keep_days)
            if mqtt is not None:
                from edge_vl.cli.mqtt_extra import check_mqtt_extra

                check_mqtt_extra()
                from edge_vl.cli.watch_publisher import WatchPublisher

                watching.publisher = WatchPublisher(
                    mqtt,
                    name or "camera",
                    trigger="motion" if on_motion else "interval",
                    note=watching.view.note,
                    on_failure=watching.end,
                )
            gate = None
            if on_motion:
                from edge_vl.sources.motion_gate import MotionGate

                gate = MotionGate(max_silence_s=max_silence_s)
            try:
                watching.source = _open(
                    source, settings, username, password_file, name, watching, loop=loop, paced=not as_fast_as_possible
                )
                stack.callback(watching.source.close)

                from edge_vl.runtime import Runtime

                runtime = stack.enter_context(
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
                    )
                )
                print_notes(() if as_json else runtime.notes)
                when_options: AskOptions = {
                    "max_tokens": _WHEN_MAX_TOKENS,
                    "temperature": temperature,
                    "top_p": top_p,
                    "seed": seed,
                    "deadline_s": deadline_s,
                    "degrade": degrade,
                    "reuse": reuse,
                    "stream": "watch",
                }
                asked: AskOptions = {**when_options, "max_frame_age_s": max_frame_age_s, "stop": stop or ()}
                if question is not None:
                    asked["max_tokens"] = max_tokens
                watched = stack.enter_context(
                    runtime.watch(
                        watching.source,
                        watching.question,
                        every_s=every_s,
                        gate=gate,
                        on_event=watching.on_event,
                        **asked,
                    )
                )
                watching.run(runtime, watched, when_options)
            finally:
                watching.finish()
        if watching is not None:
            watching.check_published()


def _open(
    text: str,
    settings: CameraSettings,
    username: str | None,
    password_file: Path | None,
    name: str | None,
    watching: Watching,
    *,
    loop: bool,
    paced: bool,
) -> Source:
    from edge_vl.sources.open import open_source

    password = None
    if password_file is not None:
        from edge_vl.gateway.secret_file import read_secret

        password = read_secret(None, password_file, on_note=watching.view.note)
    return open_source(
        text,
        settings=settings,
        username=username,
        password=password,
        name=name,
        loop=loop,
        paced=paced,
        on_state=watching.on_camera,
    )


def _region(text: str | None) -> tuple[float, float, float, float] | None:
    if text is None:
        return None
    try:
        left, top, right, bottom = (float(part) for part in text.split(","))
    except ValueError:
        raise RequestError(
            f"--region is four numbers from 0 to 1 with commas: 0,0.5,1,1 is the lower half; not {text!r:.60}",
            field="region",
        ) from None
    return left, top, right, bottom
