"""Questions that have nothing to do with the picture, and the one answer that they get."""

from __future__ import annotations

import numpy as np

OFF_TOPIC_ANSWER = "I can only answer questions about simple shapes, their colors and their places."

_SENTENCES = (
    "Hello!", "Hi", "Who are you?", "What is the capital of France?", "Tell me a joke.", "What is the weather today?",
    "Write a poem about love.", "Translate this into German.", "How old are you?", "What time is it?",
    "Is there a dog?", "What does the sign say?", "How many people are there?", "Is there a car?",
    "What is 7 plus 5?", "Where is the cat?", "What color is the car?", "Thanks!", "Why is the sky blue?",
)  # fmt: skip
_WORDS = (
    "tell me a joke who are you how old is the president what time is it write a poem about love why sky weather "
    "today capital of France translate this into German hello there please can you help with my homework calculate "
    "seven plus one name of the dog cat person house car street read text in who won game explain quantum physics "
    "make money good morning thanks sing song tomorrow best way to cook rice news open door remember number is he "
    "she running happy number plate sign says do think feel like movie music"
)


def small_talk(rng: np.random.Generator) -> str:
    """Draw a sentence, or a handful of words in any order."""
    if rng.random() < 0.5:
        return _SENTENCES[int(rng.integers(len(_SENTENCES)))]
    words = _WORDS.split()
    text = " ".join(words[int(rng.integers(len(words)))] for _ in range(int(rng.integers(3, 9))))
    return text[0].upper() + text[1:] + (".", "?", "", "!")[int(rng.integers(4))]
