"""The page on writing an engine: its example is run, as a stranger would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "engines" / "README.md"


def test_the_example_passes_its_own_tests_and_runs_in_a_runtime(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in blocks] == ["toy_engine.py", "test_toy_engine.py"]
    for name, code in blocks:
        (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / "test_runtime.py").write_text(
        "import numpy as np\n"
        "from edge_vl import Runtime\n"
        "from toy_engine import engine\n\n\n"
        "def test_a_runtime_takes_it():\n"
        "    with Runtime.open(language_engine=engine, vision_engine=engine) as runtime:\n"
        "        answer = runtime.ask(np.zeros((64, 64, 3), np.uint8), 'What?', max_tokens=3)\n"
        "        assert answer.language_engine == 'toy'\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d\d passed", done.stdout), done.stdout
