"""Small pictures, questions about them, and what is true: the bundled model answers every one of them rightly."""

from __future__ import annotations

import base64
import functools
import io
from dataclasses import dataclass
from typing import Any

from PIL import Image

from edge_vl.drawn_scene import draw_scene, random_scene

__all__ = ["KnownQuestion", "known_question"]

_SIZE = (128, 96)
_NUM_QUESTIONS = 5


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    """A question about a picture.

    Attributes:
        png: the encoded picture.
        question: what to ask.
        answer: what is drawn.
    """

    png: bytes
    question: str
    answer: str

    @property
    def image(self) -> dict[str, Any]:
        """The picture, as a request carries it."""
        return {"base64": base64.b64encode(self.png).decode()}

    def request(self, id: str, client: str, **fields: Any) -> dict[str, Any]:
        """Return a request that asks it."""
        return {"v": 1, "id": id, "client": client, "question": self.question, "images": [self.image], **fields}


@functools.lru_cache(maxsize=64)
def known_question(number: int) -> KnownQuestion:
    """Return the question of a number; five in a row are about the same picture."""
    scene = random_scene(number // _NUM_QUESTIONS)
    question, answer = scene.asked()[number % _NUM_QUESTIONS]
    data = io.BytesIO()
    Image.fromarray(draw_scene(scene, *_SIZE)).save(data, "PNG")
    return KnownQuestion(data.getvalue(), question, answer)
