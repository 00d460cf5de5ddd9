from __future__ import annotations

import pytest

from edge_vl.errors import (
    CacheFull,
    ContextLengthError,
    DeadlineExceeded,
    EdgeVLError,
    EngineFault,
    ImageError,
    MemoryBudgetError,
    QueueFull,
    RequestError,
    SourceError,
)
from edge_vl.gateway.error_facts import MAX_MESSAGE_CHARS, error_facts, late


@pytest.mark.parametrize(
    ("error", "kind", "param"),
    [
        (RequestError("wrong", field="max_tokens"), "invalid_request", "max_tokens"),
        (RequestError("wrong", field="max_frame_age_s"), "invalid_request", "max_frame_age_ms"),
        (ImageError("no picture", index=2), "image", "images[2]"),
        (SourceError("offline"), "image", None),
        (ContextLengthError(9000, 4096), "context_length", None),
        (MemoryBudgetError("too much", needed_bytes=2, budget_bytes=1), "memory_budget", None),
        (DeadlineExceeded(1.0, stage="decode"), "deadline_exceeded", None),
        (QueueFull(4, 4), "overloaded", None),
        (EngineFault("onnxruntime", "decode", "broken"), "engine", None),
        (CacheFull("onnxruntime", 10), "engine", None),
        (EdgeVLError("the runtime is closed"), "engine", None),
    ],
)
def test_each_error_of_ours_has_its_kind_and_keeps_its_words(error: EdgeVLError, kind: str, param: str | None) -> None:
    facts = error_facts(error)
    assert (facts.type, facts.param) == (kind, param)
    assert facts.message == str(error)


def test_of_any_other_error_only_its_kind_is_told() -> None:
    facts = error_facts(KeyError("password=hunter2"))
    assert facts.type == "engine"
    assert "KeyError" in facts.message
    assert "hunter2" not in facts.message


def test_a_long_message_is_cut() -> None:
    assert len(error_facts(EdgeVLError("x" * 10_000)).message) == MAX_MESSAGE_CHARS


def test_a_late_answer_names_the_clients_own_limit() -> None:
    assert late(400, "queue").message == "the deadline of 400 ms passed during queue"
