"""Runs a gateway as a program: opens what it needs, follows signals, tells the service manager, ends in time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NoReturn

from edge_vl.environment import service_manager
from edge_vl.errors import SourceError
from edge_vl.gateway.config import CameraConfig, GatewayConfig, Limits, ModelConfig
from edge_vl.gateway.gateway import Gateway
from edge_vl.gateway.large_blocks import return_large_blocks
from edge_vl.gateway.recording_camera import RecordingCamera
from edge_vl.gateway.sd_notify import ServiceManager
from edge_vl.picture_limits import PictureLimits
from edge_vl.runtime import Runtime
from edge_vl.sources.camera import Camera
from edge_vl.sources.open import open_source
from edge_vl.sources.source import LiveSource
from edge_vl.sources.video_file import VideoFile

__all__ = ["FORCED", "run_gateway"]

_log = logging.getLogger(__name__)

FORCED = 7
"""Exit code after a second signal: nothing was waited for."""

_EXTRA_S = 0.9
"""Seconds behind the time for a clean stop at which the process ends whatever still runs."""

_SPARE_HELPERS = 4
"""Threads besides one for each request: requests that were cancelled may hold theirs for a moment."""

_HELPER = "edge-vl-gateway"

_CLOSE_S = 0.5
"""How long the runtime may take to end a unit of work that still runs."""


def run_gateway(
    config: GatewayConfig,
    *,
    open_runtime: Callable[[ModelConfig, int], Runtime] | None = None,
    on_ready: Callable[[], object] = lambda: None,
) -> int:
    """Run a gateway until SIGTERM or SIGINT. Call it on the main thread of a program of its own.

    The first signal ends everything in order, within 3 s unless the file allows more; the second ends the process at
    once, with exit code 7. If an engine or a decoder of pictures is still in native code when the time is up, the
    process ends without waiting for it. While model and cameras are opened a signal ends the process at once, by the
    signal itself (143 in a shell): nobody has been told anything yet, and native code would not let go of it.

    Args:
        config: what the gateway file says.
        open_runtime: opens the runtime for so many requests at once; None: as the file says, limits of pictures, too.
        on_ready: called when the gateway is connected for the first time.

    Returns:
        The exit code: 0 after a clean stop.

    Raises:
        BrokerError: the broker cannot be used, and trying again would not help.
        EdgeVLError: the model or a camera cannot be opened.
    """
    manager = ServiceManager(*service_manager())
    return_large_blocks()
    cameras: dict[str, LiveSource] = {}
    stop = _Stop(config.limits.shutdown_s + _EXTRA_S)
    with _ended_by_signals():
        open_one = open_runtime or partial(_open_runtime, limits=config.limits)
        runtime = open_one(config.model, Gateway.num_requests(config))
        try:
            for camera in config.cameras:
                cameras[camera.name] = _open_camera(camera)
            with stop.following_signals():
                asyncio.run(_serve(config, runtime, cameras, manager, stop, on_ready))
        finally:
            for source in cameras.values():
                source.close()
            runtime.close(_CLOSE_S)
    if _has_work():
        _end_now(0)
    return 0


async def _serve(
    config: GatewayConfig,
    runtime: Runtime,
    cameras: dict[str, LiveSource],
    manager: ServiceManager,
    stop: _Stop,
    on_ready: Callable[[], object],
) -> None:
    helpers_of_loop = _Helpers(Gateway.num_requests(config) + _SPARE_HELPERS, thread_name_prefix=_HELPER)
    asyncio.get_running_loop().set_default_executor(helpers_of_loop)

    def ready() -> None:
        manager.ready(f"connected, node {config.node}")
        on_ready()

    gateway = Gateway(config, runtime, cameras, on_ready=ready)

    async def follow() -> None:
        await stop.wanted()
        manager.stopping()
        _log.info("stopping")
        await gateway.stop()

    async def live() -> None:
        every_s = manager.alive_every_s
        while every_s is not None:
            manager.alive()
            await asyncio.sleep(every_s)

    helpers = [asyncio.create_task(follow()), asyncio.create_task(live())]
    try:
        await gateway.run()
        stop.is_told = True
    finally:
        for helper in helpers:
            helper.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)


def _open_runtime(model: ModelConfig, num_requests: int, *, limits: Limits) -> Runtime:
    max_pixels = round(limits.max_image_mpx * 1e6)
    return Runtime.open(
        model.name,
        profile=model.profile,
        vision_engine=model.vision_engine,
        language_engine=model.language_engine,
        vision_dtype=model.vision_dtype,
        language_dtype=model.language_dtype,
        kv=model.kv,
        threads=model.threads,
        context_length=model.context_length,
        memory_budget_mib=model.memory_budget_mib,
        keep_mib=model.keep_mib,
        mode=model.mode,  # type: ignore[arg-type]  # checked by `open`
        max_waiting=num_requests,
        picture_limits=PictureLimits(
            max_file_bytes=limits.max_image_bytes, max_pixels=max_pixels, max_pixels_at_once=max_pixels
        ),
    )


def _open_camera(camera: CameraConfig) -> LiveSource:
    """Open a camera, or play a recording as if it were one.

    Raises:
        SourceError: it cannot be opened, or is no camera.
    """
    open_it = partial(
        open_source,
        camera.source,
        settings=camera.settings,
        username=camera.username,
        password=camera.password,
        name=camera.name,
    )
    source = open_it()
    if isinstance(source, Camera):
        return source
    source.close()
    if isinstance(source, VideoFile):
        return RecordingCamera(open_it(loop=True))
    raise SourceError(
        f"camera {camera.name}: the camera of a gateway is a webcam, a stream or a recording, not pictures"
    )


class _Helpers(ThreadPoolExecutor):
    """Threads that decode pictures and read files. The end of the event loop does not wait for what they do."""

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin nothing more, and wait for nothing."""
        del wait, cancel_futures
        super().shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT end the process at once, as far as the body does not follow them."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handler)


class _Stop:
    """The wish to end, from a signal handler on the main thread to the event loop.

    Attributes:
        is_told: whether clients and broker have been told everything; the process may be ended then.
    """

    def __init__(self, limit_s: float) -> None:
        """Keep how long after the first signal the process may live."""
        self.is_told = False
        self._limit_s = limit_s
        self._is_wanted = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a signal has come."""
        return self._is_wanted

    @contextlib.contextmanager
    def following_signals(self) -> Iterator[None]:
        """Follow SIGTERM and SIGINT while the body runs, and afterwards until the process ends in time."""
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        for number in before:
            signal.signal(number, self._take)
        try:
            yield
        finally:
            if not self.is_wanted:
                for number, handler in before.items():
                    signal.signal(number, handler)

    async def wanted(self) -> None:
        """Wait for the first signal."""
        self._loop, self._event = asyncio.get_running_loop(), asyncio.Event()
        if not self.is_wanted:
            await self._event.wait()

    def _take(self, number: int, frame: Any) -> None:
        del frame
        if self.is_wanted:
            _end_now(FORCED)
        self._is_wanted = True
        watchdog = threading.Timer(self._limit_s, self._end)
        watchdog.daemon = True
        watchdog.start()
        if self._loop is not None and self._event is not None:
            self._loop.call_soon_threadsafe(self._event.set)

    def _end(self) -> None:
        """End the process when the time is up."""
        _end_now(0 if self.is_told else FORCED)


def _has_work() -> bool:
    """Say whether a thread of ours still runs, perhaps in native code: Python must not be taken down under it."""
    return any(thread.name.startswith("edge-vl") for thread in threading.enumerate() if thread.is_alive())


def _end_now(code: int) -> NoReturn:
    """End the process without waiting for any thread."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
