"""Items out of IDs, against a loop."""

import pytest
import torch

from recbole_diffgrm.decoding.catalogue import Catalogue
from recbole_diffgrm.decoding.items import dense_scores, has_new_item, moved_up, rank_items
from recbole_diffgrm.decoding.scores import mask_scores, top_items


def catalogue(codes, order="popularity", items=30):
    draw = torch.Generator().manual_seed(codes)
    sids = torch.randint(codes, (items + 1, 2), generator=draw)
    popularity = torch.randint(4, (items + 1,), generator=draw)  # with ties
    return Catalogue.build(sids, max(codes, 2), popularity, order), sids, popularity


def looped(rows, sids, popularity, count, seen, order):
    """The items of each ID by preference, then the others by popularity."""
    ids = sorted(set(map(tuple, sids[1:].tolist())))
    every = range(1, len(sids))
    popular = sorted(every, key=lambda item: (-popularity[item].item(), item))
    ranked = []
    for user, mine in enumerate(rows.tolist()):
        items = []
        for row in mine:
            members = [item for item in every if row >= 0 and tuple(sids[item].tolist()) == ids[row]]
            items += [item for item in (popular if order == "popularity" else every) if item in members]
        items += [item for item in popular if item not in items]
        items = [item for item in items if (user, item) not in seen][:count]
        ranked.append(items + [0] * (count - len(items)))
    return ranked


def ranked_ids(distinct, draw):
    """Of six users: some have few IDs, one has none."""
    rows = torch.stack([torch.randperm(distinct, generator=draw) for _ in range(6)])[:, :8]
    rows[2, rows.shape[1] // 2 :] = -1
    rows[3] = -1
    return rows


@pytest.mark.parametrize("order", ["popularity", "number"])
@pytest.mark.parametrize(("codes", "count"), [(2, 5), (3, 20), (50, 4), (50, 12), (1, 7), (3, 40)])
def test_against_a_loop(codes, count, order):
    """Many items an ID, few, and all with the same; lists longer than what the IDs hold, and than the catalogue."""
    known, sids, popularity = catalogue(codes, order)
    rows = ranked_ids(len(known.lattice_ids), torch.Generator().manual_seed(1))
    pairs = {(user, item) for user in (0, 2, 5) for item in range(1, 31, 3)} | {(4, item) for item in range(1, 31)}
    seen = tuple(torch.tensor(column) for column in zip(*sorted(pairs)))
    for hidden, left_out in ((None, set()), (seen, pairs)):
        found, own = rank_items(rows, known.groups, known.popular, count, hidden)
        assert found.tolist() == looped(rows, sids, popularity, count, left_out, order)
        for user, mine in enumerate(rows.tolist()):
            ids = [known.lattice_ids[row].tolist() for row in mine if row >= 0]
            members = [i for i in range(1, 31) if sids[i].tolist() in ids and (user, i) not in left_out]
            assert own[user] == min(count, len(members))


@pytest.mark.parametrize("codes", [1, 3, 50])
def test_scores_of_all_items_give_the_same_lists(codes):
    known, *_ = catalogue(codes)
    rows = ranked_ids(len(known.lattice_ids), torch.Generator().manual_seed(2))
    seen = (torch.tensor([0, 0, 2, 5]), torch.tensor([4, 7, 1, 30]))
    for hidden in (None, seen):
        scores = mask_scores(dense_scores(rows, known.groups, known.popular), hidden)
        assert all(len(set(row.tolist())) == 30 for row in dense_scores(rows, known.groups, known.popular)[:, 1:])
        assert top_items(scores, 12).tolist() == rank_items(rows, known.groups, known.popular, 12, hidden)[0].tolist()


def test_ids_without_a_new_item():
    known, sids, _ = catalogue(3)
    ids = known.lattice_ids.tolist()
    rows = torch.tensor([[0, 3, 5], [2, 0, -1]])
    of_first = [item for item in range(1, 31) if sids[item].tolist() == ids[0]]
    seen = (torch.tensor([0] * len(of_first) + [1]), torch.tensor([*of_first, of_first[0]]))
    has_new = has_new_item(rows, known.groups, seen)
    assert has_new.tolist() == [[False, True, True], [True, len(of_first) > 1, False]]
    assert moved_up(rows, has_new, -1)[0].tolist() == [3, 5, -1]


def test_what_a_catalogue_knows_survives_saving():
    known, sids, _ = catalogue(3)
    state = torch.nn.ModuleDict({"catalogue": known}).state_dict()
    again = Catalogue.from_state(state, "catalogue.")
    assert again.digits == 2 and again.codes == 3
    items = torch.arange(1, 31)
    assert again.sids(items).tolist() == sids[1:].tolist()
    expected = [(sids[1:] == sids[item]).all(1).sum().item() for item in range(1, 31)]
    assert again.group_size(items).tolist() == expected
    for name, array in known.lattice._asdict().items():
        assert torch.equal(getattr(again.lattice, name), array)
