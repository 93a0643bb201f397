"""The item head as the decoder's teacher: what it says of the codes of masked digits.

The items that it finds most likely, those of them that fit the shown digits, give each masked digit a distribution of
codes.
Letters in shapes: T targets, V views, n digits, M codes per digit, K items.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.models.diffgrm.noising import Views

ITEMS = 1024  # the most likely ones; more change nothing


@torch.no_grad()
def teach(item_logits: Tensor, semantic_ids: SemanticIds, views: Views, target: Tensor) -> Tensor:
    """Logits of all items [T, items] and the targets' SIDs [T, n] -> distributions of codes [T, V, n, M], zeros where
    none of the items fits the shown digits."""
    num_items = item_logits.shape[1] - 1  # without padding
    best, item = item_logits[:, 1:].float().topk(min(ITEMS, num_items))  # [T, K]
    codes = semantic_ids.lookup(item + 1)  # [T, K, n]
    is_shown_so = (codes == target[:, None])[:, None] | views.masked[:, :, None]  # [T, V, K, n]
    weight = best.softmax(dim=1)[:, None] * is_shown_so.all(dim=3)  # [T, V, K]
    weight = F.normalize(weight, p=1, dim=2)
    shape = views.logits.shape  # [T, V, n, M]
    index = codes.transpose(1, 2)[:, None].expand(*shape[:3], -1)
    return torch.zeros(shape, device=weight.device).scatter_add_(3, index, weight[:, :, None].expand(*shape[:3], -1))


def teacher_losses(views: Views, taught: Tensor) -> Tensor:
    """[T, V, n] cross-entropy of the masked digits from what was taught [T, V, n, M]."""
    log_prob = views.logits.log_softmax(dim=-1)
    return -(taught * log_prob.masked_fill(taught == 0, 0)).sum(dim=-1) * views.masked
