"""Cameras that send JPEG pictures over HTTP, one after the other (MJPEG), without any library for video.

FFmpeg can read them as well, but mends damaged pictures in secret, with grey where data is missing.
"""

from __future__ import annotations

import base64
import http.client
import re
import time
import urllib.error
import urllib.request
from urllib.parse import unquote, urlsplit, urlunsplit

import numpy as np
from numpy.typing import NDArray

from edge_vl.errors import ImageError, SourceError
from edge_vl.picture_limits import PictureLimits
from edge_vl.pictures import load_picture
from edge_vl.sources.address import masked
from edge_vl.sources.camera_settings import CameraSettings

__all__ = ["MjpegStream", "open_http"]

_MAX_PICTURE_BYTES = PictureLimits().max_file_bytes
_MAX_HEADER_BYTES = 16_384
_READ_BYTES = 65_536
_CONTENT_LENGTH = re.compile(rb"^content-length[ \t]*:[ \t]*(\d{1,9})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)


class MjpegStream:
    """An answer of type `multipart/x-mixed-replace`. `grab` takes a picture's bytes, `retrieve` decodes them."""

    def __init__(
        self, response: http.client.HTTPResponse, boundary: bytes, *, label: str, read_timeout_s: float
    ) -> None:
        """Take over an answer whose head has been read.

        Args:
            response: closed by `close`.
            boundary: what stands between its parts, without the leading dashes.
            label: for errors; without a password.
            read_timeout_s: how long a picture may take.
        """
        self._response = response
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
        self._response.close()

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
        try:
            received = self._response.read1(_READ_BYTES)
        except TimeoutError:
            raise SourceError(f"{self._label} gave nothing for {self._read_timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise SourceError(f"{self._label} failed: {masked(str(error)) or type(error).__name__}") from None
        if time.monotonic() > until_s:
            raise SourceError(f"{self._label} gave no whole frame within {self._read_timeout_s:g} s")
        self._received += received
        return bool(received)


def open_http(url: str, settings: CameraSettings) -> MjpegStream | None:
    """Ask an HTTP server for a stream. No proxy is used: a camera is near.

    Args:
        url: `http://` or `https://`, with any user name and password in it; both kinds of authentication are tried.
        settings: deadlines.

    Returns:
        None: it gives something else than JPEG pictures, such as HLS, which FFmpeg may understand.

    Raises:
        SourceError: nobody answers, or not with a stream.
    """
    label = masked(url)
    timeout_s = min(settings.open_timeout_s, settings.read_timeout_s)
    try:
        response = _ask(url, timeout_s)
    except urllib.error.HTTPError as error:
        with error:
            raise SourceError(f"{label} cannot be opened: {_status_text(url, error.code)}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise SourceError(f"{label} did not open within {timeout_s:g} s: it does not answer") from None
        raise SourceError(f"{label} cannot be opened: {masked(str(reason)) or type(reason).__name__}") from None
    kind, boundary = response.headers.get_content_type(), response.headers.get_param("boundary")
    if kind.startswith("multipart/") and isinstance(boundary, str):
        mark = boundary.removeprefix("--").encode()
        return MjpegStream(response, mark, label=label, read_timeout_s=settings.read_timeout_s)
    response.close()
    if kind in ("image/jpeg", "image/png", "text/html"):
        what = "a page" if kind == "text/html" else "one picture"
        raise SourceError(f"{label} gives {what}, not a stream; the camera's manual knows the stream's address")
    return None


def _ask(url: str, timeout_s: float) -> http.client.HTTPResponse:
    """Send a request, and once more with user name and password where the server wants them and we have them."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(_without_userinfo(url))
    try:
        response: http.client.HTTPResponse = opener.open(request, timeout=timeout_s)
        return response
    except urllib.error.HTTPError as error:
        authorization = _authorization(url, request, error) if error.code == 401 else ""
        if not authorization:
            raise
        error.close()
    request.add_unredirected_header("Authorization", authorization)
    response = opener.open(request, timeout=timeout_s)
    return response


def _authorization(url: str, request: urllib.request.Request, refusal: urllib.error.HTTPError) -> str:
    """Return what proves that we know the password, in the better of the ways that the server knows; empty: none."""
    parts = urlsplit(url)
    if parts.username is None:
        return ""
    user, password = unquote(parts.username), unquote(parts.password or "")
    schemes = {}
    for challenge in refusal.headers.get_all("WWW-Authenticate", []):
        scheme, _, values = challenge.partition(" ")
        schemes[scheme.lower()] = values
    if "digest" in schemes:
        passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
        passwords.add_password(None, _without_userinfo(url), user, password)
        parameters = [one for one in urllib.request.parse_http_list(schemes["digest"]) if one]
        asked = urllib.request.parse_keqv_list(parameters)
        proof = urllib.request.HTTPDigestAuthHandler(passwords).get_authorization(request, asked)
        return f"Digest {proof}" if proof else ""
    if "basic" in schemes:
        return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
    return ""


def _without_userinfo(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _status_text(url: str, status: int) -> str:
    if status == 401:
        given = ", and refuses the ones given" if urlsplit(url).username is not None else ""
        return f"the camera wants a user name and a password{given}"
    if status == 404:
        return "the camera has nothing at this path"
    return f"the camera answers {status} ({http.client.responses.get(status, 'unknown')})"
