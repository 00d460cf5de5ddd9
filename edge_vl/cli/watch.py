"""`edge-vl watch`: one question about what a camera shows, again and again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from edge_vl.cli import options
from edge_vl.cli.interrupt import Interrupt
from edge_vl.cli.output import errors_as_json, print_notes
from edge_vl.cli.watch_record import WhenState, answer_record
from edge_vl.cli.watch_view import WatchView, status_text
from edge_vl.errors import DeadlineExceeded, RequestError
from edge_vl.models import find_model
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.camera_state import CameraState
from edge_vl.sources.view import View

if TYPE_CHECKING:
    from edge_vl.answer import Answer
    from edge_vl.asking import AskOptions
    from edge_vl.cli.watch_publisher import WatchPublisher
    from edge_vl.debounce import Debounce
    from edge_vl.frame import Frame
    from edge_vl.runtime import Runtime
    from edge_vl.saved_answers import SavedAnswers
    from edge_vl.sources.source import Source
    from edge_vl.watch import Watch

__all__ = ["watch"]

_CAMERA, _OUT = "Camera", "Output"
_WHEN_MAX_TOKENS = 16
"""Of the answer to a yes/no question: its first word is what counts."""


def watch(
    source: Annotated[
        str,
        typer.Argument(
            help="A picture, folder, pattern or video file; a webcam (0, /dev/video0); a stream (rtsp://, http://); "
            "synthetic[:WIDTHxHEIGHT][@FPS]; gst:PIPELINE; csi:0; picamera:0."
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
            "EDGE_VL_MQTT_PASSWORD.",
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
    with errors_as_json(is_wanted=as_json), contextlib.ExitStack() as stack:
        questions = tuple(when or ())
        if question is None and not questions:
            raise RequestError("watch needs a question: edge-vl watch SOURCE QUESTION, or --when", field="question")
        if not find_model(model).has_vision:
            raise RequestError(f"model {model} reads text only; it cannot see frames", field="model")
        settings = CameraSettings(max_fps=_positive(max_fps, "max_fps"), view=View(rotate, _region(region)))
        watching = _Watching(question, questions, when_after, as_json=as_json, max_answers=max_answers)
        if save_dir is not None:
            from edge_vl.saved_answers import SavedAnswers

            watching.saved = SavedAnswers(save_dir, max_mib=save_max_mib, keep_days=save_keep_days)
        if mqtt is not None:
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
        except (KeyboardInterrupt, Interrupt):
            pass  # the normal end of a watch
        finally:
            watching.finish()


def _open(
    text: str,
    settings: CameraSettings,
    username: str | None,
    password_file: Path | None,
    name: str | None,
    watching: _Watching,
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


class _Watching:
    """A watch while it runs: what it asks, and where its answers go."""

    def __init__(
        self, question: str | None, when: Sequence[str], after: int, *, as_json: bool, max_answers: int | None
    ) -> None:
        from edge_vl.debounce import Debounce

        self.question = when[0] if question is None else question
        self.source: Source | None = None
        self.saved: SavedAnswers | None = None
        self.publisher: WatchPublisher | None = None
        self._is_first_asked = question is None  # the watch's own question is the first yes/no question
        self._when: dict[str, Debounce] = {text: Debounce(after) for text in when}
        self._max_answers = max_answers
        self._watch: Watch | None = None
        self._first_token_s: float | None = None
        self._began_s = time.monotonic()
        self.view = WatchView(as_json=as_json, shows_text=question is not None, status=self._status)

    def on_event(self, event: Any) -> None:
        self.view.on_event(event)

    def on_camera(self, state: CameraState) -> None:
        self.view.camera(state)
        if self.publisher is not None:
            self.publisher.state(state)

    def end(self) -> None:
        """End it from another thread."""
        if self._watch is not None:
            self._watch.close(0.0)

    def run(self, runtime: Runtime, watch: Watch, when_options: AskOptions) -> None:
        """Answer until the source ends, or there are enough answers."""
        self._watch = watch
        self._began_s = time.monotonic()
        if self.publisher is not None:
            self.publisher.start()
        self.view.start()
        for answer in watch:
            frame = watch.frame
            assert frame is not None
            states = self._ask_when(runtime, frame, answer, when_options)
            self._deliver(watch, answer, frame, states)
            if self._max_answers is not None and watch.counts.answers >= self._max_answers:
                break
        if self.publisher is not None and self.publisher.failure is not None:
            raise self.publisher.failure.again()

    def finish(self) -> None:
        """Take the status line away, say goodbye to the broker, and sum up."""
        self.view.stop()
        if self.publisher is not None:
            self.publisher.close()
        if self._watch is None:
            return
        counts = self._watch.counts
        parts = [f"{counts.answers} answers about {counts.frames} frames in {time.monotonic() - self._began_s:.1f} s"]
        for what in ("dropped", "quiet", "late", "bad"):
            if number := getattr(counts, what):
                parts.append(f"{number} {what}")
        if self.saved is not None:
            failed = f", {self.saved.num_failed} not for lack of room or the like" if self.saved.num_failed else ""
            parts.append(f"{self.saved.num_saved} saved{failed}")
        self.view.note(", ".join(parts))

    def _ask_when(
        self, runtime: Runtime, frame: Frame, answer: Answer, when_options: AskOptions
    ) -> tuple[WhenState, ...]:
        from edge_vl.yes_or_no import yes_or_no

        states = []
        for number, (text, debounce) in enumerate(self._when.items()):
            said: str | None = answer.text
            if number or not self._is_first_asked:
                try:
                    said = runtime.ask(frame, text, **when_options).text
                except DeadlineExceeded:
                    said = None
            changed = debounce.update(None if said is None else yes_or_no(said)) is not None
            states.append(WhenState(text, debounce.state, changed))
        return tuple(states)

    def _deliver(self, watch: Watch, answer: Answer, frame: Frame, states: tuple[WhenState, ...]) -> None:
        self._first_token_s = answer.timings.first_token_s
        record = answer_record(self.question, answer, frame, states, watch.counts)
        if self.saved is not None:
            path = self.saved.save(frame, record)
            record["saved"] = None if path is None else str(path)
        self.view.answered(frame, record)
        if self.publisher is not None:
            self.publisher.answered(self.question, answer, frame, {state.question: state.state for state in states})
            for state in states:
                if state.changed:
                    self.publisher.changed(state.question, state.state, frame)

    def _status(self) -> str:
        watch, source = self._watch, self.source
        if watch is None:
            return "loading"
        state = getattr(source, "state", None)
        latest = getattr(source, "latest", None)
        newest = latest() if latest is not None else watch.frame
        counts = watch.counts
        return status_text(
            camera=state if isinstance(state, CameraState) else None,
            age_s=None if newest is None else time.monotonic() - newest.captured_s,
            first_token_s=self._first_token_s,
            answers=counts.answers,
            dropped=counts.dropped,
            late=counts.late,
            bad=counts.bad,
            quiet=counts.quiet,
            frames=counts.frames,
            elapsed_s=time.monotonic() - self._began_s,
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


def _positive(value: float, field: str) -> float:
    if not 0 < value <= 1000:
        raise RequestError(f"{field} must be above 0 and at most 1000, not {value:g}", field=field)
    return value
