"""Decoding: users/s of a model against a straightforward implementation and Cornac's, side by side in one run.

    python benchmarks/decode.py --data_path FOLDER [--model NAMES] [--weights BEST.PT --sid_file FILE] [--cornac PYTHON]
        [--earlier FOLDER] [--catalogues]

NAMES are models of the bench, separated by commas, or `all`; DiffGRM if none are given. FOLDER holds Amazon_Beauty,
whose test users are sampled. Networks have the sizes of properties/model, SIDs and weights are random; for DiffGRM they
may be those of a run with IDs from FILE (its width counts), and then NDCG is reported. PYTHON is the interpreter of an
environment of its own with torch, transformers and `pip install cornac==3.0.1`, which has DiffGRM and TIGER; it is
given the same weights. The sides take turns on the same users, in processes of their own with the same number of
threads, and should find the same where they search alike. DiffGRM's `constrained` beams are compared with the paper's
search in the others; `normalized` ones have probabilities over existing codes (normalize_codes). `--earlier` is a
checkout of commit 5dfba77 with a .venv, whose DiffGRM decodes with the same weights and IDs. `--catalogues` adds
DiffGRM with an item head on synthetic catalogues of 10,000 to 10,000,000 items, all codes equally likely: generate,
then rank, against the scores of all items by the same item head. Writes benchmarks/out/decode.json, decode-MODEL.json
for other models.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Iterable
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from sides import Side, memory_mib, questions, report

ROOT = Path(__file__).resolve().parent.parent
if "--side=cornac" not in sys.argv:
    sys.path.insert(0, str(ROOT))

ROUNDS = 3
DIGITS, CODES, WIDTH = 4, 256, 128  # of the synthetic catalogues: the sizes of the item preset
BEAM, LEAF_SIZE, HISTORY = 16, 256, 8  # with these
WIDE = 256  # the paper's beam on Amazon_Beauty
NORMALIZED = (32, WIDE)  # DiffGRM's beams with probabilities over existing codes
EARLIER = {"constrained": "catalogue", "unconstrained": "paper"}  # names of 5dfba77
BEAMS = {"DiffGRM": (16, 32, 64, WIDE), "TIGER": (20, 30, 50), "ARM": (128,), "ActionPiece": (50,)}
# Users of a turn, from the same place on. DiffGRM's narrower beams take more.
USERS = {
    "DiffGRM": {"project": 12, "plain": 4, "cornac": 4, "earlier": 12},
    "TIGER": {"project": 256, "plain": 32, "cornac": 16},
    "ARM": {"project": 256, "plain": 8},
    "ActionPiece": {"project": 64, "plain": 4},
}
SCORED = {"project": 4096, "plain": 512}  # models that score all items
BATCHES = 8  # of a turn: an evaluation has many, so that those of a batch have histories of like length; DiffGRM's one
COMPARED = 4  # users whose items are compared


class Entry(NamedTuple):
    """A row of the result: what a side is asked in a turn."""

    side: str
    decoding: str
    beam: int  # 0: the model scores all items
    users: int


def entries_of(model: str, sides: Iterable[str]) -> dict[str, Entry]:
    if model == "DiffGRM":
        turn = USERS[model]
        ours = {
            f"constrained {beam}": Entry("project", "constrained", beam, turn["project"] * WIDE // beam)
            for beam in BEAMS[model]
        }
        ours |= {
            f"normalized {beam}": Entry("project", "normalized", beam, turn["project"] * WIDE // beam)
            for beam in NORMALIZED
        }
        for side in sides:
            if side == "earlier":
                ours |= {
                    f"{side} {beam}": Entry(side, "constrained", beam, turn[side] * WIDE // beam) for beam in NORMALIZED
                }
            elif side != "project":
                ours[side] = Entry(side, "unconstrained", WIDE, turn[side])
        return ours
    turn = USERS.get(model, SCORED)
    return {
        f"{side} {beam}" if beam else side: Entry(side, "constrained", beam, turn[side])
        for beam in BEAMS.get(model, (0,))
        for side in sides
    }


# The sides: each decodes users first..last for a decoding and a beam, and says which SIDs (DiffGRM) or items it found


def project(options):
    import torch

    model, users, batch_size = model_and_users(options)

    def decode(decoding: str, beam: int, first: int, last: int):
        chosen = torch.arange(first, last)
        chosen = chosen[users.lengths(users.rows[chosen]).argsort(stable=True)]  # as in an evaluation
        if beam:
            model.beam_widths = [beam]
        found = []
        for part in chosen.split(batch_size if options.model == "DiffGRM" else -(-len(chosen) // BATCHES)):
            batch = users.cut(part)
            if options.model == "DiffGRM":
                model.normalize_codes = decoding == "normalized"
                model.decoding = "constrained" if model.normalize_codes else decoding
                for rows in model.generate(batch, [beam]).rows.tolist():
                    found.append([tuple(model.semantic_ids.sids[row].tolist()) for row in rows[:10] if row >= 0])
            else:
                found += model.candidates(batch, depth=10).top_k(10).items.tolist()
        return [found[place] for place in chosen.argsort().tolist()]

    return decode, targets_of(options, model, users)


def plain(options):
    import torch
    from plain_models import reference

    model, users, _ = model_and_users(options)
    straightforward = reference(options.model, model)

    def decode(decoding: str, beam: int, first: int, last: int):
        return straightforward.recommend(users.cut(torch.arange(first, last), users.max_length), beam)

    return decode, targets_of(options, model, users)


def cornac(options):
    from cornac_networks import Histories, load, make_search

    network, saved = load(options.saved)
    search, (users,) = make_search(network.eval(), saved), saved["batches"]
    sids = list(map(tuple, saved["sids"].tolist()))
    item_of = {sid: item for item, sid in enumerate(sids, start=1)}

    def decode(decoding: str, beam: int, first: int, last: int):
        found = search(Histories(*(part[first:last] for part in users)), beam)
        return found if options.model == "DiffGRM" else [[item_of[sid] for sid in mine] for mine in found]

    targets = users.target.tolist()
    return decode, [sids[item] if options.model == "DiffGRM" else item + 1 for item in targets]


def model_and_users(options):
    """(the model, test users in random order, users of a batch)"""
    import torch
    from models import build

    state = network_weights(options.weights) if options.weights else None
    settings = {}
    if state:
        width = len(state["norm.weight"])
        settings = {"hidden_size": width, "inner_size": 4 * width, "n_heads": 4, "sid_file": options.sid_file}
        settings["decoder_layers"] = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("decoder."))
    config, split, model = build(options.model, options, settings, keep_memory=options.side == "project")
    if state:
        model.network.load_state_dict(state)
    users = split.test.inter_feat
    order = torch.randperm(len(users), generator=torch.Generator().manual_seed(0))
    count = max(options.users, users_needed()) if options.model == "DiffGRM" else None
    return model.eval(), users.select(users.rows[order[:count]]), config["eval_batch_size"]


def users_needed() -> int:
    """Of DiffGRM's turns: a narrow beam takes many, and each round starts further on."""
    turns = entries_of("DiffGRM", ["project"]).values()
    return max(entry.users for entry in turns) + (ROUNDS - 1) * min(entry.users for entry in turns)


def network_weights(path: str) -> dict:
    from recbole_diffgrm import checkpoint

    state = checkpoint.load(Path(path))["state_dict"]
    return {name.removeprefix("network."): value for name, value in state.items() if name.startswith("network.")}


def targets_of(options, model, users) -> list:
    import torch

    items = users.cut(torch.arange(len(users)))["item_id"]
    if options.model == "DiffGRM":
        return list(map(tuple, model.semantic_ids.lookup(items).tolist()))
    return items.tolist()


def serve(options) -> None:
    import torch

    torch.set_num_threads(options.threads)
    decode, targets = {"project": project, "plain": plain, "cornac": cornac}[options.side](options)
    with torch.inference_mode():
        baseline = memory_mib("VmRSS")
        decode("unconstrained", 16, 0, 2)  # the first call of a process is slower
        report(ready=True)
        for decoding, *numbers in questions():
            beam, first, last = map(int, numbers)
            reset_peak()
            started, cpu_started = time.perf_counter(), time.process_time()
            found = decode(decoding, beam, first, last)
            seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
            ranks = [best.index(of) if of in best else None for best, of in zip(found, targets[first:last])]
            ndcg = sum(1 / math.log2(rank + 2) for rank in ranks if rank is not None) / len(ranks)
            peak = memory_mib("VmHWM") - baseline
            spent = {"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": peak}
            report(**spent, users=last - first, ndcg=ndcg, found=found[:COMPARED])


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def race(options) -> dict:
    """The sides in turn."""
    from models import CORNAC

    pythons = {"project": sys.executable, "plain": sys.executable}
    if options.cornac and options.model in CORNAC:
        save_for_cornac(options)
        pythons["cornac"] = options.cornac
    arguments = [f"--model={options.model}", f"--data_path={options.data_path}", f"--cache={options.cache}"]
    arguments += [f"--saved={options.saved}", f"--threads={options.threads}", f"--users={options.users}"]
    arguments += [f"--weights={options.weights}", f"--sid_file={options.sid_file}"] if options.weights else []
    sides = {
        name: Side(python, __file__, [f"--side={name}", *arguments], options.threads)
        for name, python in pythons.items()
    }
    if options.earlier and options.model == "DiffGRM":
        sides["earlier"] = start_earlier(options)
    entries = entries_of(options.model, sides)
    turns = {name: [] for name in entries}
    for number in range(ROUNDS):
        for name, entry in entries.items():
            first = number * min(of.users for of in entries.values() if of.side == "project")
            decoding = EARLIER[entry.decoding] if entry.side == "earlier" else entry.decoding
            answer = sides[entry.side].ask(f"{decoding} {entry.beam} {first} {first + entry.users}")
            turns[name].append(answer)
            rate = answer["users"] / answer["seconds"]
            print(f"{options.model}, round {number + 1} of {ROUNDS}: {name:15} {rate:8.2f} users/s", flush=True)
            if entry.side != "project":
                ours = sides["project"].ask(f"{entry.decoding} {entry.beam} {first} {first + COMPARED}")["found"]
                note_differences(name, answer["ids" if entry.side == "earlier" else "found"], ours)
    result = {
        "users_per_second": {name: total(of, "users") / total(of, "seconds") for name, of in turns.items()},
        "speedup": speedups(options.model, entries, turns, "seconds"),
        "speedup_in_cpu_time": speedups(options.model, entries, turns, "cpu_seconds"),  # 5dfba77 has none
        "peak_mib": {name: max(t["peak_mib"] for t in of) for name, of in turns.items()},
    }
    if options.weights:
        result["sid_ndcg@10"] = accuracy(sides["project"], options.users)
    for side in sides.values():
        side.close()
    return result


def save_for_cornac(options) -> None:
    """The same users, IDs and weights."""
    import torch
    from cornac_networks import save

    model, users, _ = model_and_users(options)
    save(options.saved, options.model, model, [users.cut(torch.arange(len(users)), users.max_length)])


def start_earlier(options) -> Side:
    """5dfba77's own benchmark as a side, given our weights under its names, and our IDs."""
    import torch

    model, _, _ = model_and_users(options)
    names = {"self_attention": "attention", "cross_attention": "look"}
    names |= {"item_embedding.inner": "item_inner", "item_embedding.outer": "item_outer"}
    state = {}
    for name, value in model.network.state_dict().items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        state[f"network.{name}"] = value
    weights, sid_file = (Path(options.cache) / name for name in ("earlier.pt", "earlier.sid"))
    torch.save({"state_dict": state}, weights)
    write_sids(options, model, sid_file)
    arguments = [f"--data_path={options.data_path}", f"--cache={options.cache}", f"--threads={options.threads}"]
    arguments += [f"--users={max(options.users, users_needed())}", f"--weights={weights}", f"--sid_file={sid_file}"]
    script = Path(options.earlier) / "benchmarks" / "decode.py"
    python = Path(options.earlier) / ".venv" / "bin" / "python"
    return Side(str(python), str(script), ["--side=project", *arguments], options.threads)


def write_sids(options, model, path: Path) -> None:
    import torch
    from models import DATASET

    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.models import build_config

    dataset = load_dataset(build_config("DiffGRM", DATASET, overrides={"data_path": options.data_path}))
    items = dataset.field2id_token["item_id"][1:]
    sids = model.semantic_ids.lookup(torch.arange(1, model.n_items)).tolist()
    rows = ["item_id:token\tsid:token_seq", *(f"{item}\t{' '.join(map(str, sid))}" for item, sid in zip(items, sids))]
    path.write_text("\n".join(rows) + "\n")


def speedups(model: str, entries: dict[str, Entry], turns: dict[str, list], clock: str) -> dict[str, dict[str, float]]:
    """{other entry: {ours: ratio}} for those with the same beam; for DiffGRM all, against the paper's search."""

    def wide(other: str) -> bool:
        return model == "DiffGRM" and entries[other].side != "earlier"

    rates = {name: total(of, "users") / total(of, clock) for name, of in turns.items() if clock in of[0]}
    return {
        other: {
            ours: rates[ours] / rates[other]
            for ours, entry in entries.items()
            if entry.side == "project" and (wide(other) or entry.beam == entries[other].beam)
        }
        for other in rates
        if entries[other].side != "project"
    }


def total(turns: list[dict], key: str) -> float:
    return sum(turn[key] for turn in turns)


def note_differences(name: str, some: list, others: list) -> None:
    pairs = [pair for both in zip(some, others) for pair in zip_longest(*both)]
    if count := sum(one != other for one, other in pairs):
        print(f"note: {name} finds others than we with the same search: {count} of {len(pairs)} places")


def accuracy(side: Side, users: int) -> dict[str, float]:
    """SID NDCG@10 of the same users with narrow beams, and with the paper's search."""
    found = {}
    narrow = [f"{name} {beam}" for name in ("constrained", "normalized") for beam in BEAMS["DiffGRM"] if beam < WIDE]
    for name in [*narrow, f"normalized {WIDE}", f"unconstrained {WIDE}"]:
        answer = side.ask(f"{name} 0 {users}")
        found[name] = answer["ndcg"]
        rate = users / answer["seconds"]
        print(f"{name:13} SID NDCG@10 {answer['ndcg']:.4f} on {users:,} users, {rate:.1f} users/s", flush=True)
    return found


# Against the size of the catalogue


def measure_catalogues(options) -> list[dict]:
    import torch

    from recbole_diffgrm import memory
    from recbole_diffgrm.generation.beam_search import beam_search
    from recbole_diffgrm.generation.constraints import LatticeConstraint
    from recbole_diffgrm.generation.item_ranking import score_leaves
    from recbole_diffgrm.generation.semantic_ids import SemanticIds
    from recbole_diffgrm.models.diffgrm.decoding import make_step
    from recbole_diffgrm.models.diffgrm.network import DiffGRMConfig, DiffGRMNetwork

    torch.set_num_threads(options.threads)
    memory.keep_freed_memory()
    torch.manual_seed(0)
    sizes = DiffGRMConfig(DIGITS, CODES, WIDTH, 4 * WIDTH, 4, 2, 4, 0.1, 50, True, num_items=1)
    network = DiffGRMNetwork(sizes).eval()
    users = 32
    states = torch.randn(users, HISTORY, WIDTH)
    length, seen = torch.full((users,), HISTORY), torch.zeros(users, HISTORY, dtype=torch.int64)
    rows = []
    for size in (10_000, 100_000, 1_000_000, 10_000_000):
        sids = torch.randint(CODES, (size + 1, DIGITS), dtype=torch.int16)
        started = time.perf_counter()
        semantic_ids = SemanticIds.build(sids, CODES, torch.zeros(size + 1)).with_lattice()
        constraint = LatticeConstraint(semantic_ids.lattice, normalize=True)
        built = time.perf_counter() - started
        vectors = torch.randn(size + 1, WIDTH)
        generating, scoring = [], []
        with torch.inference_mode():
            for _ in range(5):  # the median: this machine is noisy
                started = time.perf_counter()
                step = make_step(network, network.precompute_kv(states, length))
                beams = beam_search(step, constraint, [BEAM], users, "cpu", LEAF_SIZE)
                pairs = score_leaves(beams, semantic_ids.groups)
                last = states[pairs.user, -1]
                network.pair_logits(last, vectors[pairs.item], pairs.item, seen[pairs.user])
                generating.append(1000 * (time.perf_counter() - started) / users)
                started = time.perf_counter()
                network.item_logits(states[:, -1], vectors, seen).topk(10)
                scoring.append(1000 * (time.perf_counter() - started) / users)
        row = {
            "items": size,
            "distinct_ids": semantic_ids.num_sids,
            "build_seconds": built,
            "catalogue_mib": sum(array.nbytes for array in semantic_ids.buffers()) / 2**20,
            "scored_items": len(pairs.item) / users,
            "ms_per_user": sorted(generating)[2],
            "all_items_ms_per_user": sorted(scoring)[2],
        }
        row["growth"] = row["ms_per_user"] / rows[0]["ms_per_user"] if rows else 1.0
        row["against_all_items"] = row["all_items_ms_per_user"] / row["ms_per_user"]
        rows.append(row)
        print(
            "{items:>10,} items: {ms_per_user:6.2f} ms a user ({growth:.2f}x) for {scored_items:,.0f} items, all items "
            "{all_items_ms_per_user:7.2f} ms ({against_all_items:.1f}x); {catalogue_mib:6.0f} MiB built in "
            "{build_seconds:.1f} s".format(**row),
            flush=True,
        )
        del vectors, semantic_ids, constraint, sids
    return rows


def print_table(results: dict[str, dict]) -> None:
    print("\nusers/s")
    for model, result in results.items():
        for other, ratios in result["speedup"].items():
            for ours, ratio in ratios.items():
                rates = [result["users_per_second"][name] for name in (ours, other)]
                print(f"{model:12} {ours:16} {rates[0]:9.2f}    {other:10} {rates[1]:9.2f}    {ratio:6.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_path", default="dataset")
    parser.add_argument("--model", default="DiffGRM", help="names separated by commas, or all")
    parser.add_argument("--weights", help="best.pt of a DiffGRM run on Amazon_Beauty")
    parser.add_argument("--sid_file", help="the IDs it was trained with")
    parser.add_argument("--cornac", help="Python of an environment with cornac 3.0.1")
    parser.add_argument("--earlier", help="checkout of 5dfba77")
    parser.add_argument("--catalogues", action="store_true", help="also synthetic catalogues of growing size")
    parser.add_argument("--users", type=int, default=1000, help="of DiffGRM, for NDCG")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    parser.add_argument("--saved", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if bool(options.weights) != bool(options.sid_file):
        parser.error("--weights and --sid_file belong together")
    options.data_path = str(Path(options.data_path).resolve())
    if options.side:
        serve(options)
        return

    from models import parse_names

    from recbole_diffgrm.experiments.environment import describe
    from recbole_diffgrm.files import write_json

    names = parse_names(options.model)
    if options.weights and names != ["DiffGRM"]:
        parser.error("--weights are those of DiffGRM")
    run = {"command": "python benchmarks/decode.py " + " ".join(sys.argv[1:]), "threads": options.threads}
    run |= {"environment": describe()}
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    results = {}
    for options.model in names:
        with tempfile.TemporaryDirectory() as options.cache:
            options.saved = str(Path(options.cache) / "saved.pt")
            result = results[options.model] = {**run, "model": options.model, **race(options)}
        for other, ratios in result["speedup"].items():
            for ours, ratio in ratios.items():
                in_cpu_time = result["speedup_in_cpu_time"].get(other, {}).get(ours)
                note = "" if in_cpu_time is None else f" ({in_cpu_time:.1f} in CPU time)"
                print(f"{ours}: {ratio:.1f} times as fast as {other}{note}")
        print("peak above the loaded model, MiB: " + ", ".join(f"{k} {v:,.0f}" for k, v in result["peak_mib"].items()))
        if options.catalogues and options.model == "DiffGRM":
            result["catalogues"] = measure_catalogues(options)
        suffix = "" if options.model == "DiffGRM" else f"-{options.model}"
        write_json(result, out / f"decode{suffix}.json")
    if len(results) > 1:
        print_table(results)


if __name__ == "__main__":
    main()
