"""A straightforward DiffGRM, on the weights of ours: what the benchmarks compare with.

Histories are padded to 50, an item's digits are joined and multiplied, the history is copied for every view or branch
and projected to keys and values each time. `decode_ids` is the paper's beam search over all IDs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTH = 50


def encode(net, codes: Tensor, length: Tensor) -> Tensor:
    """Histories [B, 50, n] of codes -> [B, 50, d], 0 where there is padding."""
    is_item = torch.arange(LENGTH) < length[:, None]
    joined = torch.cat([net.code_embedding[k][codes[:, :, k]] for k in range(net.shape.digits)], dim=-1)
    x = _dropout(net, net.item_outer(F.relu(net.item_inner(joined))) + net.position_embedding)
    for layer in net.encoder:
        x = _feed_forward(net, layer, _attend_self(net, layer, x, is_item[:, None, None]))
    return net.norm(x) * is_item[..., None]


def decode(net, memory: Tensor, digits: Tensor) -> Tensor:
    """Encoded histories [B, 50, d] and partial IDs [B, n], -1 where masked -> logits [B, n, M]"""
    n = net.shape.digits
    shown = [net.code_embedding[k][digits[:, k].clamp(min=0)] for k in range(n)]
    y = torch.stack([torch.where(digits[:, k, None] < 0, net.mask_embedding[k], shown[k]) for k in range(n)], dim=1)
    y = _dropout(net, y)
    for layer in net.decoder:
        y = _attend_self(net, layer, y)
        k, v = layer.look.key_value(memory).chunk(2, -1)
        q = layer.look.query(layer.look.norm(y))
        y = y + _dropout(net, layer.look.out(_attention(net, q, k, v)))
        y = _feed_forward(net, layer, y)
    return torch.einsum("bnd,nmd->bnm", net.norm(y), net.code_embedding)


def decode_ids(net, memory: Tensor, width: int, existing: set[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """IDs of each user, best first: at every step the best `width` of (branch, masked digit, code); those that do not
    exist, or came before, are dropped at the end."""
    users, n, codes = len(memory), net.shape.digits, net.shape.codes
    beams = torch.full((users, 1, n), -1)
    score = torch.zeros(users, 1)
    for _ in range(n):
        branches = beams.shape[1]
        logits = decode(net, memory.repeat_interleave(branches, 0), beams.flatten(0, 1))
        reached = logits.log_softmax(-1).view(users, branches, n, codes) + score[..., None, None]
        reached = reached.masked_fill(beams[..., None] >= 0, -torch.inf).flatten(1)
        score, choice = reached.topk(min(width, reached.shape[1]), dim=1)
        parent, digit, code = choice // (n * codes), choice % (n * codes) // codes, choice % codes
        beams = beams.gather(1, parent[..., None].expand(-1, -1, n)).scatter(2, digit[..., None], code[..., None])
    return [[sid for sid in dict.fromkeys(map(tuple, mine)) if sid in existing] for mine in beams.tolist()]


def _dropout(net, x: Tensor) -> Tensor:
    return F.dropout(x, net.shape.dropout, net.training)


def _attention(net, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    q, k, v = (part.unflatten(-1, (net.shape.heads, -1)).transpose(1, 2) for part in (q, k, v))
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    return (_dropout(net, logits.softmax(-1)) @ v).transpose(1, 2).flatten(2)


def _attend_self(net, layer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    part = layer.attention
    q, k, v = part.query_key_value(part.norm(x)).chunk(3, -1)
    return x + _dropout(net, part.out(_attention(net, q, k, v, mask)))


def _feed_forward(net, layer, x: Tensor) -> Tensor:
    part = layer.feed_forward
    return x + _dropout(net, part.outer(F.gelu(part.inner(part.norm(x)))))
