"""Items that nobody has trained on: how well are they recommended once they are added by their text?

    python benchmarks/cold_items.py --data_path FOLDER [--dataset Amazon_Beauty] [--model DiffGRM] [--preset item]

A random share of the items is taken out of the data altogether, a model is trained on the rest, and the items are added
to it (`recommender.add_items`). The users are those whose last item is one of them: it is the target, all items before
it are the history. Against it: popularity, which knows nothing of a new item, and the nearest text neighbours of the
history (cosine of the encoder's vectors with their mean over the last items, or with that of the last one). Seen items
are filtered; metrics @10 among all items and among the new ones, with 95 % intervals (bootstrap over users), as JSON.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

K = 10
RECENT = 20  # items of a history whose text is averaged


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="Amazon_Beauty")
    parser.add_argument("--data_path", default="dataset")
    parser.add_argument("--model", default="DiffGRM", help="one that can add items: TIGER, ARM, RPG, VQRec, ...")
    parser.add_argument("--preset", default="item", help='NAME,NAME of the model; "" for none')
    parser.add_argument("--sid_text_encoder", default="bundled")
    parser.add_argument("--share", type=float, default=0.1, help="of the items that are held out")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of these items")
    parser.add_argument("--epochs", type=int, help="default: the model's")
    parser.add_argument("--settings", default="{}", help="further keys of the run, as JSON")
    parser.add_argument("--users", type=int, help="at most this many, for a quick look")
    parser.add_argument(
        "--folder", type=Path, default=Path("cache") / "cold_items", help="of the reduced data and runs"
    )
    parser.add_argument("--output", type=Path, help="JSON; default: print it")
    return parser.parse_args()


def hold_out(item_ids: np.ndarray, share: float, seed: int) -> set[str]:
    order = np.random.default_rng(seed).permutation(np.sort(item_ids))
    return set(order[: max(1, round(share * len(order)))].tolist())


def write_reduced(config, held_out: set[str], folder: Path) -> str:
    """The data without these items, under the same name: a data_path."""
    from recbole_diffgrm.data.atomic import read_header, read_rows, write_atomic_file

    target = folder / config.dataset
    target.mkdir(parents=True, exist_ok=True)
    for suffix in ("inter", "item"):
        source = Path(config["data_path"]) / f"{config.dataset}.{suffix}"
        header = read_header(source)
        column = list(header).index(config["ITEM_ID_FIELD"])
        rows = (row for row in read_rows(source) if row[column] not in held_out)
        write_atomic_file(target / source.name, header, rows)
    return str(folder)


def read_items(config, wanted: list[str]) -> list[dict[str, str]]:
    """Their lines of the .item file, all columns."""
    from recbole_diffgrm.data.atomic import read_header, read_rows

    path = Path(config["data_path"]) / f"{config.dataset}.item"
    header = read_header(path)
    lines = [dict(zip(header, row)) for row in read_rows(path)]
    by_id = {line[config["ITEM_ID_FIELD"]]: line for line in reversed(lines)}  # the first one of an id counts
    return [by_id[item] for item in wanted]


def cold_users(split, held_out: set[str], most: int | None) -> list[tuple[list[str], str]]:
    """(history, target) of the users whose last item is held out, and new to them, and who had one that is not."""
    samples = split.test.inter_feat
    flat, names = samples.flat, ["", *split.item_ids.tolist()]
    users = []
    for row in samples.rows.tolist():
        target = names[int(flat.item[row])]
        history = [names[item] for item in flat.item[row - int(flat.num_known[row]) : row].tolist()]
        if target in held_out and target not in history and set(history) - held_out:  # seen items are filtered
            users.append((history, target))
    return users[:most]


def measure(ranks: np.ndarray) -> dict[str, Any]:
    """Of the targets' ranks, from 1."""
    from recbole_diffgrm.evaluation.intervals import bootstrap_intervals, metric_of_targets

    values = {name: metric_of_targets(name, ranks) for name in (f"recall@{K}", f"ndcg@{K}")}
    intervals = bootstrap_intervals(values, np.arange(len(ranks)))
    return {name: {"mean": float(of.mean()), "interval": intervals[name]} for name, of in values.items()}


def rank_by_model(recommender, users: list[tuple[list[str], str]], allow: list[str] | None) -> np.ndarray:
    from recbole_diffgrm.serving.recommender import Query

    lists = recommender.answer([Query(history, K, allow, filter_seen=True) for history, _ in users])
    names = [[one.item for one in mine] for mine in lists]
    missing = K + 1  # or later
    return np.array([1 + mine.index(target) if target in mine else missing for mine, (_, target) in zip(names, users)])


def rank_by_score(score, users: list[tuple[list[str], str]], names: list[str], allow: set[str] | None) -> np.ndarray:
    """`score(history)` [N] of all items; of equal scores, the target comes in the middle."""
    number = {name: i for i, name in enumerate(names)}
    allowed = np.array([allow is None or name in allow for name in names])
    ranks = []
    for history, target in users:
        scores = np.where(allowed, score(history), -np.inf)
        scores[[number[item] for item in history]] = -np.inf
        own = scores[number[target]]
        ranks.append(1 + int((scores > own).sum()) + int(((scores == own).sum() - 1) // 2))
    return np.array(ranks)


def main() -> None:
    options = parse_options()
    from recbole_diffgrm import Recommender, run
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.splits import make_split
    from recbole_diffgrm.files import write_json
    from recbole_diffgrm.models import build_config
    from recbole_diffgrm.tokenizer.embedding_sources import text_source

    settings = {"data_path": options.data_path, "sid_text_encoder": options.sid_text_encoder}
    config = build_config(options.model, options.dataset, overrides=settings, presets=options.preset)
    split = make_split(config, load_dataset(config))
    held_out = hold_out(split.item_ids, options.share, options.seed)
    users = cold_users(split, held_out, options.users)

    folder = options.folder / f"{options.dataset}-{options.share}-{options.seed}"
    changes = {**settings, "data_path": write_reduced(config, held_out, folder / "data"), "output_dir": str(folder)}
    changes |= json.loads(options.settings) | ({"epochs": options.epochs} if options.epochs else {})
    result = run(options.model, options.dataset, preset=options.preset, **changes)

    recommender = Recommender.load(result.run_dir)
    embedded = text_source(config, split.item_ids).load()
    vectors = np.where(embedded.has_vector[:, None], embedded.vectors[embedded.row], 0)  # [N, d] of length 1
    names = split.item_ids.tolist()
    number = {name: i for i, name in enumerate(names)}
    new = sorted(item for item in held_out if embedded.has_vector[number[item]])
    recommender.add_items(read_items(config, new))
    known = set(recommender.items.names)
    users = [([item for item in history if item in known], target) for history, target in users if target in known]
    users = [(history, target) for history, target in users if history]  # the run's filters may have left none
    if not users:
        raise SystemExit("no test target is a new item with a text: hold out a larger --share")
    popularity = np.array([0 if name in held_out else int(split.popularity[1 + i]) for i, name in enumerate(names)])

    def score_neighbours(history: list[str], recent: int) -> np.ndarray:
        return vectors @ vectors[[number[item] for item in history[-recent:]]].mean(axis=0)

    ways = {
        f"{options.model}, added": lambda allow: rank_by_model(recommender, users, allow),
        "text neighbours of the last items": lambda allow: rank_by_score(
            lambda history: score_neighbours(history, RECENT), users, names, allow and set(allow)
        ),
        "text neighbours of the last item": lambda allow: rank_by_score(
            lambda history: score_neighbours(history, 1), users, names, allow and set(allow)
        ),
        "popularity": lambda allow: rank_by_score(lambda _: popularity, users, names, allow and set(allow)),
    }
    report = {
        "dataset": options.dataset,
        "model": options.model,
        "preset": options.preset,
        "run": str(result.run_dir),
        "items": len(names),
        "new_items": len(new),
        "users": len(users),
        "test_of_the_other_items": result.test.get("unseen", {}),
        "among_all_items": {name: measure(rank(None)) for name, rank in ways.items()},
        "among_new_items": {name: measure(rank(new)) for name, rank in ways.items()},
        "chance_among_new_items": {"recall@10": min(1.0, K / max(1, len(new)))},
    }
    print(json.dumps(report, indent=1))
    if options.output:
        write_json(report, options.output)


if __name__ == "__main__":
    main()
