"""The byte-level BPE tokenizer, its special tokens, and the layout of a turn."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from tools.bundled_model.questions import KINDS, facts, random_question
from tools.bundled_model.scenes import random_scene

FIRST_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
GLOBAL, FAKE, IMAGE, END = "<global-img>", "<fake_token_around_image>", "<image>", "<end_of_utterance>"
MARKERS = tuple(f"<row_{row}_col_{column}>" for row in range(1, 7) for column in range(1, 7))
LAST_TOKENS = (GLOBAL, *MARKERS, FAKE, IMAGE, END)
IMAGE_TOKENS = 16
#: The byte-level alphabet's line feed. Two of them stand before the thumbnail; llama.cpp wants them to be one token.
NEW_LINE = "\u010a"
VOCABULARY = 544

#: SmolVLM's template: no space after the role where an image follows.
CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def image_text(rows: int = 2, columns: int = 2) -> str:
    """Return the tokens that stand for one picture of rows x columns tiles."""
    text = ""
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            text += f"{FAKE}<row_{row}_col_{column}>{IMAGE * IMAGE_TOKENS}"
        text += "\n"
    return text + f"\n{FAKE}{GLOBAL}{IMAGE * IMAGE_TOKENS}{FAKE}"


def train_tokenizer(seed: int = 7) -> Tokenizer:
    """Learn the merges from questions and answers; all 256 bytes are in the vocabulary."""
    rng = np.random.default_rng(seed)
    corpus = []
    for number in range(12000):
        question = random_question(facts(random_scene(number)), rng, (*KINDS, "off_topic"))
        before = ("User: ", "\n")[number % 2]  # a question follows a space, or a picture
        corpus.append(f"{before}{question.text}\nAssistant: {question.answer}\n")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(LAST_TOKENS) - 1,
        special_tokens=[AddedToken(token, normalized=False, special=True) for token in FIRST_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer = _with_merge(tokenizer, NEW_LINE, NEW_LINE)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in LAST_TOKENS])
    return tokenizer


def _with_merge(tokenizer: Tokenizer, first: str, second: str) -> Tokenizer:
    """Return a tokenizer with one more merge."""
    state = json.loads(tokenizer.to_str())
    model = state["model"]
    model["merges"].append([first, second])
    model["vocab"][first + second] = max(model["vocab"].values()) + 1
    return Tokenizer.from_str(json.dumps(state))


def save_tokenizer(folder: Path) -> None:
    """Learn the tokenizer and write `tokenizer.json`."""
    train_tokenizer().save(str(folder / "tokenizer.json"))


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a model folder."""
    return Tokenizer.from_file(str(folder / "tokenizer.json"))
