"""The pictures that a request names: a camera's newest frame, a file, one that came along, one that came before."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge_vl.errors import ImageError
from edge_vl.frame import Frame
from edge_vl.gateway.image_shelf import ImageShelf
from edge_vl.mqtt.messages import ImageRef, Request
from edge_vl.mqtt.reading import decode_base64
from edge_vl.mqtt.topics import NodeTopics
from edge_vl.sources.source import LiveSource

__all__ = ["RequestImage", "RequestImages", "read_file_below"]

_WAIT_FOR_FIRST_S = 0.5
"""How long a request waits for a camera that has no frame at this moment; it may just have been opened."""


@dataclass(frozen=True, slots=True)
class RequestImage:
    """A picture of a request.

    Attributes:
        picture: what the runtime takes.
        source: the camera's name, or which of the other ways it came.
        index: counts the frames of the camera; else 0.
        captured_s: on the monotonic clock: when it was taken, or came.
        captured_wall_s: the same moment since the epoch.
    """

    picture: Frame | bytes
    source: str
    index: int
    captured_s: float
    captured_wall_s: float


class RequestImages:
    """Fetches them, when the request's turn has come: a camera's frame is no older than it must be."""

    def __init__(
        self,
        cameras: Mapping[str, LiveSource],
        folders: Sequence[Path],
        shelf: ImageShelf,
        topics: NodeTopics,
        *,
        max_image_bytes: int,
        max_bytes: int,
    ) -> None:
        """Keep where pictures are.

        Args:
            cameras: by name.
            folders: that files may be in.
            shelf: where raw pictures lie.
            topics: of the gateway.
            max_image_bytes: of an encoded picture.
            max_bytes: of all encoded pictures of a request.
        """
        self._cameras = cameras
        self._folders = tuple(folders)
        self._shelf = shelf
        self._topics = topics
        self._max_image_bytes = max_image_bytes
        self._max_bytes = max_bytes

    async def of(self, request: Request) -> list[RequestImage]:
        """Fetch the pictures of a request, in its order.

        Raises:
            ImageError: one is not there or may not be used.
        """
        images: list[RequestImage] = []
        num_bytes = 0
        for index, ref in enumerate(request.images):
            image = await self._fetch(ref, index, request)
            num_bytes += len(image.picture) if isinstance(image.picture, bytes) else 0
            if num_bytes > self._max_bytes:
                raise ImageError(
                    f"picture {index + 1}: the pictures of one request may have {self._max_bytes} bytes together",
                    index=index,
                    detected="too many bytes",
                )
            images.append(image)
        return images

    async def _fetch(self, ref: ImageRef, index: int, request: Request) -> RequestImage:
        if ref.camera is not None:
            frame = await self._frame(ref.camera, index, request.max_frame_age_ms)
            return RequestImage(frame, ref.camera, frame.index, frame.captured_s, frame.captured_wall_s)
        if ref.file is not None:
            data = await asyncio.to_thread(read_file_below, self._folders, ref.file, index, self._max_image_bytes)
            return _as_it_came(data, "file")
        if ref.topic is not None:
            return self._shelved(ref.topic, index, request.client)
        assert ref.base64 is not None  # exactly one of the four, checked when it was read
        param = f"images[{index}].base64"
        return _as_it_came(decode_base64(ref.base64, max_bytes=self._max_image_bytes, param=param), "base64")

    async def _frame(self, name: str, index: int, max_age_ms: int | None) -> Frame:
        camera = self._cameras.get(name)
        if camera is None:
            known = ", ".join(self._cameras) or "none"
            raise ImageError(f"picture {index + 1}: there is no camera {name}; there are: {known}", index=index)
        frame = camera.latest()
        is_old = frame is not None and max_age_ms is not None and _age_s(frame) * 1000 > max_age_ms
        if frame is None or is_old:
            newest = -1 if frame is None else frame.index
            frame = await asyncio.to_thread(camera.wait_newer, newest, _WAIT_FOR_FIRST_S) or frame
        if frame is None:
            raise ImageError(f"picture {index + 1}: camera {name} gives no frames at this moment", index=index)
        return frame

    def _shelved(self, topic: str, index: int, client: str) -> RequestImage:
        own = self._topics.image(client, "")
        if not topic.startswith(own) or "/" in topic.removeprefix(own):
            raise ImageError(
                f"picture {index + 1}: a picture by topic comes on {own}ID, before its request", index=index
            )
        image = self._shelf.take(topic)
        if image is None:
            raise ImageError(
                f"picture {index + 1}: no picture waits on that topic; send it before the request, not retained, and "
                "use it once",
                index=index,
            )
        wall_s = time.time() - (time.monotonic() - image.received_s)
        return RequestImage(image.data, "topic", 0, image.received_s, wall_s)


def read_file_below(folders: Sequence[Path], name: str, index: int, max_bytes: int) -> bytes:
    """Read a picture's file that lies below one of the folders, also after all symbolic links are followed.

    Args:
        folders: that it may lie below.
        name: path relative to one of them.
        index: which picture of the request it is.
        max_bytes: of the file.

    Raises:
        ImageError: there is none. The words do not tell what is there outside of the folders.
    """
    if not folders:
        raise ImageError(f"picture {index + 1}: this gateway reads no files; its file names no folders", index=index)
    path = Path(name)
    is_plain = "\0" not in name and not path.is_absolute() and ".." not in path.parts
    for folder in folders if is_plain else ():
        try:
            data = _read_below(folder, path, max_bytes)
        except (OSError, RuntimeError, ValueError):  # not there, a loop of links, a name that no file can have
            continue
        if len(data) > max_bytes:
            raise ImageError(
                f"picture {index + 1}: the file has more than {max_bytes} bytes", index=index, detected="too many bytes"
            )
        return data
    raise ImageError(f"picture {index + 1}: there is no such file in the folders of this gateway", index=index)


def _read_below(folder: Path, path: Path, max_bytes: int) -> bytes:
    """Read at most a byte more than may be read.

    Every step of the resolved path is opened from the one before and may not be a link, so that a link which is put
    there meanwhile leads nowhere.
    """
    root = folder.resolve(strict=True)
    parts = (root / path).resolve(strict=True).relative_to(root).parts
    if os.open not in os.supports_dir_fd:
        descriptor = os.open(root.joinpath(*parts), os.O_RDONLY)
    else:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        for number, part in enumerate(parts, 1):
            kind = os.O_NONBLOCK if number == len(parts) else os.O_DIRECTORY
            try:
                inner = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | kind, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
    with open(descriptor, "rb", buffering=0) as file:  # noqa: PTH123 (a descriptor, not a path)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        data = bytearray()
        while len(data) <= max_bytes and (piece := file.read(min(1 << 20, max_bytes + 1 - len(data)))):
            data += piece
        return bytes(data)


def _age_s(frame: Frame) -> float:
    return time.monotonic() - frame.captured_s


def _as_it_came(data: bytes, source: str) -> RequestImage:
    return RequestImage(data, source, 0, time.monotonic(), time.time())
