"""One process that measures how much memory a model takes; `benchmarks.memory_plan` starts it and reads its answer.

Standard input is a JSON object: `folder`, `question`, and `options` for `Runtime.open`. Standard output is one, too:
`empty_bytes`, the resident memory of an empty runtime, that is with the bundled model open on the same engines and
asked once; `growth_bytes`, how far the resident memory rises above it at its highest while the model is loaded and
answers; `file_bytes`, the part of that which is mapped from files and can be dropped; and what the plan said before.
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from edge_vl import Runtime
from edge_vl.memory_plan import plan_memory
from edge_vl.models import find_model
from edge_vl.profile_choice import decide

_SHARED = ("vision_engine", "language_engine", "threads")


def main() -> None:
    """Measure."""
    task: dict[str, Any] = json.load(sys.stdin)
    folder, options = Path(task["folder"]), task["options"]
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    with Runtime.open("bundled", **{name: options[name] for name in _SHARED}) as empty:
        empty.ask(pixels, "What is there?", max_tokens=4)
        gc.collect()
        before = _memory()
        Path("/proc/self/clear_refs").write_text("5")  # the highest mark begins anew
        model = find_model(folder)
        plan = plan_memory(model, decide(model, **options))
        with Runtime.open(folder, **options) as runtime:
            answer = runtime.ask(pixels, task["question"], max_tokens=8)
            after = _memory()
    found = {
        "empty_bytes": before["VmRSS"],
        "growth_bytes": after["VmHWM"] - before["VmRSS"],
        "file_bytes": after["RssFile"] - before["RssFile"],
        "prompt_tokens": answer.usage.prompt_tokens,
        "plan": plan.as_json(),
    }
    print(json.dumps(found))


def _memory() -> dict[str, int]:
    """Return the fields of `/proc/self/status` that are sizes, in bytes."""
    fields = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            fields[name] = int(value.split()[0]) * 1024
    return fields


if __name__ == "__main__":
    main()
