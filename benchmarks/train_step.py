"""Training steps of a model against a straightforward implementation and Cornac's, side by side in one run.

    python benchmarks/train_step.py --data_path FOLDER [--model NAMES] [--cornac PYTHON] [--batch SIZE] [--amp]
        [--cases] [--tuned_plain]

NAMES are models of the bench, separated by commas, or `all`; DiffGRM if none are given. FOLDER holds
Amazon_Beauty/Amazon_Beauty.inter, whose history lengths are used (SIDs are random: their values do not change the
work). Networks and batches have the sizes of properties/model. PYTHON is the interpreter of an environment of its own
with torch, transformers and `pip install cornac==3.0.1`, which has DiffGRM and TIGER. A step is: loss, backward pass,
clipping, AdamW; a sample is a target. The sides take turns in processes of their own, with the same number of threads
(three sides of DiffGRM take 21 GiB, of TIGER 12 GiB; less with a smaller `--batch`). That they compute the same loss is
checked first. `--amp` lets only this project's side compute in bfloat16. `--tuned_plain` gives
the straightforward side this project's setting of the memory allocator too (memory.keep_freed_memory); without it that
side runs as PyTorch comes. `--cases` adds a table of DiffGRM's time and memory against history length, digits and
batch. Writes benchmarks/out/train_step.json for DiffGRM, train_step-MODEL.json for others.
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

ROUNDS, OURS_A_ROUND = 4, 4  # 16 batches of ours: a whole group of the loader (BATCHES_PER_GROUP)
FASTER = {"HSTU": 8, "VQRec": 2, "RecJPQ": 8}  # so many times the steps: theirs take a fraction of a second
CODES = 256


# The sides: each gives its batches with their numbers of samples, and a function that takes a step on one


def project(options):
    import torch
    from models import loss_of

    model, loader = model_and_loader(options)

    def loss(batch):
        with torch.autocast("cpu", enabled=options.amp):
            return loss_of(model, batch)

    step = stepper(model.parameters(), loss)
    if options.case:
        return counted(model, [synthetic(options.case)] * 5), step
    # So many random samples as one group of the loader has: sorted into batches as in an epoch, all lengths among them.
    chosen = torch.randperm(len(loader.samples), generator=torch.Generator().manual_seed(0))
    count = ROUNDS * OURS_A_ROUND * FASTER.get(options.model, 1) * loader.batch_size
    loader.samples = loader.samples.select(loader.samples.rows[chosen[:count]])
    batches = list(loader.batches(0))
    return counted(model, [batches[-1], *batches]), step


def plain(options):
    from plain_models import reference

    model, loader = model_and_loader(options)
    straightforward = reference(options.model, model)
    check_same_loss(model, straightforward, loader)
    return counted(model, padded(loader, options.model)), stepper(straightforward.parameters(), straightforward)


def cornac(options):
    import torch
    from cornac_networks import load, make_loss

    network, saved = load(options.saved)
    loss = make_loss(network, saved)
    with torch.no_grad():
        network.eval()
        compare_losses(loss(saved["batches"][0]).item(), saved["loss"])
        network.train()
    return [(len(batch.length), batch) for batch in saved["batches"]], stepper(network.parameters(), loss)


def model_and_loader(options):
    from models import build

    from recbole_diffgrm.data.loader import TrainLoader

    settings = {"seed": 2020} | ({"train_batch_size": options.batch} if options.batch else {})
    if options.case:
        case = options.case
        settings |= {"train_batch_size": case["batch"], "sid_num_digits": case["digits"], "sid_codebook_size": CODES}
    keep_memory = options.side != "plain" or options.tuned_plain
    config, split, model = build(options.model, options, settings, keep_memory)
    return model.train(), TrainLoader(config, split.train, trim=True)


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


def counted(model, batches: list) -> list[tuple]:
    return [(len(model.targets(batch).item), batch) for batch in batches]


def padded(loader, name: str) -> list:
    """Random batches, as an implementation without buckets has them."""
    import torch

    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(len(loader.samples), generator=draw)
    count = ROUNDS * FASTER.get(name, 1) + 1
    return [loader.samples.cut(index, loader.samples.max_length) for index in order.split(loader.batch_size)[:count]]


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


def check_same_loss(model, straightforward, loader) -> None:
    """Both sides train the same model: without dropout their losses are equal."""
    import torch
    from models import loss_of

    index = torch.arange(0, len(loader.samples), len(loader.samples) // 50)
    # With the longest history both have the same padding, and so draw the same random numbers.
    index[0] = loader.samples.lengths(loader.samples.rows).argmax()
    batch = loader.samples.cut(index, loader.samples.max_length)
    losses = []
    with torch.no_grad():
        for part, loss in ((model, lambda batch: loss_of(model, batch)), (straightforward, straightforward)):
            torch.manual_seed(0)
            part.eval()
            losses.append(loss(batch).item())
            part.train()
    compare_losses(losses[1], losses[0])


def compare_losses(theirs: float, ours: float) -> None:
    if abs(ours - theirs) > 1e-4 * max(1, abs(ours)):
        raise SystemExit(f"the other implementation differs: loss {theirs}, not {ours}")


# A process for each side, which steps when it is told to


def serve(options) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    side = {"project": project, "plain": plain, "cornac": cornac}[options.side]
    torch.set_num_threads(options.threads)
    batches, step = side(options)
    baseline = memory_mib("VmRSS")
    step(batches[0][1])  # the first step of a process is slower
    report(ready=True, baseline_mib=baseline)
    number = 1
    for command, *count in questions():
        if command == "peak":
            report(**matmul_peaks())
        elif command == "flops":  # not while time is measured: counting takes a tenth of the shorter steps
            chosen = batches[1 : 1 + int(count[0])]
            with FlopCounterMode(display=False, custom_mapping=onednn_flops()) as counter:
                take_steps(step, chosen)
            report(flops_per_sample=counter.get_total_flops() / sum(samples for samples, _ in chosen))
        else:
            chosen = batches[number : number + int(count[0])]
            number += len(chosen)
            started, cpu_started = time.perf_counter(), time.process_time()
            take_steps(step, chosen)
            report(
                seconds=time.perf_counter() - started,
                cpu_seconds=time.process_time() - cpu_started,
                samples=sum(samples for samples, _ in chosen),
                peak_mib=memory_mib("VmHWM"),
            )


def take_steps(step, batches: list[tuple]) -> None:
    for _, batch in batches:
        step(batch)


def onednn_flops() -> dict:
    """torch counts those of its own products only."""
    import torch

    def count(a, b, *rest, out_shape=None, **options) -> int:
        return 2 * a[0] * a[1] * b[0]

    multiply = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    return {multiply: count} if multiply else {}


def matmul_peaks() -> dict[str, float]:
    """GFLOP/s of a large product, the best of several: as torch multiplies (MKL), and as we do (oneDNN)."""
    import torch

    from recbole_diffgrm.nn.linear import linear

    a, best = torch.randn(2048, 2048), {}
    with torch.inference_mode():
        for name, multiply in {"torch": torch.matmul, "onednn": linear}.items():
            for _ in range(8):
                started = time.perf_counter()
                multiply(a, a)
                gflops = 2 * 2048**3 / (time.perf_counter() - started) / 1e9
                best[name] = max(best.get(name, 0.0), gflops)
    return best


def start(side: str, python: str, options, case: dict | None = None) -> Side:
    arguments = [f"--side={side}", f"--model={options.model}", f"--data_path={options.data_path}"]
    arguments += [f"--cache={options.cache}", f"--saved={options.saved}", f"--threads={options.threads}"]
    arguments += [f"--case={json.dumps(case)}"] if case else []
    arguments += [f"--batch={options.batch}"] if options.batch else []
    arguments += [f"--{name}" for name in ("amp", "tuned_plain") if getattr(options, name)]
    return Side(python, __file__, arguments, options.threads)


def save_for_cornac(options) -> None:
    import torch
    from cornac_networks import save
    from models import loss_of

    model, loader = model_and_loader(options)
    batches = padded(loader, options.model)
    with torch.no_grad():
        loss = loss_of(model.eval(), batches[0]).item()
    save(options.saved, options.model, model, batches, loss=loss)


def race(options) -> dict:
    from models import CORNAC

    names = {"project": sys.executable, "plain": sys.executable}
    if options.cornac and options.model in CORNAC:
        save_for_cornac(options)
        names["cornac"] = options.cornac
    sides = {name: start(name, python, options) for name, python in names.items()}

    def steps_of(name: str) -> int:
        """Of a round."""
        return FASTER.get(options.model, 1) * (OURS_A_ROUND if name == "project" else 1)

    turns = {name: [] for name in sides}
    peaks = []
    for number in range(ROUNDS):
        peaks.append(sides["project"].ask("peak"))
        for name, side in sides.items():
            turn = side.ask(f"step {steps_of(name)}")
            turns[name].append(turn)
            rate = turn["samples"] / turn["seconds"]
            print(f"{options.model}, round {number + 1} of {ROUNDS}: {name:8} {rate:7.1f} samples/s", flush=True)
    gflop = {
        name: side.ask(f"flops {ROUNDS * steps_of(name) if name == 'project' else 1}")["flops_per_sample"] / 1e9
        for name, side in sides.items()
    }
    for side in sides.values():
        side.close()
    rates, cpu_rates = (
        {name: sum(turn["samples"] for turn in of) / sum(turn[clock] for turn in of) for name, of in turns.items()}
        for clock in ("seconds", "cpu_seconds")
    )
    gflops = gflop["project"] * rates["project"]
    peak, onednn_peak = (sorted(of[name] for of in peaks)[len(peaks) // 2] for name in ("torch", "onednn"))
    return {
        "samples_per_second": rates,
        "speedup": {name: rates["project"] / rate for name, rate in rates.items() if name != "project"},
        "speedup_in_cpu_time": {name: cpu_rates["project"] / cpu_rates[name] for name in rates if name != "project"},
        "peak_memory_mib": {name: of[-1]["peak_mib"] for name, of in turns.items()},
        "matmul_gflops": peak,
        "project_gflops": gflops,
        "share_of_matmul_peak": gflops / peak,
        "onednn_gflops": onednn_peak,
        "share_of_onednn_peak": gflops / onednn_peak,
        "gflop_per_sample": gflop,
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


def measure_cases(options) -> list[dict]:
    rows = []
    for case in CASES:
        side = start("project", sys.executable, options, case)
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


def print_table(results: dict[str, dict]) -> None:
    print(f"\n{'samples/s':12}" + "".join(f"{side:>18}" for side in ("project", "plain", "cornac")))
    for model, result in results.items():
        cells = [f"{result['samples_per_second']['project']:18.1f}"]
        for side, ratio in result["speedup"].items():
            cells.append(f"{result['samples_per_second'][side]:.1f} ({ratio:.2f}x)".rjust(18))
        print(f"{model:12}" + "".join(cells))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_path", default="dataset")
    parser.add_argument("--model", default="DiffGRM", help="names separated by commas, or all")
    parser.add_argument("--cornac", help="Python of an environment with cornac 3.0.1")
    parser.add_argument("--cases", action="store_true", help="also DiffGRM over history length, digits and batch")
    parser.add_argument("--amp", action="store_true", help="our side in bfloat16, as enable_amp does")
    parser.add_argument("--tuned_plain", action="store_true", help="the plain side keeps freed memory too")
    parser.add_argument("--batch", type=int, help="instead of the model's train_batch_size: less memory")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    parser.add_argument("--saved", help=argparse.SUPPRESS)
    parser.add_argument("--case", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.data_path = str(Path(options.data_path).resolve())
    if options.side:
        serve(options)
        return

    from models import parse_names

    from recbole_diffgrm.experiments.environment import describe
    from recbole_diffgrm.files import write_json

    run = {"command": "python benchmarks/train_step.py " + " ".join(sys.argv[1:])}
    run |= {"threads": options.threads, "environment": describe()}
    out = ROOT / "benchmarks" / "out"
    out.mkdir(exist_ok=True)
    results = {}
    names = parse_names(options.model)
    for options.model in names:
        with tempfile.TemporaryDirectory() as options.cache:
            options.saved = str(Path(options.cache) / "saved.pt")
            result = results[options.model] = {**run, "model": options.model, **race(options)}
            for name, speedup in result["speedup"].items():
                in_cpu_time = result["speedup_in_cpu_time"][name]  # where other programs run too, the better measure
                print(f"{speedup:.2f} times as fast as {name} ({in_cpu_time:.2f} in CPU time)")
            print(
                "{project_gflops:.1f} GFLOP/s in matrix products, {share_of_matmul_peak:.0%} of {matmul_gflops:.1f} "
                "(torch, 2048 x 2048), {share_of_onednn_peak:.0%} of {onednn_gflops:.1f} (oneDNN)".format(**result)
            )
            print("peak memory, MiB: " + ", ".join(f"{k} {v:,.0f}" for k, v in result["peak_memory_mib"].items()))
            if options.cases and options.model == "DiffGRM":
                result["cases"] = measure_cases(options)
        suffix = "" if options.model == "DiffGRM" else f"-{options.model}"
        write_json(result, out / f"train_step{suffix}.json")
    if len(results) > 1:
        print_table(results)


if __name__ == "__main__":
    main()
