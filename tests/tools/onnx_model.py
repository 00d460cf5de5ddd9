"""The shipped ONNX files in the plainest loop: the oracle of these tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from tools.bundled_model.export import MODEL_FOLDER
from tools.bundled_model.tiling import tiles
from tools.bundled_model.tokenizer import END, IMAGE, image_text, load_tokenizer

Cache = dict[str, NDArray[np.float32]]


class OnnxModel:
    """Vision encoder, embedding and decoder, greedily decoded with a cache."""

    def __init__(self) -> None:
        self.vision, self.embed, self.decoder = (
            onnxruntime.InferenceSession(MODEL_FOLDER / "onnx" / f"{name}.onnx", providers=["CPUExecutionProvider"])
            for name in ("vision_encoder", "embed_tokens", "decoder_model_merged")
        )
        self.tokenizer = load_tokenizer(MODEL_FOLDER)
        self.end, self.image = (self.tokenizer.encode(token).ids[0] for token in (END, IMAGE))

    def image_embeds(self, pixel_values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Encode (1, num_tiles, 3, 64, 64) into (num_tiles * 16, hidden_size)."""
        mask = np.ones((*pixel_values.shape[:2], *pixel_values.shape[3:]), bool)
        embeds: NDArray[np.float32] = self.vision.run(
            None, {"pixel_values": pixel_values, "pixel_attention_mask": mask}
        )[0]
        return embeds.reshape(-1, embeds.shape[-1])

    def embeds(self, ids: NDArray[np.int64], images: list[NDArray[np.float32]]) -> NDArray[np.float32]:
        """Embed (1, num_tokens) and put the images' embeds in their places."""
        embeds: NDArray[np.float32] = self.embed.run(None, {"input_ids": ids})[0]
        if images:
            embeds[ids == self.image] = np.concatenate(images)
        return embeds

    def logits(self, embeds: NDArray[np.float32], past: Cache, keep: int) -> tuple[NDArray[np.float32], Cache]:
        """Run the decoder over new tokens; return the last `keep` rows (0 for all) and the longer cache."""
        num_past, num_new = next(iter(past.values())).shape[2], embeds.shape[1]
        feeds: dict[str, Any] = {
            "inputs_embeds": embeds,
            "attention_mask": np.ones((1, num_past + num_new), np.int64),
            "position_ids": np.arange(num_past, num_past + num_new)[None],
            "num_logits_to_keep": np.array(keep),
            **past,
        }
        logits, *present = self.decoder.run(None, feeds)
        return logits, dict(zip(past, present, strict=True))

    def empty_cache(self) -> Cache:
        """Return a cache of no tokens."""
        inputs = [entry for entry in self.decoder.get_inputs() if entry.name.startswith("past_key_values.")]
        return {entry.name: np.zeros((1, entry.shape[1], 0, entry.shape[3]), np.float32) for entry in inputs}

    def greedy(self, embeds: NDArray[np.float32], past: Cache, most: int = 96) -> tuple[list[int], Cache]:
        """Decode until the end of the utterance; the cache then holds all but the last token."""
        ids: list[int] = []
        while len(ids) < most and (not ids or ids[-1] != self.end):
            logits, past = self.logits(embeds, past, 1)
            ids.append(int(logits[0, -1].argmax()))
            embeds = self.embeds(np.array([ids[-1:]]), [])
        return ids, past

    def converse(self, turns: list[tuple[NDArray[np.uint8] | None, str]]) -> list[str]:
        """Ask question after question, each with a new picture or about the last one, and return the answers."""
        answers, past, before = [], self.empty_cache(), "<|im_start|>"
        for picture, question in turns:
            text = before + ("User: " if picture is None else "User:" + image_text()) + question + f"{END}\nAssistant:"
            images = []
            if picture is not None:
                pixels = tiles(picture).transpose(0, 3, 1, 2)[None].astype(np.float32) / 127.5 - 1
                images.append(self.image_embeds(pixels))
            ids, past = self.greedy(self.embeds(np.array([self.tokenizer.encode(text).ids]), images), past)
            answers.append(self.tokenizer.decode(ids).strip())
            before = f"{END}\n"
        return answers

    def ask(self, picture: NDArray[np.uint8], question: str) -> str:
        """Return the answer to one question about one picture."""
        return self.converse([(picture, question)])[0]
