"""What a gateway file says, checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from edge_vl.mqtt.broker_settings import BrokerSettings
from edge_vl.sources.camera_settings import CameraSettings

__all__ = ["CameraConfig", "GatewayConfig", "HomeAssistantConfig", "Limits", "ModelConfig", "WhenConfig"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What is run, as `Runtime.open` takes it. None and `auto`: its own choice."""

    name: str = "bundled"
    profile: str = "auto"
    vision_engine: str = "auto"
    language_engine: str = "auto"
    vision_dtype: str = "auto"
    language_dtype: str = "auto"
    kv: str = "auto"
    threads: int | None = None
    context_length: int | None = None
    memory_budget_mib: int | None = None
    keep_mib: int | None = None
    mode: str = "profile"


@dataclass(frozen=True, slots=True)
class WhenConfig:
    """A yes/no question about a camera, which becomes a switch that others listen to.

    Attributes:
        name: names its topic and sensor.
        question: asked about each frame of the watch, to be answered with yes or no.
        after: equal answers in a row before it changes.
    """

    name: str
    question: str
    after: int = 2


@dataclass(frozen=True, slots=True)
class CameraConfig:
    """One camera.

    Attributes:
        name: as a level of topics.
        source: what `edge_vl.open_source` takes; its password is not in there.
        question: asked again and again; empty: only when somebody asks.
        every_s: least seconds between two answers; None: as fast as it goes.
        on_motion: answer only when something has changed.
        max_silence_s: with `on_motion`: answer after so long all the same.
        when: yes/no questions.
        max_tokens: of each answer.
        deadline_s: of each answer; None: none.
        max_frame_age_s: of each answer; None: none.
        reuse: `exact`, `perceptual` or `approximate`.
        share: weight of its answers against those of other cameras.
        is_enabled: whether it begins switched on.
        snapshot: whether the frame is published with each answer, as JPEG.
        snapshot_max_px: longer edge of that JPEG.
        username: for the camera; None: none.
        password: likewise, from the environment or a file.
        settings: how it is read.
    """

    name: str
    source: str
    question: str = ""
    every_s: float | None = None
    on_motion: bool = False
    max_silence_s: float = 60.0
    when: tuple[WhenConfig, ...] = ()
    max_tokens: int = 128
    deadline_s: float | None = None
    max_frame_age_s: float | None = None
    reuse: str = "exact"
    share: float = 1.0
    is_enabled: bool = True
    snapshot: bool = False
    snapshot_max_px: int = 640
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    settings: CameraSettings = field(default_factory=CameraSettings)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a gateway takes on.

    Attributes:
        max_active: requests worked on at once.
        max_waiting: requests that wait behind those; the next one is refused as `overloaded`.
        max_per_client: requests of one client that may wait or run.
        max_request_bytes: of a request's JSON.
        max_image_bytes: of a picture, however it comes.
        max_images_bytes: of all raw pictures that wait for their request, and of the pictures of one request.
        max_image_mpx: millions of pixels of a picture, and of all that are decoded at the same time, each of which
            takes 10 to 20 bytes meanwhile. 25: phones take pictures of 12 or 24, a frame in 4K has 8.3.
        image_wait_s: how long a raw picture waits for its request.
        max_conversations: conversations kept at once; the one unused longest ends first.
        max_tokens: most that a request may ask for.
        default_deadline_s: of requests that name none.
        outbox_mib: messages kept while the broker is away.
        num_recent_ids: ids remembered, so that a repeated delivery is not answered twice.
        shutdown_s: how long a clean stop may take.
    """

    max_active: int = 4
    max_waiting: int = 64
    max_per_client: int = 32
    max_request_bytes: int = 131_072
    max_image_bytes: int = 16_777_216
    max_images_bytes: int = 67_108_864
    max_image_mpx: float = 25.0
    image_wait_s: float = 60.0
    max_conversations: int = 16
    max_tokens: int = 1024
    default_deadline_s: float = 120.0
    outbox_mib: int = 8
    num_recent_ids: int = 4096
    shutdown_s: float = 2.0


@dataclass(frozen=True, slots=True)
class HomeAssistantConfig:
    """Whether Home Assistant is told what is there, and where it listens."""

    is_enabled: bool = False
    discovery_prefix: str = "homeassistant"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """A whole gateway.

    Attributes:
        broker: how the broker is reached.
        node: its name.
        prefix: what all topics begin with.
        group: workers that it shares requests with; None: none.
        model: what is run.
        cameras: by their order in the file.
        limits: what it takes on.
        home_assistant: whether and where it announces itself.
        folders: where `{"file": ...}` may be.
        reply_prefixes: what a reply topic may begin with, besides `prefix`.
        state_dir: where it remembers what it was doing, for after a crash; None: nowhere.
        stats_every_s: how often `stats` is published.
    """

    broker: BrokerSettings
    node: str
    prefix: str = "edge_vl"
    group: str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    cameras: tuple[CameraConfig, ...] = ()
    limits: Limits = field(default_factory=Limits)
    home_assistant: HomeAssistantConfig = field(default_factory=HomeAssistantConfig)
    folders: tuple[Path, ...] = ()
    reply_prefixes: tuple[str, ...] = ()
    state_dir: Path | None = None
    stats_every_s: float = 30.0
