"""What a user calls a source, turned into a source."""

from __future__ import annotations

import difflib
import glob
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

from edge_vl.errors import RequestError, SourceError
from edge_vl.file_kind import name_file_kind
from edge_vl.sources.address import has_credentials, masked, with_credentials
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.camera_state import CameraState
from edge_vl.sources.capture import OpenCapture
from edge_vl.sources.pictures_source import PICTURE_SUFFIXES, PicturesSource, natural_order, pictures_in
from edge_vl.sources.source import Source
from edge_vl.sources.synthetic import SyntheticCapture

__all__ = ["KINDS", "open_source"]

KINDS = """a picture (door.jpg), a folder of pictures, a pattern ('shots/*.jpg'), a video file (walk.mp4),
a webcam (0, /dev/video0), a stream (rtsp://, rtsps://, http://, https://), synthetic[:WIDTHxHEIGHT][@FPS],
gst:PIPELINE (GStreamer), csi:0 (Jetson), picamera:0 (Raspberry Pi)"""

_SCHEMES = ("rtsp", "rtsps", "http", "https")
_WORDS = ("synthetic", "gst", "csi", "picamera")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<host>[^/?#]*)")
_SYNTHETIC = re.compile(r"synthetic(?::(?P<width>\d{1,5})x(?P<height>\d{1,5}))?(?:@(?P<fps>\d{1,4}(?:\.\d{1,3})?))?")
_VIDEO_KINDS = ("video", "Ogg file", "transport stream", "unknown binary data")
_MISTYPED_USERINFO = re.compile(r"\S*:\S*@")  # an address without its ://, or with another beginning
_HEAD_BYTES = 4096

OnState = Callable[[CameraState], object]


def open_source(
    text: str | os.PathLike[str],
    *,
    settings: CameraSettings | None = None,
    username: str | None = None,
    password: str | None = None,
    name: str | None = None,
    loop: bool = False,
    paced: bool = True,
    on_state: OnState | None = None,
) -> Source:
    """Open pictures, a recording or a camera as a source of frames.

    A camera that is away is no error: it is waited for, and `on_state` tells. Whoever opens a source closes it.

    Args:
        text: what to open; see `KINDS`. A path object is always a file or a folder.
        settings: how a camera is read, and the view for all kinds; None: the defaults.
        username: for a stream; so that no password needs to be in its address.
        password: likewise.
        name: what `Frame.source` says of a camera or a recording; None: the text, without its password.
        loop: begin pictures or a recording again at their end.
        paced: play a recording in real time, like a camera; False: every frame, as fast as they are asked for.
        on_state: told of a camera's status, on a thread of its own.

    Returns:
        `edge_vl.sources.camera.Camera` for webcams, streams and the synthetic camera, `PicturesSource` or `VideoFile`
        for files.

    Raises:
        RequestError: it is none of the kinds, or an argument does not fit the kind.
        SourceError: the files cannot be read, or a library is missing; says which.
    """
    settings = CameraSettings() if settings is None else settings
    is_path = isinstance(text, os.PathLike)
    words = os.fspath(text) if isinstance(text, (str, os.PathLike)) else text
    if not isinstance(words, str) or not words.strip() or "\0" in words:
        raise RequestError(f"a source is {KINDS}; not {words!r:.60}", field="source")
    open_capture = None if is_path else _camera_of(words.strip(), settings, username, password)
    if open_capture is None:
        if username is not None or password is not None:
            raise RequestError("a user name and a password are for streams, not for files", field="username")
        return _files(words, name, settings, loop=loop, paced=paced)
    if loop:
        raise RequestError(f"loop is for pictures and recordings; {masked(words)} is a camera", field="loop")
    return Camera(open_capture, name=name or _camera_name(words.strip()), settings=settings, on_state=on_state)


def _camera_of(text: str, settings: CameraSettings, username: str | None, password: str | None) -> OpenCapture | None:
    """Return what opens a camera; None for files."""
    if (url := _URL.match(text)) is not None:
        return _stream(text, url, settings, username, password)
    word, colon, rest = text.partition(":")
    opener: OpenCapture | None = None
    if word.split("@")[0] == "synthetic":
        opener = _synthetic(text)
    elif text.isdecimal():
        from edge_vl.sources.opencv_capture import open_device

        opener = partial(open_device, int(text), settings)
    elif text.startswith("/dev/"):
        from edge_vl.sources.opencv_capture import open_device

        opener = partial(open_device, text, settings)
    elif colon and word == "gst":
        from edge_vl.sources.opencv_capture import open_gstreamer

        if not rest.strip():
            raise RequestError("gst: needs a pipeline behind it: gst:videotestsrc", field="source")
        opener = partial(open_gstreamer, rest.strip(), settings)
    elif colon and word == "csi":
        from edge_vl.sources.csi_pipeline import csi_pipeline
        from edge_vl.sources.opencv_capture import open_gstreamer

        opener = partial(open_gstreamer, csi_pipeline(_number(word, rest)), settings)
    elif colon and word == "picamera":
        from edge_vl.sources.picamera2_capture import open_picamera

        opener = partial(open_picamera, _number(word, rest), settings)
    if opener is not None and (username is not None or password is not None):
        raise RequestError(
            "a user name and a password are for streams, not for a camera of this machine", field="username"
        )
    return opener


def _stream(
    text: str, url: re.Match[str], settings: CameraSettings, username: str | None, password: str | None
) -> OpenCapture:
    scheme = url["scheme"].lower()
    if scheme == "file":
        raise RequestError("give the path of the file without file://", field="source")
    if scheme not in _SCHEMES:
        close = difflib.get_close_matches(scheme, _SCHEMES, 1)
        hint = f"; did you mean {close[0]}://?" if close else ""
        raise RequestError(f"addresses of kind {scheme}:// are not read{hint} A source is {KINDS}", field="source")
    if not url["host"].rpartition("@")[2]:
        raise RequestError(f"there is no host in {masked(text)}; an address is {scheme}://HOST/PATH", field="source")
    if any(character.isspace() or not character.isprintable() for character in text):
        raise RequestError(f"there is a space or the like in {masked(text)!r:.120}; write it as %20", field="source")
    if (username is not None or password is not None) and has_credentials(text):
        raise RequestError("the address has a user name in it already; give it in one place", field="username")
    from edge_vl.sources.opencv_capture import open_stream

    return partial(open_stream, with_credentials(text, username, password), settings)


def _synthetic(text: str) -> OpenCapture:
    found = _SYNTHETIC.fullmatch(text)
    if found is None:
        raise RequestError(
            f"the synthetic camera is synthetic[:WIDTHxHEIGHT][@FPS], such as synthetic:640x480@30, not {text!r:.60}",
            field="source",
        )
    width, height, fps = int(found["width"] or 640), int(found["height"] or 480), float(found["fps"] or 15)
    SyntheticCapture(width, height, fps).close()  # tells what is wrong here and now
    return partial(SyntheticCapture, width, height, fps)


def _number(word: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 3:
        raise RequestError(f"{word}: needs the number of a camera behind it, {word}:0 for the first", field="source")
    return int(text)


def _camera_name(text: str) -> str:
    return f"camera {text}" if text.isdecimal() else masked(text)


def _files(text: str, name: str | None, settings: CameraSettings, *, loop: bool, paced: bool) -> Source:
    path = Path(text).expanduser()
    try:
        if path.is_dir():
            paths = pictures_in(path)
            if not paths:
                raise SourceError(
                    f"there is no picture in the folder {text}; looked for {', '.join(sorted(PICTURE_SUFFIXES))}"
                )
            return PicturesSource(paths, name=name or text, loop=loop, view=settings.view)
        if path.is_file():
            return _file(path, name or text, settings, loop=loop, paced=paced)
        if path.exists():
            raise SourceError(f"{text} is no file, no folder and no camera that is known")
        if glob.has_magic(text):
            found = sorted(
                (Path(one) for one in glob.glob(os.path.expanduser(text), recursive=True)),  # noqa: PTH207, PTH111
                key=natural_order,
            )
            files = [one for one in found if one.is_file()]
            if not files:
                raise SourceError(f"no file matches {text}")
            return PicturesSource(files, name=name or text, loop=loop, view=settings.view)
    except (OSError, ValueError) as error:  # a ValueError of ours is a RequestError
        if isinstance(error, RequestError):
            raise
        raise SourceError(f"{text:.200} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    _refuse(text)


def _file(path: Path, name: str, settings: CameraSettings, *, loop: bool, paced: bool) -> Source:
    with path.open("rb") as file:
        kind = name_file_kind(file.read(_HEAD_BYTES))
    if kind.endswith("picture"):
        return PicturesSource([path], name=name, loop=loop, view=settings.view)
    if not kind.endswith(_VIDEO_KINDS):  # a text file could be a playlist that makes a player fetch other things
        raise SourceError(f"{name} is {kind}, neither a picture nor a video")
    from edge_vl.sources.video_file import VideoFile

    return VideoFile(path, name=name, paced=paced, loop=loop, view=settings.view)


def _refuse(text: str) -> NoReturn:
    word = re.split(r"[:@]", text)[0]
    close = difflib.get_close_matches(word.lower(), (*_WORDS, *_SCHEMES), 1, cutoff=0.75)
    is_word = bool(close) and "/" not in word and "." not in word
    hint = f"; did you mean {close[0]}?" if is_word else ""
    shown = _MISTYPED_USERINFO.sub("***@", masked(text))
    raise SourceError(f"there is no file or folder {shown!r:.160}{hint}\nA source is {KINDS}")
