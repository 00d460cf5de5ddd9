"""Asks Home Assistant's own code, in an environment of its own: `make unit` makes it where it can be had."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

__all__ = ["NEEDS_HOME_ASSISTANT", "judged"]

_FOLDER = Path(__file__).parents[2] / "build" / "home-assistant"
_PYTHON = _FOLDER / "bin" / "python"

NEEDS_HOME_ASSISTANT = pytest.mark.skipif(
    not (_FOLDER / ".installed").exists(),
    reason=f"Home Assistant's code is not installed in {_FOLDER}; `make home-assistant` does that",
)


def judged(payloads: list[dict[str, Any]], samples: dict[str, str] | None = None) -> Any:
    """Return what is wrong with discovery payloads, and what their entities show; see `schema_judge.py`.

    Args:
        payloads: of devices.
        samples: messages by topic; of topics without one the entities have heard nothing.
    """
    done = subprocess.run(
        [_PYTHON, "-W", "ignore", str(Path(__file__).with_name("schema_judge.py"))],
        input=json.dumps({"devices": payloads, "samples": samples or {}}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
