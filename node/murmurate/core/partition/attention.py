"""`nn.MultiheadAttention` with fewer heads than its stream is wide: torch's own cannot be that."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class NarrowAttention(nn.MultiheadAttention):
    """Some heads of an `nn.MultiheadAttention`; same call, same names of its tensors.

    A subclass, so that torch's transformer layers take it for what it is; they leave their fast
    path when `_qkv_same_embed_dim` is false, and call `forward`.
    """

    factor: float
    """On the partial sum of heads, in training."""

    @staticmethod
    def of(whole: nn.Module, head_dim: int) -> NarrowAttention:
        """Around the tensors of an attention that have been cut already."""
        assert isinstance(whole, nn.MultiheadAttention)
        narrow = NarrowAttention.__new__(NarrowAttention)
        nn.Module.__init__(narrow)
        narrow.__dict__.update(whole.__dict__)
        narrow.head_dim = head_dim
        narrow.num_heads = whole.out_proj.weight.shape[1] // head_dim
        narrow._qkv_same_embed_dim = False
        narrow.factor = 1.0
        return narrow

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        batched = query.dim() == 3
        if not batched:
            query, key, value = (t.unsqueeze(0) for t in (query, key, value))
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = (t.transpose(0, 1) for t in (query, key, value))
        q, k, v = (self._heads(i, t) for i, t in enumerate((query, key, value)))
        mask = _mask(attn_mask, key_padding_mask, q, k)
        dropout = self.dropout if self.training else 0.0
        shown: torch.Tensor | None = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            shown = (scores if mask is None else scores + mask).softmax(-1)
            mixed = functional.dropout(shown, dropout) @ v
            if average_attn_weights:
                shown = shown.mean(1)
        else:
            mixed = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, dropout_p=dropout
            )
        mixed = mixed.transpose(1, 2).flatten(2)
        if self.training and self.factor != 1.0:
            mixed = mixed * self.factor
        out = functional.linear(mixed, self.out_proj.weight, self.out_proj.bias)
        if not batched:
            return out.squeeze(0), None if shown is None else shown.squeeze(0)
        return (out if self.batch_first else out.transpose(0, 1)), shown

    def _heads(self, which: int, source: torch.Tensor) -> torch.Tensor:
        width = self.num_heads * self.head_dim
        rows = slice(which * width, (which + 1) * width)
        together: torch.Tensor | None = self._parameters["in_proj_weight"]
        biases: torch.Tensor | None = self._parameters["in_proj_bias"]
        if together is not None:
            weight = together[rows]
        else:
            weight = getattr(self, ("q_proj_weight", "k_proj_weight", "v_proj_weight")[which])
        bias = None if biases is None else biases[rows]
        made = functional.linear(source, weight, bias)
        shape = (*made.shape[:-1], self.num_heads, self.head_dim)
        return made.reshape(shape).transpose(1, 2)


def _mask(
    attention: torch.Tensor | None, padding: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor
) -> torch.Tensor | None:
    """Both masks as one to be added to the scores (batch, heads, queries, keys)."""
    out: torch.Tensor | None = None
    if attention is not None:
        attention = _added(attention, q)
        if attention.dim() == 3:  # one for each head of the whole: the same for all, or not ours
            attention = attention.reshape(q.shape[0], -1, *attention.shape[1:])[:, :1]
        out = attention
    if padding is not None:
        padding = _added(padding, q)[:, None, None, :]
        out = padding if out is None else out + padding
    return out


def _added(mask: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(like.dtype)
    return torch.zeros_like(mask, dtype=like.dtype).masked_fill_(mask, float("-inf"))
