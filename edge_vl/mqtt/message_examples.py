"""One example or more of every message of the contract. They stand in its schemas."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edge_vl.mqtt.messages import (
    Aborted,
    AnswerFrame,
    Cancel,
    Claim,
    Delta,
    End,
    ErrorFacts,
    ErrorMessage,
    ImageRef,
    Request,
    Start,
)
from edge_vl.mqtt.node_messages import (
    CameraAnswer,
    CameraEvent,
    CameraStateMessage,
    CameraStats,
    Info,
    InfoLimits,
    LinkStats,
    Stats,
)

__all__ = ["EXAMPLES"]

_ANSWER = "A red bicycle leans against the door."
_MOMENT = "2026-05-04T08:15:30.250+00:00"
_FRAME = AnswerFrame(source="door", index=1841, captured_at="2026-05-04T08:15:29.180+00:00", age_ms=1070, dropped=14)
_LIMITS = InfoLimits(
    max_active=4,
    max_waiting=64,
    max_per_client=32,
    max_request_bytes=131_072,
    max_image_bytes=16_777_216,
    max_tokens=1024,
    default_deadline_ms=120_000,
)

EXAMPLES: Mapping[str, tuple[msgspec.Struct, ...]] = {
    "request": (
        Request(id="q1", question="Who is at the door?", client="robot-7", images=[ImageRef(camera="door")]),
        Request(
            id="q2",
            question="What is new?",
            client="robot-7",
            images=[ImageRef(file="yard/0815.jpg"), ImageRef(topic="edge_vl/pi-door/image/robot-7/q2-1")],
            conversation="patrol",
            stream=False,
            max_tokens=64,
            temperature=0.7,
            seed=42,
            deadline_ms=8000,
            max_frame_age_ms=1000,
            reply_to="edge_vl/robot-7/answers",
        ),
    ),
    "cancel": (Cancel(id="q1", client="robot"), Cancel(id="q1")),
    "claim": (
        Claim(
            id="q1",
            node="pi-door",
            boot_id="b7f3",
            reply_to="edge_vl/pi-door/response/robot-7/q1",
            deadline_ms=120_000,
        ),
        Claim(id="q1", node="pi-door", boot_id="b7f3", reply_to="edge_vl/pi-door/response/robot-7/q1", released=True),
    ),
    "stream": (
        Start(id="q1", seq=0, t_ms=1, node="pi-door", boot_id="b7f3", model="smolvlm-256m"),
        Delta(id="q1", seq=1, t_ms=412, text="A red", tokens=2),
        End(
            id="q1",
            seq=2,
            t_ms=1073,
            text=_ANSWER,
            finish_reason="stop",
            usage={"prompt_tokens": 92, "image_tokens": 64, "completion_tokens": 9},
            timings={
                "wait": 0.2,
                "encode": 240.1,
                "prefill": 150.7,
                "decode": 640.0,
                "first_token": 410.9,
                "total": 1072.6,
            },
            frame=_FRAME,
        ),
        ErrorMessage(
            id="q1",
            seq=0,
            t_ms=1,
            error=ErrorFacts(type="image", message="there is no camera 'dor'; did you mean 'door'?", param="images[0]"),
        ),
        Aborted(id="q1", seq=None, t_ms=0, reason="worker_lost"),
    ),
    "info": (
        Info(
            node="pi-door",
            version="0.1.0",
            boot_id="b7f3",
            started_at=_MOMENT,
            protocol="5",
            model="smolvlm-256m",
            profile="raspberry-pi-5",
            vision_engine="onnxruntime",
            language_engine="onnxruntime",
            dtypes={"vision": "int8", "language": "int8", "kv": "f32"},
            context_length=4096,
            cameras=["door"],
            limits=_LIMITS,
        ),
    ),
    "stats": (
        Stats(
            node="pi-door",
            boot_id="b7f3",
            uptime_ms=86_400_000,
            active=1,
            answered=5120,
            failed=3,
            aborted=1,
            first_token_ms=412.5,
            tokens_per_s=14.2,
            memory_bytes=612_000_000,
            link=LinkStats(connections=2, rtt_ms=3.4, window_ms=0.0),
            cameras={"door": CameraStats(status="online", fps=15.0, frames=1841, answers=60, dropped=840, age_ms=66)},
        ),
    ),
    "camera-state": (
        CameraStateMessage(
            camera="door",
            status="online",
            since="2026-05-04T07:00:00.000+00:00",
            at=_MOMENT,
            t_ms=4_530_250,
            fps=15.0,
            width=1280,
            height=720,
            age_ms=66,
            question="What is at the door?",
            every_ms=5000,
            when={"person": False},
        ),
    ),
    "camera-event": (
        CameraEvent(camera="door", type="offline", at=_MOMENT, t_ms=4_530_250, reason="no frame for 5 s"),
        CameraEvent(camera="door", type="when", at=_MOMENT, t_ms=4_530_250, name="person", value=True, frame=1841),
    ),
    "camera-answer": (
        CameraAnswer(
            camera="door",
            question="What is at the door?",
            text=_ANSWER,
            state=_ANSWER,
            at=_MOMENT,
            t_ms=4_530_250,
            trigger="interval",
            finish_reason="stop",
            model="smolvlm-256m",
            frame=_FRAME,
            first_token_ms=412.5,
            total_ms=1070.0,
            tokens_per_s=14.2,
            usage={"prompt_tokens": 92, "image_tokens": 64, "completion_tokens": 9},
            when={"person": False},
        ),
    ),
}
"""By the name of the schema."""
