"""Small models of every kind that can be cut, and what they take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Residual(nn.Module):
    """A basic block of a ResNet; with a stride its shortcut is a convolution."""

    def __init__(self, channels_in: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8))
        self.layers = nn.Sequential(Residual(8, 8), Residual(8, 12, 2), Residual(12, 12))
        self.fc = nn.Linear(12, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(torch.relu(self.stem(x)))
        x = functional.adaptive_avg_pool2d(x, 1)
        out: torch.Tensor = self.fc(torch.flatten(x, 1))
        return out


class GroupedAttention(nn.Module):
    """Causal, rotary, fewer keys and values than queries; sizes are written into the code."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(width, 2 * groups * self.size)
        self.out = nn.Linear(width, width)

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        half = self.size // 2
        angle = torch.arange(12, dtype=x.dtype)[: x.shape[-2], None] / torch.arange(1, half + 1)
        cos, sin = torch.cat([angle, angle], 1).cos(), torch.cat([angle, angle], 1).sin()
        return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, width = x.shape
        q = self.q(x).view(b, t, self.heads, self.size).transpose(1, 2)
        k, v = self.kv(x).split(self.groups * self.size, dim=2)
        k = k.view(b, t, self.groups, self.size).transpose(1, 2)
        v = v.view(b, t, self.groups, self.size).transpose(1, 2)
        each = self.heads // self.groups
        k = k[:, :, None].expand(b, self.groups, each, t, self.size)
        k = k.reshape(b, self.heads, t, self.size)
        v = v.repeat_interleave(each, dim=1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(y.transpose(1, 2).reshape(b, t, width))
        return out


class Decoder(nn.Module):
    """A small language model with a gated feed-forward, tied table, grouped attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 16)
        self.places = nn.Parameter(torch.randn(1, 6, 16) * 0.1)
        self.attention = GroupedAttention(16, 8, 4)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.gate = nn.Linear(16, 24, bias=False)
        self.up = nn.Linear(16, 24, bias=False)
        self.down = nn.Linear(24, 16, bias=False)
        self.head = nn.Linear(16, 11, bias=False)
        self.head.weight = self.table.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.table(words) + self.places
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        x = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        out: torch.Tensor = self.head(x)
        return out


class Gpt(nn.Module):
    """Attention as it is most often written by hand: one projection, one softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(12)
        self.qkv = nn.Linear(12, 36)
        self.proj = nn.Linear(12, 12)
        self.mlp = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 12))
        self.heads = 6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.size()
        q, k, v = self.qkv(self.norm(x)).split(12, dim=2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        scores = q @ k.transpose(-2, -1) / k.size(-1) ** 0.5
        y = scores.softmax(-1) @ v
        y = y.transpose(1, 2).contiguous().view(b, t, c)
        x = x + self.proj(y)
        out: torch.Tensor = x + self.mlp(x)
        return out


class Vit(nn.Module):
    """One table of queries, keys and values, reshaped to (3, heads, size)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(12, 36)
        self.proj = nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        qkv = self.qkv(x).reshape(b, t, 3, 6, 2).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        y = functional.scaled_dot_product_attention(q, k, v)
        out: torch.Tensor = self.proj(y.transpose(1, 2).flatten(2))
        return out


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.layers(x).mean(1))
        return out


class CrossDecoder(nn.Module):
    """torch's decoder layer: masked self-attention, attention to another sequence."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerDecoderLayer(16, 4, 24, dropout=0.0, norm_first=True)
        self.layers = nn.TransformerDecoder(layer, 2)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(5))

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x, memory, tgt_mask=self.mask.to(x.dtype))
        return out


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(16, 20),
        nn.ReLU(),
        nn.Linear(20, 14),
        nn.Tanh(),
        nn.Linear(14, 5),
    )


def mlp_norm() -> nn.Module:
    return nn.Sequential(
        nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 7), nn.BatchNorm1d(7),
        nn.ReLU(), nn.Linear(7, 4),
    )  # fmt: skip


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 10, 3, padding=1),
        nn.BatchNorm2d(10),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(160, 12),
        nn.ReLU(),
        nn.Linear(12, 5),
    )


def depthwise() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 1),
        nn.Conv2d(8, 8, 3, padding=1, groups=8),
        nn.GroupNorm(8, 8),
        nn.PReLU(8),
        nn.Conv2d(8, 12, 1),
        nn.GroupNorm(6, 12),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 4),
    )


def autoencoder() -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, 24),
        nn.ReLU(),
        nn.Unflatten(1, (6, 2, 2)),
        nn.ConvTranspose2d(6, 7, 2, 2),
        nn.ReLU(),
        nn.ConvTranspose2d(7, 1, 2, 2),
    )


def bag() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 10), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3))


Example = Callable[[], tuple[Any, ...]]
MODELS: dict[str, tuple[Callable[[], nn.Module], Example]] = {
    "mlp": (mlp, lambda: (torch.randn(6, 1, 4, 4),)),
    "mlp with batch-norm": (mlp_norm, lambda: (torch.randn(6, 6),)),
    "cnn": (cnn, lambda: (torch.randn(4, 1, 8, 8),)),
    "depthwise": (depthwise, lambda: (torch.randn(3, 3, 4, 4),)),
    "autoencoder": (autoencoder, lambda: (torch.randn(3, 10),)),
    "embedding": (bag, lambda: (torch.randint(9, (4, 3)),)),
    "resnet": (ResNet, lambda: (torch.randn(3, 3, 8, 8),)),
    "encoder": (Encoder, lambda: (torch.randn(3, 5, 16),)),
    "cross decoder": (CrossDecoder, lambda: (torch.randn(5, 3, 16), torch.randn(4, 3, 16))),
    "grouped decoder": (Decoder, lambda: (torch.randint(11, (3, 6)),)),
    "gpt": (Gpt, lambda: (torch.randn(3, 5, 12),)),
    "vit": (Vit, lambda: (torch.randn(3, 5, 12),)),
}
