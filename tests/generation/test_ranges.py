import torch

from recbole_diffgrm.generation.ranges import expand_ranges


def test_ranges_one_after_the_other():
    number, index = expand_ranges(torch.tensor([4, 0, 9, 2]), torch.tensor([2, 0, 1, 3]))
    assert number.tolist() == [0, 0, 2, 3, 3, 3]
    assert index.tolist() == [4, 5, 9, 2, 3, 4]


def test_no_ranges():
    number, index = expand_ranges(torch.zeros(0).long(), torch.zeros(0).long())
    assert len(number) == len(index) == 0
