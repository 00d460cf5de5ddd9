"""Checking a gateway before it runs: model, folders, cameras, broker."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from edge_vl.errors import EdgeVLError, RequestError, SourceError
from edge_vl.gateway.broker_check import RunCheck, check_broker
from edge_vl.gateway.config import CameraConfig, GatewayConfig, ModelConfig
from edge_vl.gateway.finding import Finding

__all__ = ["check_gateway"]

_MAX_AT_ONCE = 4
_OLD_S = 1.0
_LOOK_S = 0.1


def check_gateway(
    config: GatewayConfig, notes: Sequence[str] = (), *, run: RunCheck = asyncio.run
) -> Iterator[Finding]:
    """Try everything that a gateway needs, without loading the model and without disturbing one that runs.

    Args:
        config: what the gateway file says.
        notes: what was noticed while it was read.
        run: gives the check of the broker an event loop.

    Yields:
        One fact after the other, as soon as it is known.
    """
    yield Finding("ok", "file", f"node {config.node}, topics {config.prefix}/{config.node}/...")
    for note in dict.fromkeys(notes):
        yield Finding("note", "file", note)
    yield from _guarded("model", lambda: _check_model(config.model))
    yield from _check_folders(config)
    with ThreadPoolExecutor(_MAX_AT_ONCE, thread_name_prefix="edge_vl-check") as pool:
        for found in pool.map(_check_camera, config.cameras):
            yield from found
    yield from _guarded("broker", lambda: check_broker(config, run))


def _guarded(subject: str, check: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """Yield what a check finds; an error that ends it is a problem like the others."""
    try:
        yield from check()
    except EdgeVLError as error:
        yield Finding.problem(subject, error)


def _check_model(model: ModelConfig) -> Iterator[Finding]:
    """See that the model is there and that it fits."""
    from edge_vl.families import family_of
    from edge_vl.kv_policy import parse_kv_policy
    from edge_vl.memory_plan import check_memory, plan_memory
    from edge_vl.models import find_model
    from edge_vl.profile_choice import decide
    from edge_vl.profile_report import lane_summary

    spec = find_model(model.name)
    family_of(spec)
    decision = decide(
        spec,
        profile=model.profile,
        vision_engine=model.vision_engine,
        language_engine=model.language_engine,
        vision_dtype=model.vision_dtype,
        language_dtype=model.language_dtype,
        threads=model.threads,
        context_length=model.context_length,
        kv=parse_kv_policy(model.kv),
    )
    lanes = "; ".join(f"{lane.lane}: {lane_summary(lane)}" for lane in decision.lanes)
    yield Finding("ok", "model", f"{spec.name}, profile {decision.profile.id}; {lanes}")
    for note in decision.notes:
        yield Finding("note", "model", note)
    check_memory(spec, decision, model.memory_budget_mib)
    plan = plan_memory(spec, decision, model.memory_budget_mib)
    budget = "" if plan.budget_bytes is None else f" of {plan.budget_bytes >> 20} ({plan.budget_source})"
    yield Finding("ok", "memory", f"needs about {plan.needed_bytes >> 20} MiB{budget}")


def _check_folders(config: GatewayConfig) -> Iterator[Finding]:
    """See that pictures can be read, and that what is going on can be remembered."""
    for folder in config.folders:
        if folder.is_dir() and os.access(folder, os.R_OK | os.X_OK):
            yield Finding("ok", "folder", f"{folder} can be read")
        else:
            yield Finding.problem("folder", SourceError(f"{folder} is no folder that can be read; see node.folders"))
    if config.state_dir is None:
        yield Finding(
            "note",
            "state",
            "no node.state_dir: after a crash nobody is told which requests were lost, unless the group does",
        )
        return
    trouble = _write_trouble(config.state_dir)
    if trouble:
        yield Finding.problem(
            "state",
            RequestError(
                f"{config.state_dir} cannot be written ({trouble}); see node.state_dir", field="node.state_dir"
            ),
        )
    else:
        yield Finding("ok", "state", f"{config.state_dir} can be written")


def _write_trouble(folder: Path) -> str:
    """Return why nothing can be written into a folder, which is made when it is needed; empty: it can be."""
    there = next((one for one in (folder, *folder.parents) if one.exists()), folder)
    try:
        with tempfile.TemporaryFile(dir=there):
            return ""
    except OSError as error:
        return error.strerror or str(error)


def _check_camera(camera: CameraConfig) -> list[Finding]:
    """Wait for a camera's first frame."""
    subject = f"camera {camera.name}"
    return list(_guarded(subject, lambda: _first_frame(camera, subject)))


def _first_frame(camera: CameraConfig, subject: str) -> Iterator[Finding]:
    from edge_vl.sources.open import open_source, shown_source
    from edge_vl.sources.pictures_source import PicturesSource

    limit_s = camera.settings.open_timeout_s + camera.settings.read_timeout_s
    started_s = time.monotonic()
    source = open_source(
        camera.source,
        settings=camera.settings,
        username=camera.username,
        password=camera.password,
        name=camera.name,
    )
    try:
        if isinstance(source, PicturesSource):
            raise SourceError("the camera of a gateway is a webcam, a stream or a recording, not pictures")
        frame = _newest(source, limit_s)
        ended_s = time.monotonic()
        if frame is None:
            reason = getattr(getattr(source, "state", None), "reason", "") or f"no frame within {limit_s:g} s"
            shown = shown_source(camera.source)
            raise SourceError(reason if shown in reason else f"{shown}: {reason}")
    finally:
        source.close()
    height, width = frame.pixels.shape[:2]
    age_s = ended_s - frame.captured_s
    text = f"{width}x{height}, first frame after {ended_s - started_s:.2f} s, {max(age_s, 0.0):.2f} s old"
    yield Finding("ok", subject, text)
    if source.is_live and age_s > _OLD_S:
        yield Finding("note", subject, "its frames are old when they come; see the camera's own settings for latency")
    if not camera.question and not camera.when:
        yield Finding("note", subject, "no question: it answers only when somebody asks")


def _newest(source: Any, limit_s: float) -> Any:
    """Return a frame of a live source that came in time, or the first one of any other.

    A camera that could not be opened is not waited for any longer.
    """
    if not hasattr(source, "wait_newer"):
        return next(iter(source), None)
    until_s = time.monotonic() + limit_s
    while (left_s := until_s - time.monotonic()) > 0:
        frame = source.wait_newer(-1, min(left_s, _LOOK_S))
        state = getattr(source, "state", None)
        if frame is not None or (state is not None and state.status == "offline" and state.num_failures > 0):
            return frame
    return None
