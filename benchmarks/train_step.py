"""Training steps of DiffGRM against a straightforward implementation and Cornac's, side by side in one run.

    python benchmarks/train_step.py --data_path FOLDER [--cornac PYTHON] [--cases] [--tuned_plain]

FOLDER holds Amazon_Beauty/Amazon_Beauty.inter, whose history lengths are used (SIDs are random: their values do not
change the work). PYTHON is the interpreter of an environment of its own with torch and `pip install cornac==3.0.1`. A
step is: loss, backward pass, clipping, AdamW. The sides take turns in processes of their own, with the same number of
threads (three sides take 21 GiB). `--tuned_plain` gives the straightforward side this project's setting of the memory
allocator too (memory.keep_freed_memory); without it that side runs as PyTorch comes. `--cases` adds a table of time and
memory against history length, digits and batch. Writes benchmarks/out/train_step.json.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

from sides import Side, memory_mib, questions, report

ROOT = Path(__file__).resolve().parent.parent
if "--side=cornac" not in sys.argv:
    sys.path.insert(0, str(ROOT))

SETTINGS = {"hidden_size": 256, "inner_size": 1024, "n_heads": 4, "encoder_layers": 1, "decoder_layers": 4}
SETTINGS |= {"dropout_prob": 0.1, "label_smoothing": 0.1, "train_batch_size": 1024, "seed": 2020}
LENGTH, DIGITS, CODES = 50, 4, 256
ROUNDS, OURS_A_ROUND = 4, 4  # 16 batches of ours: a whole group of the loader (BATCHES_PER_GROUP)


# The sides: each gives its batches, and a function that takes a step on one


def project(options):
    import torch

    model, loader = model_and_loader(options)
    if options.case:
        return [synthetic(options.case)] * 5, stepper(model.parameters(), model.calculate_loss)
    # So many random samples as one group of the loader has: sorted into batches as in an epoch, all lengths among them.
    chosen = torch.randperm(len(loader.samples), generator=torch.Generator().manual_seed(0))
    count = ROUNDS * OURS_A_ROUND * loader.batch_size
    loader.samples = loader.samples.select(loader.samples.rows[chosen[:count]])
    batches = list(loader.batches(0))
    return [batches[-1], *batches], stepper(model.parameters(), model.calculate_loss)


def plain(options):
    model, loader = model_and_loader(options)
    check_same_loss(model, loader)
    return padded(loader), stepper(model.parameters(), lambda batch: plain_loss(model, batch))


def cornac(options):
    import torch
    from cornac.models.diffgrm.diffgrm import DiffGRMBackbone

    saved = torch.load(options.batches)
    torch.manual_seed(0)
    network = DiffGRMBackbone(DIGITS, CODES, LENGTH, d_model=256, n_inner=1024, n_head=4, dropout=0.1)
    network.set_item_codes(saved["sids"].numpy())
    network.train()

    def loss(batch):
        history, length, target = batch
        mask = (torch.arange(LENGTH) < length[:, None]).float()
        return network(history, mask, saved["sids"][target])

    return saved["batches"], stepper(network.parameters(), loss)


def model_and_loader(options):
    import torch

    from recbole_diffgrm import memory
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.loader import TrainLoader
    from recbole_diffgrm.data.splits import make_split
    from recbole_diffgrm.experiments.item_data import attach_item_data
    from recbole_diffgrm.models import build_config

    case = options.case or {"length": LENGTH, "digits": DIGITS, "batch": SETTINGS["train_batch_size"]}
    settings = {
        **SETTINGS,
        "train_batch_size": case["batch"],
        "sid_num_digits": case["digits"],
        "sid_codebook_size": CODES,
    }
    settings |= {"data_path": options.data_path, "sid_quantizer": "random", "cache_dir": options.cache}
    config = build_config("DiffGRM", "Amazon_Beauty", overrides=settings)
    split = make_split(config, load_dataset(config))
    attach_item_data(config, split)
    if options.side != "plain" or options.tuned_plain:
        memory.keep_freed_memory()
    torch.manual_seed(0)
    return config.model_class(config, split.train).train(), TrainLoader(config, split.train, trim=True)


def stepper(parameters, loss_of):
    import torch

    parameters = list(parameters)
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.0)

    def step(batch) -> None:
        optimizer.zero_grad()
        loss_of(batch).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()

    return step


def padded(loader) -> list:
    """(histories [B, 50], lengths, targets) of random batches, as an implementation without buckets has them."""
    import torch

    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(len(loader.samples), generator=draw)
    batches = []
    for index in order.split(loader.batch_size)[: ROUNDS + 1]:
        batch = loader.samples.cut(index, LENGTH)
        batches.append((batch["item_id_list"], batch["item_length"], batch["item_id"]))
    return batches


def synthetic(case: dict):
    import torch
    from recbole.data.interaction import Interaction

    draw = torch.Generator().manual_seed(0)
    shape = (case["batch"], case["length"])
    return Interaction(
        {
            "item_id_list": torch.randint(1, 12_000, shape, generator=draw),
            "item_length": torch.full(shape[:1], case["length"]),
            "item_id": torch.randint(1, 12_000, shape[:1], generator=draw),
        }
    )


# The straightforward implementation: that of plain.py, the probe a pass of its own


def plain_loss(model, batch):
    import torch
    import torch.nn.functional as F
    from plain import decode, encode

    net, sids, alpha = model.network, model.semantic_ids.lookup(torch.arange(model.n_items)), model.label_smoothing
    items, length, target = batch
    n = net.config.num_digits
    memory = encode(net, sids[items], length)
    target = sids[target]
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


def check_same_loss(model, loader) -> None:
    """Both sides train the same model: without dropout their losses are equal."""
    import torch

    index = torch.arange(0, len(loader.samples), len(loader.samples) // 50)
    batch = loader.samples.cut(index, LENGTH)
    model.eval()
    with torch.no_grad():
        ours = model.calculate_loss(loader.samples.cut(index)).item()
        theirs = plain_loss(model, (batch["item_id_list"], batch["item_length"], batch["item_id"])).item()
    model.train()
    if abs(ours - theirs) > 1e-4:
        raise SystemExit(f"the straightforward implementation differs: loss {theirs}, not {ours}")


# A process for each side, which steps when it is told to


def serve(options) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    side = {"project": project, "plain": plain, "cornac": cornac}[options.side]
    torch.set_num_threads(options.threads)
    batches, step = side(options)
    baseline = memory_mib("VmRSS")
    step(batches[0])  # the first step of a process is slower
    report(ready=True, baseline_mib=baseline)
    number = 1
    for command, *count in questions():
        if command == "peak":
            report(gflops=matmul_peak())
            continue
        chosen = batches[number : number + int(count[0])]
        number += len(chosen)
        started = time.perf_counter()
        with FlopCounterMode(display=False) as counter:  # takes less than a hundredth of the time
            for batch in chosen:
                step(batch)
        report(
            seconds=time.perf_counter() - started,
            samples=sum(map(size, chosen)),
            flops=counter.get_total_flops(),
            peak_mib=memory_mib("VmHWM"),
        )


def size(batch) -> int:
    return len(batch[0]) if isinstance(batch, tuple | list) else len(batch["item_length"])


def matmul_peak() -> float:
    """GFLOP/s of a large product, the best of several."""
    import torch

    a, best = torch.randn(2048, 2048), 0.0
    for _ in range(8):
        started = time.perf_counter()
        a @ a
        best = max(best, 2 * 2048**3 / (time.perf_counter() - started) / 1e9)
    return best


def start(name: str, python: str, options, folder: Path, case: dict | None = None) -> Side:
    arguments = [f"--side={name}", f"--data_path={options.data_path}", f"--cache={folder}"]
    arguments += [f"--batches={folder / 'batches.pt'}", f"--threads={options.threads}"]
    arguments += [f"--case={json.dumps(case)}"] if case else []
    arguments += ["--tuned_plain"] if options.tuned_plain else []
    return Side(python, __file__, arguments, options.threads)


def save_batches(options, folder: Path) -> None:
    import torch

    model, loader = model_and_loader(argparse.Namespace(**{**vars(options), "cache": str(folder)}))
    # Cornac numbers items from 0 and appends the padding row.
    batches = [
        (torch.where(history > 0, history - 1, model.n_items - 1), length, target - 1)
        for history, length, target in padded(loader)
    ]
    sids = model.semantic_ids.lookup(torch.arange(1, model.n_items))
    torch.save({"sids": sids, "batches": batches}, folder / "batches.pt")


def race(options, folder: Path) -> dict:
    names = {"project": sys.executable, "plain": sys.executable}
    if options.cornac:
        save_batches(options, folder)
        names["cornac"] = options.cornac
    sides = {name: start(name, python, options, folder) for name, python in names.items()}
    turns = {name: [] for name in sides}
    peaks = []
    for number in range(ROUNDS):
        peaks.append(sides["project"].ask("peak")["gflops"])
        for name, side in sides.items():
            turn = side.ask(f"step {OURS_A_ROUND if name == 'project' else 1}")
            turns[name].append(turn)
            rate = turn["samples"] / turn["seconds"]
            print(f"round {number + 1} of {ROUNDS}: {name:8} {rate:7.1f} samples/s", flush=True)
    for side in sides.values():
        side.close()
    total = {name: {key: sum(turn[key] for turn in of) for key in of[0]} for name, of in turns.items()}
    rates = {name: of["samples"] / of["seconds"] for name, of in total.items()}
    gflops = total["project"]["flops"] / total["project"]["seconds"] / 1e9
    peak = sorted(peaks)[len(peaks) // 2]
    return {
        "samples_per_second": rates,
        "speedup": {name: rates["project"] / rate for name, rate in rates.items() if name != "project"},
        "peak_memory_mib": {name: of[-1]["peak_mib"] for name, of in turns.items()},
        "matmul_gflops": peak,
        "project_gflops": gflops,
        "share_of_matmul_peak": gflops / peak,
        "gflop_per_sample": {name: of["flops"] / of["samples"] / 1e9 for name, of in total.items()},
        "turns": turns,
    }


CASES = [
    {"length": length, "digits": digits, "batch": batch}
    for length, digits, batch in [
        (10, 4, 256),
        (20, 4, 256),
        (50, 4, 256),
        (10, 2, 256),
        (10, 8, 256),
        (10, 4, 64),
        (10, 4, 1024),
    ]
]


def measure_cases(options, folder: Path) -> list[dict]:
    rows = []
    for case in CASES:
        side = start("project", sys.executable, options, folder, case)
        turn = side.ask("step 4")
        side.close()
        rows.append(
            {
                **case,
                "ms_per_sample": 1000 * turn["seconds"] / turn["samples"],
                "step_mib": turn["peak_mib"] - side.started["baseline_mib"],
            }
        )
        print("{length:3} items, {digits} digits, batch {batch:4}: ".format(**case), end="")
        print("{ms_per_sample:6.2f} ms a sample, {step_mib:6.0f} MiB a step".format(**rows[-1]), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_path", default="dataset")
    parser.add_argument("--cornac", help="Python of an environment with cornac 3.0.1")
    parser.add_argument("--cases", action="store_true", help="also a table over history length, digits and batch")
    parser.add_argument("--tuned_plain", action="store_true", help="the plain side keeps freed memory too")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    parser.add_argument("--batches", help=argparse.SUPPRESS)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.data_path = str(Path(options.data_path).resolve())
    if options.side:
        serve(options)
        return

    from recbole_diffgrm.experiments.environment import describe
    from recbole_diffgrm.files import write_json

    result = {"command": "python benchmarks/train_step.py " + " ".join(sys.argv[1:]), "settings": SETTINGS}
    result |= {"threads": options.threads, "environment": describe()}
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        result |= race(options, Path(folder))
        for name, speedup in result["speedup"].items():
            print(f"{speedup:.2f} times as fast as {name}")
        print(
            "{project_gflops:.1f} GFLOP/s in matrix products, {share_of_matmul_peak:.0%} of {matmul_gflops:.1f}, "
            "a product of 2048 x 2048".format(**result)
        )
        print("peak memory, MiB: " + ", ".join(f"{k} {v:,.0f}" for k, v in result["peak_memory_mib"].items()))
        if options.cases:
            result["cases"] = measure_cases(options, Path(folder))
    write_json(result, out / "train_step.json")


if __name__ == "__main__":
    main()
