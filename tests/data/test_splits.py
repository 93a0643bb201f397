"""Leave-last-out, and the choice of training samples."""

import numpy as np
import pytest

from recbole_diffgrm import UserError
from recbole_diffgrm.data.dataset import FlatSequentialDataset
from recbole_diffgrm.data.sequences import FlatSequences
from recbole_diffgrm.data.splits import leave_last_out
from tests.data.helpers import as_tuples, make_config


@pytest.mark.parametrize("mode", ["valid_and_test", "valid_only", "test_only"])
def test_split_against_a_loop(mode):
    generator = np.random.default_rng(3)
    counts = generator.integers(1, 7, 50)
    user = np.repeat(np.arange(1, 51), counts)
    flat = FlatSequences.build(user, generator.integers(1, 9, len(user)), {})
    train, valid, test = ([], [], [])
    row = 0
    for count in counts:
        samples = list(range(row + 1, row + count))  # the first interaction has no history
        row += count
        if mode == "valid_and_test":
            held_out = min(2, max(0, len(samples) - 1))
            if held_out == 2:
                valid.append(samples[-2])
            if held_out:
                test.append(samples[-1])
        else:
            held_out = min(1, max(0, len(samples) - 1))
            (valid if mode == "valid_only" else test).extend(samples[len(samples) - held_out :])
        train.extend(samples[: len(samples) - held_out])
    assert [part.tolist() for part in leave_last_out(flat, mode)] == [train, valid, test]


def test_choice_of_training_samples(tiny):
    """Against loops over the users' own sequences; validation and test are the same whatever is chosen."""
    from collections import defaultdict

    def parts(**changes):
        config = make_config(tiny, MAX_ITEM_LIST_LENGTH=50, **changes)
        return [sorted(as_tuples(part.inter_feat[range(len(part))])) for part in FlatSequentialDataset(config).build()]

    train, valid, test = parts()
    of_user = defaultdict(list)
    for user, history, target in train:
        of_user[user].append((user, history, target))
    between = parts(min_history=2, max_history=4)
    assert between[0] == [sample for sample in train if 2 <= len(sample[1]) <= 4]
    longest = [max(samples, key=lambda sample: len(sample[1])) for samples in of_user.values()]
    assert parts(sliding_window=False, max_history=1)[0] == sorted(longest)
    once = parts(sliding_window=False, min_history=3)
    assert once[0] == sorted(sample for sample in longest if len(sample[1]) >= 3)
    assert between[1:] == once[1:] == [valid, test]
    with pytest.raises(UserError, match="no training sample of tiny has 30 items"):
        parts(min_history=30)
