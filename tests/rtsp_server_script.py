"""An RTSP server of GStreamer's: run by the system's Python, which has its bindings. See `tests/rtsp_server.py`.

Arguments: port, user or `-`, password or `-`, frames per second, `WIDTHxHEIGHT` with a width of a multiple of 32.
Serves H.264 at `/cam` and says `ready` when it listens. Each picture tells when it was made: its upper half is 32
blocks, the bits of CLOCK_MONOTONIC in milliseconds, the highest first; the lower half likewise counts the pictures.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import gi  # type: ignore[import-not-found,unused-ignore]

gi.require_version("Gst", "1.0")
gi.require_version("GstApp", "1.0")
gi.require_version("GstRtspServer", "1.0")
from gi.repository import GLib, Gst, GstApp, GstRtspServer  # type: ignore[import-not-found,unused-ignore]  # noqa: E402, F401

_NUM_BITS = 32


def main() -> None:
    """Serve until somebody ends the process."""
    port, user, password, fps, size = sys.argv[1:6]
    width, height = (int(side) for side in size.split("x"))
    Gst.init(None)
    server = GstRtspServer.RTSPServer.new()
    server.set_address("127.0.0.1")
    server.set_service(port)
    factory = GstRtspServer.RTSPMediaFactory.new()
    factory.set_launch(
        "( appsrc name=pictures is-live=true do-timestamp=true format=time max-buffers=2 leaky-type=downstream "
        f"caps=video/x-raw,format=I420,width={width},height={height},framerate={fps}/1 "
        "! x264enc tune=zerolatency speed-preset=ultrafast key-int-max=15 "
        "! rtph264pay name=pay0 pt=96 config-interval=1 )"
    )
    factory.set_shared(True)
    factory.connect("media-configure", lambda _, media: _feed(media, width, height, int(fps)))
    if user != "-":
        _ask_for_password(server, factory, user, password)
    server.get_mount_points().add_factory("/cam", factory)
    if server.attach(None) == 0:
        sys.exit(f"port {port} cannot be listened on")
    print("ready", flush=True)
    GLib.MainLoop().run()


def _feed(media: Any, width: int, height: int, fps: int) -> None:
    """Push a picture each frame interval, until nobody watches this media any more."""
    source = media.get_element().get_by_name_recurse_up("pictures")
    count = 0

    def push() -> bool:
        nonlocal count
        picture = _picture(width, height, time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000_000, count)
        count += 1
        return bool(source.push_buffer(Gst.Buffer.new_wrapped(picture)) == Gst.FlowReturn.OK)

    GLib.timeout_add(1000 // fps, push)


def _picture(width: int, height: int, *numbers: int) -> bytes:
    """Draw numbers below each other, as I420."""
    block = width // _NUM_BITS
    rows = height // len(numbers)
    luma = b"".join(
        b"".join((b"\xeb" if number >> bit & 1 else b"\x10") * block for bit in reversed(range(_NUM_BITS))) * rows
        for number in numbers
    )
    return luma + b"\x80" * (width * height // 2)


def _ask_for_password(server: Any, factory: Any, user: str, password: str) -> None:
    auth = GstRtspServer.RTSPAuth.new()
    token = GstRtspServer.RTSPToken()
    token.set_string(GstRtspServer.RTSP_TOKEN_MEDIA_FACTORY_ROLE, "viewer")
    auth.add_basic(GstRtspServer.RTSPAuth.make_basic(user, password), token)
    server.set_auth(auth)
    permissions = GstRtspServer.RTSPPermissions.new()
    permissions.add_permission_for_role("viewer", GstRtspServer.RTSP_PERM_MEDIA_FACTORY_ACCESS, True)
    permissions.add_permission_for_role("viewer", GstRtspServer.RTSP_PERM_MEDIA_FACTORY_CONSTRUCT, True)
    factory.set_permissions(permissions)


if __name__ == "__main__":
    main()
