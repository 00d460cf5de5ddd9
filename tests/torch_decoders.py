"""Small decoder graphs as PyTorch's exporters write them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.decoder_graphs import CONTEXT, FFN, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, VOCAB


class Norm(nn.Module):  # type: ignore[misc]  # torch is Any here
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(HIDDEN) + 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


class RootMeanSquare(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, (HIDDEN,), self.weight, 1e-5)


def turn(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * cosine + torch.cat([-second, first], -1) * sine


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self, attention: str, norm: type[Norm]) -> None:
        super().__init__()
        self.attention = attention
        self.norms = nn.ModuleList([norm(), norm()])
        sizes = [HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM]
        self.projections = nn.ModuleList([nn.Linear(HIDDEN, size, bias=False) for size in sizes])
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.gate, self.up = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(HIDDEN, FFN, bias=False)
        self.down = nn.Linear(FFN, HIDDEN, bias=False)

    def forward(self, x: Any, rope: Any, mask: Any, past: Any) -> Any:
        batch, rows = x.shape[:2]
        normal = self.norms[0](x)
        q, k, v = (
            projection(normal).view(batch, rows, -1, HEAD_DIM).transpose(1, 2) for projection in self.projections
        )
        q, k = turn(q, *rope), turn(k, *rope)
        keys, values = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        group = HEADS // KV_HEADS
        all_keys, all_values = (
            entries[:, :, None].expand(-1, -1, group, -1, -1).reshape(batch, HEADS, -1, HEAD_DIM)
            for entries in (keys, values)
        )
        if self.attention == "sdpa":
            mixed = functional.scaled_dot_product_attention(q, all_keys, all_values, attn_mask=mask)
        else:
            scores = q @ all_keys.transpose(2, 3) * HEAD_DIM**-0.5 + mask
            mixed = torch.softmax(scores, -1, dtype=torch.float32).to(q.dtype) @ all_values
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, rows, -1))
        normal = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(normal)) * self.up(normal)), keys, values


class Decoder(nn.Module):  # type: ignore[misc]
    """Embeds, mask, positions and the cache to logits and the cache."""

    def __init__(self, attention: str = "eager", norm: type[Norm] = Norm) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList([Layer(attention, norm) for _ in range(LAYERS)])
        self.norm, self.head = norm(), nn.Linear(HIDDEN, VOCAB, bias=False)
        half = HEAD_DIM // 2
        self.register_buffer("frequencies", 10000.0 ** -(torch.arange(half) / half))

    def forward(self, inputs_embeds: Any, attention_mask: Any, position_ids: Any, *past: Any) -> Any:
        angles = position_ids[:, :, None].float() * self.frequencies
        angles = torch.cat([angles, angles], -1)[:, None]
        rope = (angles.cos(), angles.sin())
        rows, total = inputs_embeds.shape[1], attention_mask.shape[1]
        seen = torch.arange(total) <= torch.arange(total - rows, total)[:, None]
        seen = seen[None, None] & attention_mask[:, None, None].bool()
        mask = torch.zeros(()).masked_fill(~seen, torch.finfo(torch.float32).min)
        x, present = inputs_embeds, []
        for number, layer in enumerate(self.layers):
            x, *cache = layer(x, rope, mask, past[2 * number : 2 * number + 2])
            present += cache
        return self.head(self.norm(x)), *present


class TransformersDecoder(nn.Module):  # type: ignore[misc]
    """A text model of transformers with its own cache object."""

    def __init__(self, kind: str, attention: str) -> None:
        super().__init__()
        import transformers

        torch.manual_seed(4)
        sizes = {
            "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT,
            "head_dim": HEAD_DIM, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.1,
        }  # fmt: skip
        if kind == "llama":
            config = transformers.LlamaConfig(**sizes, attn_implementation=attention)
            model = transformers.LlamaForCausalLM(config)
            self.text, self.head = model.model, model.lm_head
        else:
            vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
                      "image_size": 32, "patch_size": 8}  # fmt: skip
            config = transformers.SmolVLMConfig(
                text_config={"model_type": "llama", **sizes}, vision_config=vision, scale_factor=2,
                image_token_id=3, tie_word_embeddings=False, attn_implementation=attention,
            )  # fmt: skip
            model = transformers.SmolVLMForConditionalGeneration(config)
            self.text, self.head = model.model.text_model, model.lm_head

    def forward(self, inputs_embeds: Any, attention_mask: Any, position_ids: Any, *past: Any) -> Any:
        from transformers.cache_utils import DynamicCache

        cache = DynamicCache([(past[place], past[place + 1]) for place in range(0, len(past), 2)])
        result = self.text(
            inputs_embeds=inputs_embeds, attention_mask=attention_mask, position_ids=position_ids,
            past_key_values=cache, use_cache=True,
        )  # fmt: skip
        present = [entry for layer in result.past_key_values.layers for entry in (layer.keys, layer.values)]
        return self.head(result.last_hidden_state), *present


def export(model: nn.Module, path: Path, *, opset: int, is_dynamo: bool) -> Path:
    """Write a graph with the names that Optimum gives."""
    rows, past = 3, 5
    caches = [torch.randn(1, KV_HEADS, past, HEAD_DIM) for _ in range(2 * LAYERS)]
    inputs = (
        torch.randn(1, rows, HIDDEN),
        torch.ones(1, past + rows, dtype=torch.int64),
        torch.arange(past, past + rows)[None],
        *caches,
    )
    kinds = [f"{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")]
    names = ["inputs_embeds", "attention_mask", "position_ids", *(f"past_key_values.{kind}" for kind in kinds)]
    options: dict[str, Any] = {}
    if is_dynamo:
        run, entries = torch.export.Dim("rows"), torch.export.Dim("past")
        total = torch.export.Dim("total")
        options["dynamic_shapes"] = ({1: run}, {1: total}, {1: run}, tuple({2: entries} for _ in caches))
    else:
        axes = {"inputs_embeds": {1: "rows"}, "attention_mask": {1: "total"}, "position_ids": {1: "rows"}}
        axes.update({f"past_key_values.{kind}": {2: "past"} for kind in kinds})
        options["dynamic_axes"] = axes
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(), inputs, str(path), opset_version=opset, dynamo=is_dynamo, input_names=names,
            output_names=["logits", *(f"present.{kind}" for kind in kinds)], verbose=False, **options,
        )  # fmt: skip
    return path
