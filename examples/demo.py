"""Ask the bundled model about the bundled pictures and stream its answers.

    python examples/demo.py [ENGINE]

ENGINE sees and speaks: `onnxruntime`, `llama_cpp`, or `auto` for the one that edge_vl would choose by itself.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from edge_vl import Runtime

PICTURES = Path(__file__).parent / "pictures"


def main() -> int:
    """Ask every question of `pictures/scenes.json`; return the number of wrong answers."""
    scenes = json.loads((PICTURES / "scenes.json").read_text())
    engine = sys.argv[1] if len(sys.argv) > 1 else "auto"
    num_asked = num_wrong = 0
    with Runtime.open(model="bundled", vision_engine=engine, language_engine=engine) as runtime:
        for name, asked in scenes.items():
            print(f"\nexamples/pictures/{name}")
            for question, truth in asked.items():
                print(f"  Q: {question}\n  A: ", end="", flush=True)
                stream = runtime.stream(PICTURES / name, question)
                for token in stream:
                    print(token.text, end="", flush=True)
                answer = stream.answer
                first_ms = (answer.timings.first_token_s or 0.0) * 1000
                verdict = "" if answer.text == truth else f"  WRONG, it is: {truth}"
                print(f"   [first token after {first_ms:.0f} ms]{verdict}")
                num_asked += 1
                num_wrong += answer.text != truth
    print(f"\n{num_asked - num_wrong} of {num_asked} answers are true. Now ask yourself:")
    print('  . .venv/bin/activate && edge-vl ask examples/pictures/bricks.jpg "Where is the star?"')
    return num_wrong


if __name__ == "__main__":
    sys.exit(min(main(), 1))
