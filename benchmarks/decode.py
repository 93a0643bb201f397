"""Decoding: users/s of `constrained` against a straightforward `unconstrained` decoder and Cornac's, and against the
size of the catalogue.

    python benchmarks/decode.py --data_path FOLDER [--weights BEST.PT --sid_file FILE] [--cornac PYTHON] [--catalogues]

FOLDER holds Amazon_Beauty; test users are sampled from it. Weights are those of a DiffGRM run with IDs from FILE (its
width counts), or random ones of the paper's size with random SIDs, and then NDCG is not reported. PYTHON is the
interpreter of an environment of its own with torch and `pip install cornac==3.0.1`; it is given the same weights. The
sides take turns on the same users, in processes of their own with the same number of threads, and should find the same
IDs where they search alike. `--catalogues` adds synthetic catalogues of 10,000 to 10,000,000 IDs, all codes equally
likely, beside the scores of all items that a model like SASRec computes. Writes benchmarks/out/decode.json.
"""

import argparse
import math
import sys
import tempfile
import time
from pathlib import Path

from sides import Side, memory_mib, questions, report

ROOT = Path(__file__).resolve().parent.parent
if "--side=cornac" not in sys.argv:
    sys.path.insert(0, str(ROOT))

LENGTH, DIGITS, CODES, WIDTH = 50, 4, 256, 256
WIDE = 256  # the paper's beam on Amazon_Beauty
BEAMS = (16, 32, 64, WIDE)
ROUNDS = 3
TURN = {"project": 12, "plain": 4, "cornac": 4}  # users; from the same place on


# The sides: each decodes users first..last for a decoding and a beam, and says which IDs it found


def project(options):
    import torch

    model, users = model_and_users(options)

    def decode(decoding: str, beam: int, first: int, last: int):
        model.decoding = decoding
        chosen = torch.arange(first, last)
        chosen = chosen[users.lengths(users.rows[chosen]).argsort(stable=True)]  # as in an evaluation
        found = []
        for part in chosen.split(options.batch):
            generated = model.generate(users.cut(part), [beam])
            for rows in generated.rows.tolist():
                found.append([tuple(model.semantic_ids.sids[row].tolist()) for row in rows[:10] if row >= 0])
        return [found[place] for place in chosen.argsort().tolist()]

    return decode, sids_of(model, users.cut(torch.arange(len(users)))["item_id"])


def plain(options):
    import torch
    from plain import decode_sids, encode

    model, users = model_and_users(options)
    existing = set(map(tuple, model.semantic_ids.sids.tolist()))

    def decode(decoding: str, beam: int, first: int, last: int):
        batch = users.cut(torch.arange(first, last), LENGTH)
        memory = encode(model.network, model.semantic_ids.lookup(batch["item_id_list"]), batch["item_length"])
        return [ids[:10] for ids in decode_sids(model.network, memory, beam, existing)]

    return decode, sids_of(model, users.cut(torch.arange(len(users)))["item_id"])


def cornac(options):
    import torch
    from cornac.models.diffgrm.diffgrm import DiffGRMBackbone, cpd_decode_batch

    saved = torch.load(options.saved)
    width = saved["weights"]["final_norm.weight"].shape[0]
    network = DiffGRMBackbone(DIGITS, CODES, LENGTH, d_model=width, n_inner=4 * width, n_head=4).eval()
    network.set_item_codes(saved["sids"].numpy())
    network.load_state_dict({**saved["weights"], "item_codes": network.item_codes})
    existing = set(map(tuple, saved["sids"].tolist()))

    def decode(decoding: str, beam: int, first: int, last: int):
        history, length = saved["history"][first:last], saved["length"][first:last]
        mask = (torch.arange(LENGTH) < length[:, None]).float()
        memory, padding = network.encode_history(history, mask)
        ids, _ = cpd_decode_batch(network, memory, padding, beam, valid_code_set=existing)
        return [list(map(tuple, mine[:10])) for mine in ids]

    return decode, list(map(tuple, saved["sids"][saved["target"]].tolist()))


def model_and_users(options):
    """(DiffGRM, test users in random order)"""
    import torch

    from recbole_diffgrm import memory
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.splits import make_split
    from recbole_diffgrm.experiments.item_data import attach_item_data
    from recbole_diffgrm.models import build_config

    state = network_weights(options.weights) if options.weights else None
    width = len(state["norm.weight"]) if state else WIDTH
    settings = {"hidden_size": width, "inner_size": 4 * width, "n_heads": 4, "data_path": options.data_path}
    ids = {"sid_file": options.sid_file} if options.sid_file else {"sid_quantizer": "random"}
    config = build_config("DiffGRM", "Amazon_Beauty", overrides=settings | ids | {"cache_dir": options.cache})
    split = make_split(config, load_dataset(config))
    attach_item_data(config, split)
    if options.side == "project":
        memory.keep_freed_memory()
    torch.manual_seed(0)
    model = config.model_class(config, split.train).eval()
    if state:
        model.network.load_state_dict(state)
    options.batch = config["eval_batch_size"]
    users = split.test.inter_feat
    order = torch.randperm(len(users), generator=torch.Generator().manual_seed(0))
    return model, users.select(users.rows[order[: options.users]])


def network_weights(path: str) -> dict:
    from recbole_diffgrm.training import checkpoint

    state = checkpoint.load(Path(path))["state_dict"]
    return {name.removeprefix("network."): value for name, value in state.items() if name.startswith("network.")}


def sids_of(model, items) -> list[tuple[int, ...]]:
    return list(map(tuple, model.semantic_ids.lookup(items).tolist()))


def save_for_cornac(options, path: Path) -> None:
    """The same users, IDs and weights under Cornac's names. It numbers items from 0 and appends the padding row."""
    import torch

    model, users = model_and_users(options)
    batch = users.cut(torch.arange(len(users)), LENGTH)
    history = batch["item_id_list"]
    names = {"code_embedding": "code_embeddings", "mask_embedding": "mask_embeddings", "norm": "final_norm"}
    names |= {"position_embedding": "history_positions.weight"}
    names |= {"item_embedding.inner": "item_projection.0", "item_embedding.outer": "item_projection.2"}
    parts = {"self_attention.norm": "self_attention_norm", "self_attention.query_key_value": "self_attention.qkv"}
    parts |= {"self_attention.out": "self_attention.projection"}
    parts |= {"cross_attention.norm": "cross_attention_norm", "cross_attention.out": "cross_attention.projection"}
    parts |= {"feed_forward.norm": "feed_forward_norm", "feed_forward.inner": "feed_forward.input"}
    parts |= {"feed_forward.outer": "feed_forward.output"}
    weights, state = {}, model.network.state_dict()
    for name, value in state.items():
        stem, kind = name.rsplit(".", 1) if name.endswith((".weight", ".bias")) else (name, "")
        if stem.startswith(("encoder", "decoder")):
            side, number, part = stem.split(".", 2)
            if part in ("cross_attention.query", "cross_attention.key_value"):
                continue
            theirs = parts[part].replace("self_", "") if side == "encoder" else parts[part]
            weights[f"{side}_blocks.{number}.{theirs}.{kind}"] = value
        else:
            weights[names[stem] + (f".{kind}" if kind and stem != "position_embedding" else "")] = value
    for number in range(len(model.network.decoder)):
        both = [state[f"decoder.{number}.cross_attention.{part}.weight"] for part in ("query", "key_value")]
        weights[f"decoder_blocks.{number}.cross_attention.qkv.weight"] = torch.cat(both)
    content = {
        "weights": weights,
        "sids": model.semantic_ids.lookup(torch.arange(1, model.n_items)),
        "history": torch.where(history > 0, history - 1, model.n_items - 1),
        "length": batch["item_length"],
        "target": batch["item_id"] - 1,
    }
    torch.save(content, path)


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
            started = time.perf_counter()
            found = decode(decoding, beam, first, last)
            seconds = time.perf_counter() - started
            ranks = [ids.index(sid) if sid in ids else None for ids, sid in zip(found, targets[first:last])]
            ndcg = sum(1 / math.log2(rank + 2) for rank in ranks if rank is not None) / len(ranks)
            peak = memory_mib("VmHWM") - baseline
            report(seconds=seconds, users=last - first, sid_ndcg=ndcg, peak_mib=peak, ids=found[: TURN["plain"]])


def reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def race(options, folder: Path) -> dict:
    """The sides in turn, all with the paper's beam."""
    arguments = [f"--data_path={options.data_path}", f"--cache={folder}", f"--saved={folder / 'saved.pt'}"]
    arguments += [f"--threads={options.threads}", f"--users={options.users}"]
    arguments += [f"--weights={options.weights}", f"--sid_file={options.sid_file}"] if options.weights else []
    pythons = {"project": sys.executable, "plain": sys.executable}
    if options.cornac:
        save_for_cornac(argparse.Namespace(**{**vars(options), "cache": str(folder)}), folder / "saved.pt")
        pythons["cornac"] = options.cornac
    sides = {
        name: Side(python, __file__, [f"--side={name}", *arguments], options.threads)
        for name, python in pythons.items()
    }
    turns = {f"constrained {beam}": [] for beam in BEAMS} | {name: [] for name in pythons if name != "project"}
    for number in range(ROUNDS):
        first = number * TURN["project"]
        answers = {}
        for name in turns:
            decoding, _, beam = name.partition(" ")
            side = "project" if beam else name
            share = WIDE // int(beam) if beam else 1  # narrower beams take more users a turn
            asked = f"{decoding if beam else 'unconstrained'} {beam or WIDE} {first} {first + TURN[side] * share}"
            answers[name] = sides[side].ask(asked)
            turns[name].append(answers[name])
            rate = answers[name]["users"] / answers[name]["seconds"]
            print(f"round {number + 1} of {ROUNDS}: {name:13} {rate:7.2f} users/s", flush=True)
        ours = sides["project"].ask(f"unconstrained {WIDE} {first} {first + TURN['plain']}")["ids"]
        for name in set(pythons) - {"project"}:
            if answers[name]["ids"] != ours:
                different = differences(answers[name]["ids"], ours)
                print(f"note: {name} finds other SIDs than our unconstrained decoding: {different}")
    rates = {name: total(of, "users") / total(of, "seconds") for name, of in turns.items()}
    result = {
        "users_per_second": rates,
        "peak_mib": {name: max(t["peak_mib"] for t in of) for name, of in turns.items()},
    }
    for name in set(pythons) - {"project"}:
        result[f"speedup_over_{name}"] = {ours: rates[ours] / rates[name] for ours in rates if ours not in pythons}
    if options.weights:
        result["sid_ndcg@10"] = accuracy(sides["project"], options.users)
    for side in sides.values():
        side.close()
    return result


def total(turns: list[dict], key: str) -> float:
    return sum(turn[key] for turn in turns)


def differences(some: list, others: list) -> str:
    places = [
        (user, rank) for user, ids in enumerate(some) for rank, sid in enumerate(ids) if others[user][rank] != sid
    ]
    return f"{len(places)} of {sum(map(len, some))} places"


def accuracy(side: Side, users: int) -> dict[str, float]:
    """SID NDCG@10 of the same users with narrow beams, and with the paper's search."""
    found = {}
    for name in [*(f"constrained {beam}" for beam in BEAMS if beam < WIDE), f"unconstrained {WIDE}"]:
        answer = side.ask(f"{name} 0 {users}")
        found[name] = answer["sid_ndcg"]
        rate = users / answer["seconds"]
        print(f"{name:13} SID NDCG@10 {answer['sid_ndcg']:.4f} on {users:,} users, {rate:.1f} users/s", flush=True)
    return found


# Against the size of the catalogue


def measure_catalogues(options) -> list[dict]:
    import torch

    from recbole_diffgrm import memory
    from recbole_diffgrm.generation.beam_search import LatticeConstraint, beam_search
    from recbole_diffgrm.generation.item_ranking import keep_existing
    from recbole_diffgrm.generation.semantic_ids import SemanticIds
    from recbole_diffgrm.models.diffgrm.decoding import make_step
    from recbole_diffgrm.models.diffgrm.network import DiffGRMConfig, DiffGRMNetwork

    torch.set_num_threads(options.threads)
    memory.keep_freed_memory()
    torch.manual_seed(0)
    network = DiffGRMNetwork(DiffGRMConfig(DIGITS, CODES, WIDTH, 4 * WIDTH, 4, 1, 4, 0.1, LENGTH, True)).eval()
    users, beam, hidden = 32, 32, 64
    codes, length = torch.randint(CODES, (users, 8, DIGITS)), torch.full((users,), 8)
    rows = []
    for size in (10_000, 100_000, 1_000_000, 10_000_000):
        sids = torch.randint(CODES, (size + 1, DIGITS), dtype=torch.int16)
        started = time.perf_counter()
        semantic_ids = SemanticIds.build(sids, CODES, torch.zeros(size + 1)).with_lattice()
        constraint = LatticeConstraint(semantic_ids.lattice)
        built = time.perf_counter() - started
        table, states = torch.randn(size, hidden), torch.randn(users, hidden)
        with torch.inference_mode():
            ours, all_items = [], []
            for _ in range(5):  # the median: this machine is noisy
                started = time.perf_counter()
                states_of = network.encode_history(network.embed_items(length, codes), length)
                step = make_step(network, network.precompute_kv(states_of, length))
                keep_existing(beam_search(step, constraint, [beam], users, "cpu"), semantic_ids)
                ours.append(1000 * (time.perf_counter() - started) / users)
                started = time.perf_counter()
                (states @ table.T).topk(10)
                all_items.append(1000 * (time.perf_counter() - started) / users)
        row = {
            "items": size,
            "distinct_ids": semantic_ids.num_sids,
            "build_seconds": built,
            "catalogue_mib": sum(array.nbytes for array in semantic_ids.buffers()) / 2**20,
            "ms_per_user": sorted(ours)[2],
            "all_items_ms_per_user": sorted(all_items)[2],
        }
        row["growth"] = row["ms_per_user"] / rows[0]["ms_per_user"] if rows else 1.0
        rows.append(row)
        print(
            "{items:>10,} items: {ms_per_user:6.1f} ms a user ({growth:.2f}x), {catalogue_mib:6.0f} MiB built in "
            "{build_seconds:.1f} s; scores of all items {all_items_ms_per_user:7.2f} ms a user".format(**row),
            flush=True,
        )
        del table, semantic_ids, constraint, sids
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_path", default="dataset")
    parser.add_argument("--weights", help="best.pt of a DiffGRM run on Amazon_Beauty")
    parser.add_argument("--sid_file", help="the IDs it was trained with")
    parser.add_argument("--cornac", help="Python of an environment with cornac 3.0.1")
    parser.add_argument("--catalogues", action="store_true", help="also synthetic catalogues of growing size")
    parser.add_argument("--users", type=int, default=1000, help="for NDCG")
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

    from recbole_diffgrm.experiments.environment import describe
    from recbole_diffgrm.files import write_json

    result = {"command": "python benchmarks/decode.py " + " ".join(sys.argv[1:]), "threads": options.threads}
    result |= {"environment": describe()}
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        result |= race(options, Path(folder))
    for name in ("plain", "cornac"):
        for ours, ratio in result.get(f"speedup_over_{name}", {}).items():
            print(f"{ours}: {ratio:.1f} times as fast as {name} with beam {WIDE}")
    print("peak above the loaded model, MiB: " + ", ".join(f"{k} {v:,.0f}" for k, v in result["peak_mib"].items()))
    if options.catalogues:
        result["catalogues"] = measure_catalogues(options)
    write_json(result, out / "decode.json")


if __name__ == "__main__":
    main()
