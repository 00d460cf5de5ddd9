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
from edge_vl.sources.address import masked, read_address, shown_pipeline, with_credentials
from edge_vl.sources.camera import Camera
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.camera_state import CameraState
from edge_vl.sources.capture import OpenCapture
from edge_vl.sources.opencv import import_opencv, require_gstreamer
from edge_vl.sources.pictures_source import PICTURE_SUFFIXES, PicturesSource, natural_order, pictures_in
from edge_vl.sources.source import Source
from edge_vl.sources.synthetic import SyntheticCapture

__all__ = ["KINDS", "names_camera", "open_source", "shown_source"]

KINDS = """a picture (door.jpg), a folder of pictures, a pattern ('shots/*.jpg'), a video file (walk.mp4),
a webcam (0, /dev/video0), synthetic[:WIDTHxHEIGHT][@FPS], gst:PIPELINE (GStreamer), csi:0 (Jetson),
picamera:0 (Raspberry Pi), a stream (rtsp://, rtsps://, http://, https://)"""

_SCHEMES = ("rtsp", "rtsps", "http", "https")
_WORDS = ("synthetic", "gst", "csi", "picamera")
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,19})://")
_SYNTHETIC = re.compile(r"synthetic(?::(?P<width>\d{1,5})x(?P<height>\d{1,5}))?(?:@(?P<fps>\d{1,4}(?:\.\d{1,3})?))?")
_VIDEO_KINDS = ("video", "Ogg file", "transport stream", "unknown binary data")
_MISTYPED_USERINFO = re.compile(r".*:.*@", re.DOTALL)  # an address without its ://, or with another beginning
_MAX_DEVICE = 9999
_HEAD_BYTES = 4096

OnState = Callable[[CameraState], object]


def open_source(
    text: str | int | os.PathLike[str],
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

    A camera that is away is no error: it is waited for, and `on_state` tells. A library that is missing is one, at
    once; but what an HTTP server gives is not known before it has answered, so such a camera is offline for that
    reason. Whoever opens a source closes it.

    Args:
        text: what to open; see `KINDS`. A number is that of a webcam. A path object is always a file or a folder.
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
        SourceError: the files cannot be read, or a library is missing; says which, and how to install it.
    """
    _check(settings=settings, username=username, password=password, name=name, on_state=on_state)
    settings = CameraSettings() if settings is None else settings
    is_path = isinstance(text, os.PathLike)
    words = _words(text)
    open_capture = None if is_path else _camera_of(words.strip(), settings, username, password)
    if open_capture is None:
        if username is not None or password is not None:
            raise RequestError("a user name and a password are for streams, not for files", field="username")
        return _files(words, name, settings, loop=loop, paced=paced)
    if loop:
        raise RequestError(f"loop is for pictures and recordings; {shown_source(words)} is a camera", field="loop")
    _check_library(words.strip())
    return Camera(open_capture, name=name or shown_source(words), settings=settings, on_state=on_state)


def _check(*, settings: object, username: object, password: object, name: object, on_state: object) -> None:
    """Check what is not the source itself.

    Raises:
        RequestError: something is of another type than it should be.
    """
    for field, value in (("username", username), ("password", password), ("name", name)):
        if value is not None and not isinstance(value, str):
            raise RequestError(f"{field} is a text or None, not a {type(value).__name__}", field=field)
    if settings is not None and not isinstance(settings, CameraSettings):
        raise RequestError(f"settings is a CameraSettings or None, not a {type(settings).__name__}", field="settings")
    if on_state is not None and not callable(on_state):
        raise RequestError(f"on_state is called with a state; a {type(on_state).__name__} is not", field="on_state")


def shown_source(text: str) -> str:
    """Return what a source is called where it is shown, made of what is known to be no secret."""
    text = text.strip()
    if (url := _URL.match(text)) is not None:
        try:
            return read_address(text).shown
        except RequestError:
            return f"{url['scheme']}://..."
    word, colon, rest = text.partition(":")
    if colon and word == "gst":
        return f"gst:{shown_pipeline(rest)}"
    if text.isdecimal():
        return f"camera {text}"
    if _SYNTHETIC.fullmatch(text):
        return text
    return _MISTYPED_USERINFO.sub("***@", masked(text))


def names_camera(text: str) -> bool:
    """Say whether a text is what a camera or a stream is called, and not the path of a file."""
    word = re.split(r"[:@]", text)[0]
    is_word = word in _WORDS and (":" in text or word == "synthetic")
    return is_word or text.isdecimal() or text.startswith("/dev/") or _URL.match(text) is not None


def _words(text: object) -> str:
    """Return what was given as text.

    Raises:
        RequestError: it cannot be a source.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        if not 0 <= text <= _MAX_DEVICE:
            raise RequestError(f"the number of a webcam is 0 to {_MAX_DEVICE}", field="source")
        return str(text)
    words = os.fspath(text) if isinstance(text, (str, os.PathLike)) else text
    if isinstance(words, str) and words.strip() and "\0" not in words:
        return words
    if isinstance(words, (str, bytes)):
        is_empty = isinstance(words, str) and not words.strip()
        what = "bytes" if isinstance(words, bytes) else "an empty text" if is_empty else "a text with a NUL in it"
        raise RequestError(f"{what} is no source; a source is {KINDS}", field="source")
    raise RequestError(
        f"a {type(words).__name__} is no source; give the text or the path of one: {KINDS}. Frames that a program "
        "has go into edge_vl.PushedFrames, or into rt.watch as they are",
        field="source",
    )


def _camera_of(text: str, settings: CameraSettings, username: str | None, password: str | None) -> OpenCapture | None:
    """Return what opens a camera; None for files."""
    if (url := _URL.match(text)) is not None:
        return _stream(text, url, settings, username, password)
    word, colon, rest = text.partition(":")
    opener: OpenCapture | None = None
    if word.split("@")[0] == "synthetic":
        opener = _synthetic(text, settings)
    elif text.isdecimal() or text.startswith("/dev/"):
        from edge_vl.sources.opencv_capture import open_device

        if text.isdecimal() and not (text.isascii() and len(text) <= len(str(_MAX_DEVICE))):
            raise RequestError(f"the number of a webcam is 0 to {_MAX_DEVICE}", field="source")
        opener = partial(open_device, int(text) if text.isdecimal() else text, settings)
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
        hint = f"; did you mean {close[0]}?" if close else ""
        raise RequestError(f"addresses of kind {scheme} are not read{hint}\nA source is {KINDS}", field="source")
    address = read_address(with_credentials(text, username, password))
    from edge_vl.sources.opencv_capture import open_stream

    return partial(open_stream, address.url, settings)


def _check_library(text: str) -> None:
    """Import what a camera cannot be read without: to wait for a library is in vain.

    Raises:
        SourceError: it is not there, or not built for this.
    """
    word = text.partition(":")[0]
    if word in ("gst", "csi"):
        require_gstreamer(import_opencv(), shown_source(text))
    elif word == "picamera":
        from edge_vl.sources.picamera2_capture import import_picamera2

        import_picamera2()
    elif text.isdecimal() or text.startswith("/dev/") or word.lower() in ("rtsp", "rtsps"):
        import_opencv()


def _synthetic(text: str, settings: CameraSettings) -> OpenCapture:
    found = _SYNTHETIC.fullmatch(text)
    if found is None:
        raise RequestError(
            f"the synthetic camera is synthetic[:WIDTHxHEIGHT][@FPS], such as synthetic:640x480@30, not {text!r:.60}",
            field="source",
        )
    width, height, fps = int(found["width"] or 640), int(found["height"] or 480), float(found["fps"] or 15)
    SyntheticCapture(width, height, fps).close()  # tells what is wrong here and now
    if 1 / fps >= settings.read_timeout_s:
        raise RequestError(
            f"the synthetic camera would give a frame every {1 / fps:g} s, which is not within the read timeout of "
            f"{settings.read_timeout_s:g} s: take more frames per second, or a longer timeout (read_timeout_s, "
            "--read-timeout-s)",
            field="source",
        )
    return partial(SyntheticCapture, width, height, fps)


def _number(word: str, text: str) -> int:
    if not text.isdecimal() or len(text) > 3:
        raise RequestError(f"{word}: needs the number of a camera behind it, {word}:0 for the first", field="source")
    return int(text)


def _files(text: str, name: str | None, settings: CameraSettings, *, loop: bool, paced: bool) -> Source:
    try:
        path = Path(text).expanduser()
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
    except RuntimeError:  # of expanduser
        raise SourceError(f"{text:.200} cannot be read: there is no such user, or he has no home folder") from None
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
    raise SourceError(f"there is no file or folder {shown_source(text)!r:.160}{hint}\nA source is {KINDS}")
