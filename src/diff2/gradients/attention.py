"""``nn.MultiheadAttention`` taken apart: linear layers, which have a rule, and one attention function between them.

PyTorch's own layer uses its weights functionally, where no rule sees them. In an engine's private copy of the model it
gets linear layers of its own, whose parameters are views of the same memory: one projection for queries, keys and
values that are one tensor, two or three where they are not. ``nn.TransformerEncoderLayer`` and its relatives are made
of it and of layers that have rules; their paths for inference, which skip their parts, are switched off.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.dropout import _DropoutNd

from .flat import FlatModule


def unsuited(layer: nn.MultiheadAttention) -> str | None:
    """Return why a layer cannot be taken apart, or None."""
    if layer.bias_k is not None or layer.add_zero_attn:
        return "uses add_bias_kv or add_zero_attn"
    return None


def take_apart(flat: FlatModule, run: Callable[[], object]) -> None:
    """Replace the attention layers of a private copy; ``run`` calls it once, to see which inputs are one tensor."""
    layers = [
        layer
        for layer in flat.module.modules()
        if type(layer) is nn.MultiheadAttention and any(flat.part_of(one) is not None for one in layer.parameters())
    ]
    for layer in flat.module.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            layer.activation_relu_or_gelu = 0  # what its path for inference asks for
        elif isinstance(layer, nn.TransformerEncoder):
            layer.use_nested_tensor = False
    if layers:
        watches = [layer.register_forward_pre_hook(_split, with_kwargs=True) for layer in layers]
        run()
        for watch in watches:
            watch.remove()


def dropping(module: nn.Module) -> list[nn.Module]:
    """Return the layers in training mode that drop units at random, for each record alone."""
    attention = (nn.MultiheadAttention, SplitAttention)  # no class derived from them, which may do anything
    kinds = [layer for layer in module.modules() if isinstance(layer, _DropoutNd) or type(layer) in attention]
    return [layer for layer in kinds if layer.training]


class SplitAttention(nn.MultiheadAttention):
    """The same function of the same parameters, with its linear layers as modules."""

    projections: nn.ModuleList  # of the tensors that are not the same: query, key, value
    joins: nn.Linear

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if query.dim() != 3 or len(self.projections) != _distinct(query, key, value):
            raise RuntimeError("attention is called in another way than on made-up records")
        q, k, v = (
            self._heads(part)
            for layer, x in zip(self.projections, (query, key, value), strict=False)
            for part in layer(x).chunk(layer.out_features // self.embed_dim, dim=-1)
        )
        causal = is_causal and key_padding_mask is None and not need_weights  # then the mask is but a hint
        mask = None if causal else _added(attn_mask, key_padding_mask, q)
        weights, dropped = None, self.dropout if self.training else 0.0
        if need_weights:
            scores = (q / q.shape[-1] ** 0.5) @ k.transpose(2, 3)
            weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), dropped)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropped, is_causal=causal)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        return self.joins(mixed.permute(order).flatten(2)), weights

    def _heads(self, x: Tensor) -> Tensor:
        """Return (records, heads, positions, width)."""
        return x.unflatten(-1, (self.num_heads, -1)).permute((0, 2, 1, 3) if self.batch_first else (1, 2, 0, 3))


def _split(layer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """Give a layer that is about to be called its linear layers; from the next call on it uses them."""
    if isinstance(layer, SplitAttention):
        return
    count = _distinct(*arguments[:3], *(named[name] for name in ("query", "key", "value")[len(arguments) :]))
    biases = (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    if not layer._qkv_same_embed_dim:
        count, weights = 3, (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    else:
        weights = layer.in_proj_weight.chunk(3)
    ends = {1: ((0, 3),), 2: ((0, 1), (1, 3)), 3: ((0, 1), (1, 2), (2, 3))}[count]
    layer.projections = nn.ModuleList(_linear(weights[start:stop], biases[start:stop]) for start, stop in ends)
    layer.joins = _linear((layer.out_proj.weight,), (layer.out_proj.bias,))
    layer.__class__ = SplitAttention


def _distinct(query: Tensor, key: Tensor, value: Tensor) -> int:
    """Return how many projections there are: one where all are the same tensor, two where keys and values are."""
    return 3 if key is not value else 2 if query is not key else 1


def _linear(weights: tuple[Tensor, ...], biases: tuple[Tensor | None, ...]) -> nn.Linear:
    """Return a linear layer whose parameters are these, which stand one after the other in memory."""
    layer = nn.Linear(weights[0].shape[1], sum(map(len, weights)), bias=biases[0] is not None, device="meta")
    for name, values in (("weight", weights), ("bias", biases)):
        first = values[0]
        if first is not None:
            size = (layer.out_features, *first.shape[1:])
            whole = first.detach().as_strided(size, first.stride(), first.storage_offset())
            setattr(layer, name, nn.Parameter(whole, requires_grad=False))
    return layer


def _added(attn_mask: Tensor | None, key_padding_mask: Tensor | None, q: Tensor) -> Tensor | None:
    """Return both masks as numbers that are added to the scores, (records, heads, positions, positions)."""
    masks = []
    if attn_mask is not None:  # (positions, positions), or one for each record and head
        masks.append(attn_mask if attn_mask.dim() == 2 else attn_mask.view(*q.shape[:2], *attn_mask.shape[1:]))
    if key_padding_mask is not None:
        masks.append(key_padding_mask[:, None, None, :])
    numbers = [q.new_zeros(()).where(~mask, -torch.inf) if mask.dtype == torch.bool else mask for mask in masks]
    return None if not numbers else numbers[0] if len(numbers) == 1 else numbers[0] + numbers[1]
