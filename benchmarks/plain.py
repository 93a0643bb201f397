"""A straightforward DiffGRM on the weights of this project's network: the reference of the benchmarks.

Histories are padded to 50 items, the digits of an item are concatenated and multiplied, the history is copied for every
view or branch and projected to keys and values each time. `decode_sids` is the paper's beam search over all SIDs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

BEST = 10  # items that a reference recommends

LENGTH = 50


def encode(net, codes: Tensor, length: Tensor) -> Tensor:
    """Histories [B, 50, n] of codes -> [B, 50, d], 0 where there is padding."""
    is_item = torch.arange(LENGTH) < length[:, None]
    joined = torch.cat([net.code_embedding[k][codes[:, :, k]] for k in range(net.config.num_digits)], dim=-1)
    mlp = net.item_embedding
    x = F.dropout(mlp.outer(F.relu(mlp.inner(joined))) + net.position_embedding, net.config.dropout, net.training)
    for layer in net.encoder:
        x = feed_forward(layer, attend_self(layer, x, is_item[:, None, None]))
    return net.norm(x) * is_item[..., None]


def decode(net, memory: Tensor, digits: Tensor) -> Tensor:
    """Encoded histories [B, 50, d] and partial SIDs [B, n], -1 where masked -> logits [B, n, M]"""
    n = net.config.num_digits
    shown = [net.code_embedding[k][digits[:, k].clamp(min=0)] for k in range(n)]
    y = torch.stack([torch.where(digits[:, k, None] < 0, net.mask_embedding[k], shown[k]) for k in range(n)], dim=1)
    y = F.dropout(y, net.config.dropout, net.training)
    for layer in net.decoder:
        y = feed_forward(layer, attend_cross(layer, attend_self(layer, y), memory))
    return torch.einsum("bnd,nmd->bnm", net.norm(y), net.code_embedding)


def loss(model, batch) -> Tensor:
    """The probe is a pass of its own."""
    net, sids, alpha = model.network, model.semantic_ids.lookup(torch.arange(model.n_items)), model.label_smoothing
    n = net.config.num_digits
    memory = encode(net, sids[batch["item_id_list"]], batch["item_length"])
    target = sids[batch["item_id"]]
    with torch.no_grad():
        confidence = decode(net, memory, torch.full_like(target, -1)).softmax(-1).amax(-1)
    rank = confidence.argsort(dim=1, stable=True).argsort(dim=1)
    masked = rank[:, None] < torch.arange(1, n + 1)[:, None]  # [B, V, n]
    views = target[:, None].masked_fill(masked, -1).flatten(0, 1)
    logits = decode(net, memory.repeat_interleave(n, 0), views)
    labels = target.repeat_interleave(n, 0)
    losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", label_smoothing=alpha)
    losses = losses.view_as(masked) * masked
    return (losses.sum(-1) / masked.sum(-1)).mean()


def decode_sids(net, memory: Tensor, width: int, existing: set[tuple[int, ...]]) -> list[list[tuple[int, ...]]]:
    """SIDs of each user, best first: at every step the best `width` of (branch, masked digit, code); those that do not
    exist, or appeared before, are dropped at the end."""
    num_users, n, codebook_size = len(memory), net.config.num_digits, net.config.codebook_size
    beams = torch.full((num_users, 1, n), -1)
    scores = torch.zeros(num_users, 1)
    for _ in range(n):
        num_branches = beams.shape[1]
        logits = decode(net, memory.repeat_interleave(num_branches, 0), beams.flatten(0, 1))
        reached = logits.log_softmax(-1).view(num_users, num_branches, n, codebook_size) + scores[..., None, None]
        reached = reached.masked_fill(beams[..., None] >= 0, -torch.inf).flatten(1)
        scores, choice = reached.topk(min(width, reached.shape[1]), dim=1)
        parent, choice = choice // (n * codebook_size), choice % (n * codebook_size)
        digit, code = choice // codebook_size, choice % codebook_size
        beams = beams.gather(1, parent[..., None].expand(-1, -1, n)).scatter(2, digit[..., None], code[..., None])
    return [[sid for sid in dict.fromkeys(map(tuple, mine)) if sid in existing] for mine in beams.tolist()]


def dropout(part, x: Tensor) -> Tensor:
    return F.dropout(x, part.dropout, part.training)


def attention(part, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    q, k, v = (x.unflatten(-1, (part.num_heads, -1)).transpose(1, 2) for x in (q, k, v))
    logits = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf)
    return (dropout(part, logits.softmax(-1)) @ v).transpose(1, 2).flatten(2)


def attend_self(layer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    part = layer.self_attention
    q, k, v = part.query_key_value(part.norm(x)).chunk(3, -1)
    return x + dropout(part, part.out(attention(part, q, k, v, mask)))


def attend_cross(layer, y: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
    part = layer.cross_attention
    k, v = part.key_value(memory).chunk(2, -1)
    q = part.query(part.norm(y))
    return y + dropout(part, part.out(attention(part, q, k, v, mask)))


def feed_forward(layer, x: Tensor) -> Tensor:
    part = layer.feed_forward
    return x + dropout(part, part.outer(F.gelu(part.inner(part.norm(x)))))
