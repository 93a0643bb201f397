"""Statistics of digits against loops."""

import pytest
import torch

from recbole_diffgrm.models.diffgrm.noising import Views, digit_losses
from recbole_diffgrm.models.diffgrm.statistics import digit_means, digit_sums
from tests.models.diffgrm.test_noising import make_noising


def make_views(last_is_full, seed=0):
    """Six targets of three digits of five codes, in four views."""
    draw = torch.Generator().manual_seed(seed)
    masked = torch.rand(6, 4, 3, generator=draw) < 0.6
    masked[:, :, 1] |= ~masked.any(dim=2)  # every view masks something
    if last_is_full:
        masked[:, -1] = True
    logits = 3 * torch.randn(6, 4, 3, 5, generator=draw)
    return Views(masked, logits), torch.randint(5, (6, 3), generator=draw)


@pytest.mark.parametrize("last_is_full", [True, False])
@pytest.mark.parametrize("confidence", ["msp", "entropy"])
def test_sums_equal_a_loop(confidence, last_is_full):
    noising = make_noising("ocn", ocn_confidence=confidence)
    views, target = make_views(last_is_full)
    losses = digit_losses(views, target, 0.1)
    expected = {name: [0.0] * 3 for name in ("masked", "loss", "correct", "confidence", "hardest")}
    for b in range(6):
        for v, k in torch.nonzero(views.masked[b]).tolist():
            probabilities = views.logits[b, v, k].softmax(0)
            expected["masked"][k] += 1
            expected["loss"][k] += losses[b, v, k].item()
            expected["correct"][k] += float(probabilities.argmax() == target[b, k])
            expected["confidence"][k] += probabilities.max().item()
        last = noising.difficulty(views.logits[b : b + 1, -1])[0].tolist()
        expected["hardest"][max((k for k in range(3) if views.masked[b, -1, k]), key=lambda k: last[k])] += 1
    sums = digit_sums(views, losses, target, noising)
    assert list(sums) == list(expected)
    for name, values in sums.items():
        assert values.dtype == torch.float32
        assert values.tolist() == pytest.approx(expected[name], rel=1e-5), name


def test_means():
    means = digit_means(
        {
            "masked": [4.0, 0.0, 12.0],
            "loss": [2.0, 0.0, 3.0],
            "correct": [1.0, 0.0, 6.0],
            "confidence": [2.0, 0.0, 9.0],
            "hardest": [1.0, 0.0, 3.0],
        }
    )
    assert means == {
        "digit_masked": [0.25, 0.0, 0.75],
        "digit_loss": [0.5, 0.0, 0.25],
        "digit_accuracy": [0.25, 0.0, 0.5],
        "digit_confidence": [0.5, 0.0, 0.75],
        "digit_hardest": [0.25, 0.0, 0.75],
    }
