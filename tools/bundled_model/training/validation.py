"""Accuracy during training: the questions of the accuracy benchmark, asked of unseen scenes.

Every answer is checked with the true words before each token. An answer whose every token is the likeliest then is
the one that greedy decoding gives.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch

from tools.bundled_model.questions import KINDS, ask, facts
from tools.bundled_model.rendering import render
from tools.bundled_model.scenes import random_scene, random_size
from tools.bundled_model.tiling import tiles
from tools.bundled_model.training.decoder import decode
from tools.bundled_model.training.network import Network
from tools.bundled_model.training.packing import IGNORED, Packer, pack_turns


def accuracy(
    network: Network, packer: Packer, image_token_id: int, num_scenes: int, first_seed: int = 5000
) -> dict[str, float]:
    """Return the share of exactly right answers per kind."""
    right: dict[str, list[bool]] = defaultdict(list)
    for start in range(first_seed, first_seed + num_scenes, 10):
        pictures, rows, asked = [], [], []
        for seed in range(start, start + 10):
            scene = random_scene(seed, held_out=True)
            pictures.append(tiles(render(scene, *random_size(seed))))
            questions = [ask(kind, facts(scene), np.random.default_rng((seed, 4, at))) for at, kind in enumerate(KINDS)]
            present = [question for question in questions if question]
            rows.append([packer.turn(question, later=False) for question in present])
            asked.append([question.kind for question in present])
        packed = pack_turns(packer.prefix, rows)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            pixels = torch.from_numpy(np.stack(pictures)).permute(0, 1, 4, 2, 3).float().div(127.5).sub(1)
            _, image_tokens = network.encode(pixels.flatten(0, 1))
            states, *_ = decode(network, packed, image_tokens, image_token_id)
            likeliest = network.head(states[-1]).argmax(-1)
        hits = (likeliest == packed.labels) | (packed.labels == IGNORED)
        for row, kinds in enumerate(asked):
            for run, kind in enumerate(kinds, 1):
                right[kind].append(bool(hits[row][packed.runs[row] == run].all()))
    return {kind: float(np.mean(right[kind])) for kind in KINDS}
