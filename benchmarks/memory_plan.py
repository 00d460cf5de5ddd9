"""How much memory a model takes, as growth over an empty runtime, against what the plan said before.

Each form runs in a process of its own: the bundled model is opened on the same engines and asked, then the model under
test is opened and asked one question about a picture, so long that prompt and answer nearly fill the context. Growth is
the highest resident memory after that, loading included, less the resident memory before.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.models import shape_model
from benchmarks.progress import report
from benchmarks.result import Bar, Cell, Result
from edge_vl.models import find_model
from edge_vl.tokenizer import HFTokenizer

ROOT = Path(__file__).resolve().parent.parent
LONGEST_EDGE = 1024
CONTEXT = 2048
ROOM = 480  # tokens of the picture, the template and the answer
MAX_OFF = 0.20
MIB = 1024**2

FORMS: tuple[tuple[str, str, str, str, str], ...] = (
    ("smolvlm-256m", "onnxruntime", "fp32", "onnxruntime", "fp32"),
    ("smolvlm-256m", "onnxruntime", "int8", "onnxruntime", "fp32"),
    ("smolvlm-256m", "onnxruntime", "int8", "llama_cpp", "q8_0"),
    ("smolvlm-256m", "llama_cpp", "fp16", "llama_cpp", "fp16"),
    ("smolvlm-256m", "llama_cpp", "q8_0", "llama_cpp", "q8_0"),
    ("smolvlm-256m", "llama_cpp", "q8_0", "llama_cpp", "q4_0"),
    ("smolvlm-500m", "onnxruntime", "fp32", "onnxruntime", "fp32"),
    ("smolvlm-500m", "llama_cpp", "fp16", "llama_cpp", "fp16"),
    ("smolvlm-500m", "llama_cpp", "q8_0", "llama_cpp", "q4_0"),
)
"""Model, engine and precision that see, engine and precision that speak."""


def run(quick: bool) -> Result:
    """Measure every form, or the first of each engine."""
    forms = (FORMS[0], FORMS[3]) if quick else FORMS
    bars: dict[str, Bar] = {}
    table: list[dict[str, Cell]] = []
    for form in forms:
        model, sees, sees_dtype, speaks, speaks_dtype = form
        name = f"{model}, {sees} {sees_dtype} sees, {speaks} {speaks_dtype} speaks"
        options = {
            "vision_engine": sees,
            "vision_dtype": sees_dtype,
            "language_engine": speaks,
            "language_dtype": speaks_dtype,
            "context_length": CONTEXT,
            "threads": None,
        }
        folder = shape_model(model, longest_edge=LONGEST_EDGE)
        if sees_dtype == "int8":
            _make_int8(folder)
        found = _measure(folder, options)
        planned, growth = found["plan"]["needed_bytes"], found["growth_bytes"]
        report(f"{name}: {growth / MIB:.0f} MiB, planned {planned / MIB:.0f}")
        bars[f"growth against the plan, off by, {name}"] = Bar(abs(growth / planned - 1), MAX_OFF)
        table.append(
            {
                "form": name,
                "planned_mib": round(planned / MIB, 1),
                "grew_mib": round(growth / MIB, 1),
                "of_which_mapped_files_mib": round(found["file_bytes"] / MIB, 1),
                "ratio": round(growth / planned, 3),
                "empty_runtime_mib": round(found["empty_bytes"] / MIB, 1),
                "prompt_tokens": found["prompt_tokens"],
            }
        )
    return Result(bars, table)


def _measure(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    task = {"folder": str(folder), "options": options, "question": _question(folder, CONTEXT - ROOM)}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory_growth"],
        cwd=ROOT,
        input=json.dumps(task),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _make_int8(folder: Path) -> None:
    """Have the int8 copy made, in another process: what that takes once is not what the model takes."""
    code = (
        "import sys; from pathlib import Path; from edge_vl.engine import LaneOptions\n"
        "from edge_vl.models import find_model; from edge_vl.registry import engine_named\n"
        "engine_named('onnxruntime').load_vision(find_model(Path(sys.argv[1])), LaneOptions(dtype='int8')).close()"
    )
    subprocess.run([sys.executable, "-c", code, str(folder)], cwd=ROOT, check=True)


def _question(folder: Path, num_tokens: int) -> str:
    """Return words of the model's own vocabulary, chosen all over it, that are nearly so many tokens."""
    tokenizer = HFTokenizer(find_model(folder))
    ids = [i for i in range(tokenizer.vocab_size) if tokenizer.token_bytes(i)[:1] == b" " and i > 1000]
    chosen = random.Random(0).sample(ids, num_tokens)
    text = b"".join(map(tokenizer.token_bytes, chosen)).decode("utf-8", "ignore")
    words = text.split(" ")
    while len(tokenizer.encode_text(" ".join(words))) > num_tokens:
        words = words[: -max(1, len(words) // 50)]
    return " ".join(words)
