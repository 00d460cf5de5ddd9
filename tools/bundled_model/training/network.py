"""The network, written for fast training; its parameters are named as in transformers' Idefics3."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Dimensions:
    """Sizes of the model."""

    vision_hidden: int = 160
    vision_layers: int = 4
    vision_heads: int = 4
    vision_ffn: int = 640
    patch: int = 8
    patches_per_side: int = 8
    scale_factor: int = 2
    hidden: int = 256
    layers: int = 4
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    ffn: int = 512
    vocabulary: int = 448
    rope_theta: float = 10000.0
    norm_eps: float = 1e-5


class VisionAttention(nn.Module):
    """Self-attention of the vision encoder."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.heads = dims.vision_heads
        width = dims.vision_hidden
        self.k_proj, self.v_proj, self.q_proj, self.out_proj = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """Apply to (batch, length, width)."""
        batch, length, width = x.shape
        q, k, v = (
            projection(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return self.out_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class VisionMLP(nn.Module):
    """Feed-forward part of a vision layer."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dims.vision_hidden, dims.vision_ffn)
        self.fc2 = nn.Linear(dims.vision_ffn, dims.vision_hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to (batch, length, width)."""
        return self.fc2(functional.gelu(self.fc1(x), approximate="tanh"))


class VisionLayer(nn.Module):
    """One layer of the vision encoder."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.self_attn = VisionAttention(dims)
        self.layer_norm1 = nn.LayerNorm(dims.vision_hidden, eps=1e-6)
        self.mlp = VisionMLP(dims)
        self.layer_norm2 = nn.LayerNorm(dims.vision_hidden, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to (batch, length, width)."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class VisionModel(nn.Module):
    """The vision encoder: tiles to patch states."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.embeddings = nn.Module()
        self.embeddings.patch_embedding = nn.Conv2d(3, dims.vision_hidden, dims.patch, dims.patch)
        self.embeddings.position_embedding = nn.Embedding(dims.patches_per_side**2, dims.vision_hidden)
        self.encoder = nn.Module()
        self.encoder.layers = nn.ModuleList(VisionLayer(dims) for _ in range(dims.vision_layers))
        self.post_layernorm = nn.LayerNorm(dims.vision_hidden, eps=1e-6)

    def forward(self, pixels: Tensor) -> Tensor:
        """Encode float32 (num_tiles, 3, 64, 64) into (num_tiles, 64 patches, vision_hidden)."""
        x = self.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
        x = x + self.embeddings.position_embedding.weight
        for layer in self.encoder.layers:
            x = layer(x)
        return self.post_layernorm(x)


class Connector(nn.Module):
    """Pixel shuffle and projection: patch states to image tokens."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.factor = dims.scale_factor
        self.modality_projection = nn.Module()
        self.modality_projection.proj = nn.Linear(dims.vision_hidden * self.factor**2, dims.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Merge squares of patches and project: (num_tiles, 64, vision_hidden) to (num_tiles, 16, hidden)."""
        batch, patches, width = x.shape
        side, factor = int(patches**0.5), self.factor
        x = x.view(batch, side // factor, factor, side // factor, factor * width).transpose(2, 3)
        return self.modality_projection.proj(x.reshape(batch, patches // factor**2, factor**2 * width))


class TextAttention(nn.Module):
    """Grouped-query self-attention of the decoder."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.dims = dims
        self.q_proj = nn.Linear(dims.hidden, dims.heads * dims.head_dim, bias=False)
        self.k_proj = nn.Linear(dims.hidden, dims.kv_heads * dims.head_dim, bias=False)
        self.v_proj = nn.Linear(dims.hidden, dims.kv_heads * dims.head_dim, bias=False)
        self.o_proj = nn.Linear(dims.heads * dims.head_dim, dims.hidden, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, and the rotated queries and keys (both per query head)."""
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, -1, self.dims.head_dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, -1, self.dims.head_dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, -1, self.dims.head_dim).transpose(1, 2)
        q, k = rotate(q, rotation), rotate(k, rotation)
        groups = self.dims.heads // self.dims.kv_heads
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1)), q, k


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary position embedding to (batch, heads, length, head_dim)."""
    cosine, sine = rotation
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class TextMLP(nn.Module):
    """Gated feed-forward part of a decoder layer."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dims.hidden, dims.ffn, bias=False)
        self.up_proj = nn.Linear(dims.hidden, dims.ffn, bias=False)
        self.down_proj = nn.Linear(dims.ffn, dims.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply to (batch, length, width)."""
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class TextLayer(nn.Module):
    """One layer of the decoder."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.self_attn = TextAttention(dims)
        self.mlp = TextMLP(dims)
        self.input_layernorm = nn.RMSNorm(dims.hidden, eps=dims.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(dims.hidden, eps=dims.norm_eps)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, and the rotated queries and keys."""
        mixed, q, k = self.self_attn(self.input_layernorm(x), rotation, mask)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), q, k


class TextModel(nn.Module):
    """The decoder's parameters; `decoder.decode` runs them."""

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(dims.vocabulary, dims.hidden)
        self.layers = nn.ModuleList(TextLayer(dims) for _ in range(dims.layers))
        self.norm = nn.RMSNorm(dims.hidden, eps=dims.norm_eps)


class Network(nn.Module):
    """Vision encoder, connector and decoder; the head is the transposed embedding."""

    #: Root mean square of text embeddings and image tokens at the start. Equal scales let the decoder's layers write
    #: into image tokens as easily as into text.
    SCALE = 0.1

    def __init__(self, dims: Dimensions) -> None:
        super().__init__()
        self.dims = dims
        self.model = nn.Module()
        self.model.vision_model = VisionModel(dims)
        self.model.connector = Connector(dims)
        self.model.text_model = TextModel(dims)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.5 * module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        vision, text = self.model.vision_model, self.model.text_model
        nn.init.normal_(vision.embeddings.position_embedding.weight, std=0.1)
        projection = self.model.connector.modality_projection.proj
        nn.init.normal_(projection.weight, std=self.SCALE * projection.in_features**-0.5)
        nn.init.normal_(text.embed_tokens.weight, std=self.SCALE)
        nn.init.constant_(text.norm.weight, 0.5)
        for layer in vision.encoder.layers:
            nn.init.zeros_(layer.self_attn.out_proj.weight)
            nn.init.zeros_(layer.mlp.fc2.weight)
        for layer in text.layers:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)

    def encode(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return patch states (num_tiles, 64, vision_hidden) and image tokens (num_tiles, 16, hidden)."""
        patches = self.model.vision_model(pixels)
        return patches, self.model.connector(patches)

    def rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosine and sine, (batch, 1, length, head_dim / 2), of positions (batch, length)."""
        half = self.dims.head_dim // 2
        frequencies = self.dims.rope_theta ** -(torch.arange(half, dtype=torch.float32) / half)
        angles = positions[:, None, :, None].float() * frequencies
        return angles.cos(), angles.sin()

    def embed(self, ids: Tensor, image_tokens: Tensor, image_token_id: int) -> Tensor:
        """Embed token ids (batch, length) and put image tokens in their places."""
        embeds = self.model.text_model.embed_tokens(ids)
        is_image = (ids == image_token_id).unsqueeze(-1)
        return embeds.masked_scatter(is_image, image_tokens.to(embeds.dtype))

    def head(self, x: Tensor) -> Tensor:
        """Return logits over the vocabulary."""
        return functional.linear(self.model.text_model.norm(x), self.model.text_model.embed_tokens.weight)
