"""Cameras that send JPEG pictures over HTTP, one after the other (MJPEG), without any library for video.

FFmpeg can read them as well, but mends damaged pictures in secret, with grey where data is missing.
"""

from __future__ import annotations

import http.client
import re
import time

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import ImageError, SourceError
from edge_vl.picture_limits import PictureLimits
from edge_vl.pictures import load_picture
from edge_vl.sources.address import Address
from edge_vl.sources.camera_settings import CameraSettings
from edge_vl.sources.capture import SLOW_CAMERA
from edge_vl.sources.http_request import HttpAnswer, request

__all__ = ["MjpegStream", "open_http"]

_MAX_PICTURE_BYTES = PictureLimits().max_file_bytes
_MAX_HEADER_BYTES = 16_384
_READ_BYTES = 65_536
_CONTENT_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*(\d{1,9})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class MjpegStream:
    """An answer of type `multipart/x-mixed-replace`. `grab` takes a picture's bytes, `retrieve` decodes them."""

    def __init__(self, answer: HttpAnswer, boundary: bytes, *, label: str, read_timeout_s: float) -> None:
        """Take over an answer whose head has been read.

        Args:
            answer: closed by `close`.
            boundary: what stands between its parts, without the leading dashes.
            label: for errors; without a password.
            read_timeout_s: how long a picture may take.
        """
        self._answer = answer
        self._mark = b"--" + boundary
        self._label = label
        self._read_timeout_s = read_timeout_s
        self._received = bytearray()
        self._picture = b""

    def grab(self) -> bool:
        """Wait for the next picture; False when there will be none any more.

        Raises:
            SourceError: the connection broke, or no whole picture came until the read deadline.
        """
        until_s = time.monotonic() + self._read_timeout_s
        if self._take_until(self._mark, until_s, _MAX_PICTURE_BYTES) is None:
            return False
        rest_of_line = self._take_until(b"\n", until_s, _MAX_HEADER_BYTES)
        if rest_of_line is None or rest_of_line.startswith(b"--"):  # the last mark ends so
            return False
        head = self._take_head(until_s)
        if head is None:
            return False
        length = _CONTENT_LENGTH.search(head)
        if length is not None and 0 < int(length[1]) <= _MAX_PICTURE_BYTES:
            while len(self._received) < int(length[1]):
                if not self._receive(until_s):
                    return False
            self._picture = bytes(self._received[: int(length[1])])
            del self._received[: int(length[1])]
            return True
        return self._grab_unmeasured(until_s)

    def retrieve(self) -> NDArray[np.uint8]:
        """Return the picture grabbed last as uint8 (height, width, 3), RGB; memory of its own.

        Raises:
            SourceError: it is damaged, or no picture.
        """
        try:
            return load_picture(self._picture).pixels
        except ImageError as error:
            raise SourceError(f"{self._label} gave a damaged frame: {error}") from None

    def close(self) -> None:
        """Hang up."""
        self._answer.close()

    def _grab_unmeasured(self, until_s: float) -> bool:
        """Take a picture whose length nobody says: it ends where the next mark is."""
        while (end := self._received.find(self._mark)) < 0:
            if len(self._received) > _MAX_PICTURE_BYTES:
                raise SourceError(f"{self._label} gave a frame of more than {_MAX_PICTURE_BYTES} bytes")
            if not self._receive(until_s):
                return False
        self._picture = bytes(self._received[:end]).rstrip(b"\r\n")
        del self._received[:end]
        return True

    def _take_head(self, until_s: float) -> bytes | None:
        """Take the lines up to an empty one; None: it ended before."""
        head = b""
        while True:
            line = self._take_until(b"\n", until_s, _MAX_HEADER_BYTES)
            if line is None:
                return None
            if not line.strip():
                return head
            head += line + b"\n"
            if len(head) > _MAX_HEADER_BYTES:
                raise SourceError(f"{self._label} gave something that is no stream of pictures")

    def _take_until(self, mark: bytes, until_s: float, max_bytes: int) -> bytes | None:
        """Take what comes before a mark, and the mark; None: it ended before."""
        searched = 0
        while (end := self._received.find(mark, searched)) < 0:
            searched = max(0, len(self._received) - len(mark))
            if searched > max_bytes:
                raise SourceError(f"{self._label} gave something that is no stream of pictures")
            if not self._receive(until_s):
                return None
        taken = bytes(self._received[:end])
        del self._received[: end + len(mark)]
        return taken

    def _receive(self, until_s: float) -> bool:
        """Wait for more bytes; False: there will be none."""
        self._answer.reads.until_s = until_s
        try:
            received = self._answer.response.read1(_READ_BYTES)
        except TimeoutError:
            what = "no whole frame within" if self._received.strip() else "nothing for"
            raise SourceError(f"{self._label} gave {what} {self._read_timeout_s:g} s{SLOW_CAMERA}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SourceError(f"{self._label} failed: the connection broke ({type(error).__name__})") from None
        self._received += received
        return bool(received)


def open_http(address: Address, settings: CameraSettings) -> MjpegStream | None:
    """Ask an HTTP server for a stream.

    Args:
        address: `http` or `https`, with any user name and password in it; both kinds of authentication are tried.
        settings: deadlines.

    Returns:
        None: it gives something else than JPEG pictures, such as HLS, which FFmpeg may understand.

    Raises:
        SourceError: nobody answers, or not with a stream.
    """
    label = address.shown
    try:
        answer = request(address, time.monotonic() + settings.open_timeout_s)
    except TimeoutError:
        raise SourceError(f"{label} did not open within {settings.open_timeout_s:g} s: it does not answer") from None
    except SourceError as error:
        raise SourceError(f"{label} cannot be opened: {error}") from None
    response = answer.response
    if not 200 <= response.status < 300 or response.status == http.client.NO_CONTENT:
        answer.close()
        raise SourceError(f"{label} cannot be opened: {_status_text(address, response.status)}")
    kind, boundary = response.headers.get_content_type(), response.headers.get_param("boundary")
    if kind.startswith("multipart/") and isinstance(boundary, str):
        mark = boundary.removeprefix("--").encode(errors="replace")
        return MjpegStream(answer, mark, label=label, read_timeout_s=settings.read_timeout_s)
    answer.close()
    if kind in ("image/jpeg", "image/png", "text/html"):
        what = "a page" if kind == "text/html" else "one picture"
        raise SourceError(f"{label} gives {what}, not a stream; the camera's manual knows the stream's address")
    return None


def _status_text(address: Address, status: int) -> str:
    if status == 401:
        given = ", and refuses the ones given" if address.userinfo else ""
        return f"the camera wants a user name and a password{given}"
    if status == 404:
        return "the camera has nothing at this path"
    return f"the camera answers {status} ({http.client.responses.get(status, 'unknown')})"
