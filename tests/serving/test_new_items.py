"""New items without training, against models that are built with all items from the start."""

import shutil

import numpy as np
import pytest
import torch

from recbole_diffgrm import Recommender, Tokenizer, UserError, run
from recbole_diffgrm.experiments.item_table import Items
from recbole_diffgrm.generation.semantic_ids import SemanticIds
from recbole_diffgrm.serving.recommender import Query, _ItemsOnly, build_model

NEW = [
    {"item_id": "n1", "title": "Item 7", "categories": "c2|c3"},  # the text of i7
    {"item_id": "n2", "title": "Something else", "categories": ["c1"]},
    {"item_id": "n3", "title": "<b>Bold</b> &amp; new", "categories": ""},
]
TEXT = {"sid_quantizer": "opq", "sid_text_fields": ["title", "categories"], "sid_pca_dim": 12}
HEAD = {"item_head": True, "item_text": True}
MODELS = [
    ("DiffGRM", {"beam_size": 200}),
    ("DiffGRM", {"sid_collisions": "reassign", "mask_absent_codes": True}),
    ("DiffGRM", {**HEAD, "code_prior": True, "sample_unit": "sequence", "min_history": 1, "max_history": None}),
    ("DiffGRM", {**HEAD, "item_scoring": "generated", "leaf_size": 4, "sid_collisions": "extra_digit"}),
    ("TIGER", {"beam_size": 200, "sid_collisions": "extra_digit"}),
    ("ARM", {"beam_size": 200, "sid_collisions": "keep"}),
    ("RPG", {"scoring": "exhaustive", "sid_collisions": "keep"}),
    ("RPG", {"scoring": "graph"}),
    ("VQRec", {}),
    ("RecJPQ", {}),
    ("ActionPiece", {}),
]


@pytest.fixture
def train(options, encoder_folder):
    def _train(model: str, **changes) -> Recommender:
        text = {**TEXT, "sid_text_encoder": str(encoder_folder)}
        return Recommender.load(run(model, "tiny", **{**options, "epochs": 1, **text, **changes}).run_dir)

    return _train


def build_with_all_items(recommender: Recommender, tokenizer: Tokenizer, names: list[str], popularity: torch.Tensor):
    """The model with the same weights, in which new items are items like all others, but for their popularity."""
    config, before = recommender.config, recommender.model.state_dict()
    known = Items([*recommender.items.names, *names], [*recommender.items.titles, *names])
    sids = torch.from_numpy(tokenizer.table(known.names[1:]).astype(np.int64))
    ids = SemanticIds.build(
        torch.cat([sids[:1], sids]), tokenizer.codebook_size, popularity, config["sid_collision_order"]
    )
    state = {name: value for name, value in before.items() if not name.startswith("semantic_ids.")}
    if "text_vectors" in state:  # whitened by hand
        with np.load(recommender.result.run_dir / "text_whitening.npz") as saved:
            embeddings = tokenizer._embed(np.array(names), NEW, None, "cpu", False).vectors
            vectors = (embeddings.astype(np.float64) - saved["mean"]) @ saved["projection"]
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        state["text_vectors"] = torch.cat([state["text_vectors"], torch.from_numpy(vectors.astype(np.float32))])
    if "network.id_embedding" in state:
        learned = state["network.id_embedding"]
        state["network.id_embedding"] = torch.stack([*learned, *[0 * learned[0]] * len(names)])
    state.pop("graph", None)
    dataset = _ItemsOnly(config, known, {**state, **{f"semantic_ids.{k}": v for k, v in ids.named_buffers()}})
    model = config.model_class(config, dataset)
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert all(name.startswith(("semantic_ids.", "graph")) for name in missing.missing_keys)
    model.finish_items()
    return Recommender(config, model.eval(), known)


@pytest.mark.parametrize(("name", "changes"), MODELS, ids=str)
def test_as_if_they_had_been_there(train, name, changes):
    recommender = train(name, **changes)
    old, rule = len(recommender.items.names), recommender.config["sid_collisions"]
    popularity = torch.zeros(old + len(NEW), dtype=torch.int64)  # the order of the old ones, most popular first
    popularity[recommender.model.semantic_ids.popular.long()] = torch.arange(old, 1, -1)
    tokenizer = Tokenizer.load(recommender.result.run_dir / "tokenizer.npz")
    tokenizer.assign([item["item_id"] for item in NEW], texts=NEW)
    expected = build_with_all_items(recommender, tokenizer, ["n1", "n2", "n3"], popularity)
    assert recommender.add_items(NEW[:1]) == ["n1"] and recommender.add_items(NEW[1:]) == ["n2", "n3"]
    for item in ("i1", "n1", "n2", "n3"):
        assert recommender.sid(item) == tuple(tokenizer.table([item])[0].tolist())
    if rule == "keep" and "sid_collisions" in changes:
        assert recommender.sid("n1") == recommender.sid("i7")
    elif rule != "keep":
        assert len({recommender.sid(item) for item in recommender.items.names[1:]}) == old - 1 + len(NEW)
    histories = [["i3", "i4"], ["n1"], ["i5", "n2", "n3", "i8"]]
    for mine, theirs in zip(recommender.recommend(histories, 43), expected.recommend(histories, 43)):
        assert [one.item for one in mine] == [one.item for one in theirs] and len(mine) == 43
        assert [one.score for one in mine] == pytest.approx([one.score for one in theirs], abs=1e-4)
    assert recommender.items.titles[-3:] == ["Item 7", "Something else", "Bold & new"]


def test_one_with_the_text_of_another_follows_it(train):
    recommender = train("VQRec", sid_collisions="keep")
    recommender.add_items(NEW)
    items = [one.item for one in recommender.recommend([["i5", "i6"]], 43)[0]]
    scores = {one.item: one.score for one in recommender.recommend([["i5", "i6"]], 43)[0]}
    assert scores["n1"] == scores["i7"] and items.index("n1") > items.index("i7")
    assert recommender.recommend([["n1"]], 5) == recommender.recommend([["i7"]], 5)  # and is the same in a history


def test_filters(train, monkeypatch):
    recommender = train("DiffGRM", **HEAD)
    recommender.add_items(NEW)
    history = ["i3", "n2"]
    (everything,) = recommender.recommend([history], 43)
    asked = {"allow": ["i1", "n1", "i3", "n2"], "exclude": ["i1"]}
    for seen, gone in ((False, {"i1"}), (True, {"i1", "i3", "n2"})):
        (mine,) = recommender.answer([Query(history, 43, **asked, filter_seen=seen)])
        assert mine == [one for one in everything if one.item in set(asked["allow"]) - gone]
    queries = [Query(history, 3, exclude=["i9"]), Query(["i1"], 5), Query(["i2"], 4, allow=[])]
    assert recommender.answer(queries)[2] == []
    together = recommender.answer(queries)
    for mine, query in zip(together, queries):
        (alone,) = recommender.answer([query])
        assert [one.item for one in mine] == [one.item for one in alone]
    monkeypatch.setattr("recbole_diffgrm.serving.recommender.MAX_HIDDEN", 1)  # one user at a time
    assert [[one.item for one in mine] for mine in recommender.answer(queries)] == [
        [one.item for one in mine] for mine in together
    ]
    for key in ("allow", "exclude"):
        with pytest.raises(UserError, match=f"{key}: unknown items: x9"):
            recommender.answer([Query(history, **{key: ["x9"]})])
        assert recommender.answer([Query(history, **{key: ["x9", "i1"]}, skip_unknown=True)])


def test_embeddings_take_the_place_of_texts(train):
    recommender = train("DiffGRM", **HEAD)
    tokenizer = Tokenizer.load(recommender.result.run_dir / "tokenizer.npz")
    vectors = tokenizer._embed(np.array(["n1"]), NEW[:1], None, "cpu", False).vectors
    recommender.add_items([{"item_id": "v1"}], vectors)
    assert recommender.sid("v1") == tuple(tokenizer.assign(["v1"], embeddings=vectors)[0].tolist())
    with pytest.raises(UserError, match=r"embeddings must be \[1, 16\], not \[1, 3\]"):
        recommender.add_items([{"item_id": "v2"}], np.zeros((1, 3)))
    with pytest.raises(UserError, match="2 items, but 1 embedding"):
        recommender.add_items([{"item_id": "v2"}, {"item_id": "v3"}], np.zeros((1, 16)))


@pytest.mark.parametrize(
    ("items", "words"),
    [
        ([{"item_id": "i7", "title": "A"}], "'i7' is there already"),
        ([{"item_id": "n", "title": "A"}, {"item_id": "n", "title": "B"}], "'n' is given twice"),
        ([{"title": "A"}], "an item is {item_id"),
        (["n1"], "an item is {item_id"),
        ({"item_id": "n1"}, "give a list of items"),
        ([{"item_id": "n", "title": " "}], "'n' has no text in title, categories"),
        ([{"item_id": "n", "titel": "A"}], "'n' has none of title, categories.*Did you mean titel"),
        ([{"item_id": "a\tb", "title": "A"}], "cannot be an id"),
    ],
    ids=str,
)
def test_what_cannot_be_added(train, items, words):
    recommender = train("VQRec")
    before = recommender.recommend([["i3"]], 40)
    with pytest.raises(UserError, match=words):
        recommender.add_items(items)
    assert recommender.add_items([]) == [] and recommender.recommend([["i3"]], 40) == before


def test_runs_that_cannot_add(train, options):
    for model in ("SASRec", "Pop"):
        with pytest.raises(UserError, match=f"{model} cannot recommend items that it was not trained with"):
            Recommender.load(run(model, "tiny", **options).run_dir).add_items(NEW)
    with pytest.raises(UserError, match=r"not made from text \(sid_quantizer random\)"):
        Recommender.load(run("DiffGRM", "tiny", **options).run_dir).add_items(NEW)
    recommender = train("VQRec")
    shutil.move(recommender.result.run_dir / "tokenizer.npz", recommender.result.run_dir / "away.npz")
    with pytest.raises(UserError, match=r"has no tokenizer\.npz"):
        recommender.add_items(NEW)


def test_a_state_that_is_extended_is_a_state(train):
    recommender = train("TIGER")
    recommender.add_items(NEW)
    again = build_model(recommender.config, recommender.items, recommender.model.state_dict())
    assert len(again.semantic_ids.popular) == 43
