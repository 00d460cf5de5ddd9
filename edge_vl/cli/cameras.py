"""`edge-vl cameras`: which cameras are there, and what to call them."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from edge_vl.cli.exit_codes import ANSWERED, BAD_INPUT
from edge_vl.cli.terminal_text import terminal_json, terminal_line

if TYPE_CHECKING:
    from edge_vl.frame import Frame
    from edge_vl.sources.camera import Camera
    from edge_vl.sources.camera_list import CameraList

__all__ = ["cameras"]

_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class _Probe:
    """What became of an attempt to get frames."""

    source: str
    is_ok: bool
    detail: str
    first_frame_s: float | None = None
    width: int = 0
    height: int = 0
    fps: float = 0.0


def cameras(
    sources: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SOURCE...]", help="Cameras to try, such as rtsp://HOST/PATH or 0; none: list them."),
    ] = None,
    probe: Annotated[bool, typer.Option("--probe", help="Take frames from each camera that is listed.")] = False,
    timeout_s: Annotated[float, typer.Option(min=0.1, max=600, help="How long to wait for a first frame.")] = 10.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Show the cameras of this machine and what to call them, or try some that you name.

    The exit code is 3 where one of those tried gives no frames.
    """
    from edge_vl.sources.camera_list import list_cameras

    listed = None if sources else list_cameras()
    tried = sources or ([camera.source for camera in listed.cameras] if listed is not None and probe else [])
    probes = [_try(source, timeout_s) for source in tried]
    if as_json:
        facts = {} if listed is None else listed.to_dict()
        facts |= {"probes": [asdict(one) for one in probes]}
        print(terminal_json(json.dumps(facts, ensure_ascii=False)))
    else:
        _show(listed, probes)
    raise typer.Exit(ANSWERED if all(one.is_ok for one in probes) else BAD_INPUT)


def _try(source: str, timeout_s: float) -> _Probe:
    """Open a source, wait for its first frame, and look at it for a second more."""
    from edge_vl.errors import EdgeVLError
    from edge_vl.sources.camera import Camera
    from edge_vl.sources.camera_settings import CameraSettings
    from edge_vl.sources.open import open_source, shown_source

    label = shown_source(source)
    settings = CameraSettings(open_timeout_s=timeout_s, read_timeout_s=min(timeout_s, 5.0), max_fps=None)
    began_s = time.monotonic()
    try:
        opened = open_source(source, settings=settings, on_state=lambda _: None)  # what it is told comes out below
    except EdgeVLError as error:
        return _Probe(label, False, str(error))
    try:
        if not isinstance(opened, Camera):
            return _Probe(label, False, "it is no camera")
        frame = _first_frame(opened, began_s + timeout_s)
        if frame is None:
            state = opened.state
            return _Probe(label, False, state.reason or f"it gave no frame within {timeout_s:g} s")
        first_frame_s = frame.captured_s - began_s
        time.sleep(_LOOK_S)
        state = opened.state
        is_ok, fps = state.status == "online", round(state.fps, 1)
        return _Probe(label, is_ok, state.reason, round(first_frame_s, 3), frame.width, frame.height, fps)
    finally:
        opened.close()


def _first_frame(camera: Camera, until_s: float) -> Frame | None:
    """Wait for a frame; not any longer when the camera cannot be opened."""
    while (left_s := until_s - time.monotonic()) > 0:
        if (frame := camera.wait_newer(-1, min(left_s, 0.1))) is not None:
            return frame
        if camera.state.status == "offline":
            return None
    return None


def _show(listed: CameraList | None, probes: list[_Probe]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True, highlight=False)

    def line(name: str, value: str) -> None:
        console.print(f"[bold]{name:<12}[/bold]{escape(terminal_line(value))}")

    if listed is not None:
        for camera in listed.cameras:
            formats = f", gives {' '.join(camera.formats)}" if camera.formats else ""
            driver = f" ({camera.driver})" if camera.driver else ""
            line("camera", f"{camera.source}: {camera.name}{driver}{formats}")
            for note in (camera.stable_source and f"also {camera.stable_source}, which stays its name", camera.note):
                if note:
                    line("", note)
        for name, way in listed.ways.items():
            note = f" ({way.note})" if way.note else ""
            line(name, f"{'yes' if way.is_there else 'no'}: {way.detail}{note}")
        for advice in listed.advice:
            line("advice", advice)
    for one in probes:
        what = one.detail
        if one.is_ok and one.first_frame_s is not None:
            what = f"{one.width}x{one.height}, {one.fps:g} fps, first frame after {one.first_frame_s:.2f} s"
        line("works" if one.is_ok else "fails", f"{one.source}: {what}")
