"""What a table of IDs is like: how many are shared, how the codes of each digit are used, what was lost."""

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from recbole_diffgrm.tokenizer import collisions
from recbole_diffgrm.tokenizer.artefact import Tokenizer

SHOWN_PAIRS = 6  # pairs of digits in the printed table; report.json has all


def describe(
    tokenizer: Tokenizer, item_ids: np.ndarray, test_items: Sequence[str], about: dict[str, Any]
) -> dict[str, Any]:
    """Numbers about the IDs of `item_ids`. `about` is what is known from making them; test_items: the test targets."""
    place = {item: number for number, item in enumerate(tokenizer.item_ids.tolist())}
    chosen = np.array([place[item] for item in item_ids.tolist()])
    codes, sids, size = tokenizer.codes[chosen], tokenizer.sids[chosen], tokenizer.size
    sharing = collisions.group_sizes(sids, size)
    targets = np.array([sharing[place] for place in np.searchsorted(item_ids, test_items)])
    counts = [np.bincount(column, minlength=size) for column in sids.T]
    group_size, members = np.unique(sharing, return_counts=True)
    settings, fitted = tokenizer.settings, tokenizer.quantiser
    unknown = {"items_without_text": 0, "error": None, "error_with_moves": None}
    return (
        unknown
        | about
        | {
            "text_fields": list(tokenizer.source["fields"]),
            "encoder": settings["sid_encoder"] if fitted else None,
            "quantiser": settings["sid_quantiser"],
            "dimensions": fitted.dimensions if fitted else None,
            "digits": sids.shape[1],
            "codes": size,
            "collisions": settings["sid_collisions"],
            "items": len(sids),
            "distinct_ids": len(np.unique(collisions.keys(sids, size))),
            "distinct_ids_as_quantised": len(np.unique(collisions.keys(codes, size))),
            "colliding_items": int((sharing > 1).sum()),
            "largest_group": int(sharing.max()),
            "items_by_group_size": dict(zip(map(str, group_size.tolist()), members.tolist())),
            "test_targets": len(targets),
            "test_targets_sharing": float((targets > 1).mean()) if len(targets) else None,
            "items_moved": int((sids[:, : codes.shape[1]] != codes).any(axis=1).sum()),
            "codes_used": [int((count > 0).sum()) for count in counts],
            "entropy_bits": [_entropy(count) for count in counts],
            "code_counts": [count.tolist() for count in counts],
            "mutual_information_bits": _mutual_information(sids),
        }
    )


def _entropy(counts: np.ndarray) -> float:
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log2(share)).sum())


def _mutual_information(sids: np.ndarray) -> dict[str, dict[str, float]]:
    """Of each pair of digits, in bits, and what shuffled digits would show: with few items that is far from 0."""
    shuffled = sids[np.random.default_rng(0).permutation(len(sids))]
    pairs = {}
    for a, b in combinations(range(sids.shape[1]), 2):
        pairs[f"{a + 1}-{b + 1}"] = {
            "measured": _shared_bits(sids[:, a], sids[:, b]),
            "by_chance": _shared_bits(sids[:, a], shuffled[:, b]),
        }
    return pairs


def _shared_bits(a: np.ndarray, b: np.ndarray) -> float:
    joint = np.unique(a.astype(np.int64) << 16 | b, return_counts=True)[1]
    return _entropy(np.bincount(a)) + _entropy(np.bincount(b)) - _entropy(joint)


def table(report: dict[str, Any]) -> str:
    rows = [
        ("items", f"{report['items']:,}"),
        ("without text", f"{report['items_without_text']:,}" + " (IDs drawn)" * (report["items_without_text"] > 0)),
        ("text fields", ", ".join(report["text_fields"]) or "-"),
        ("encoder", report["encoder"] or "-"),
        ("quantiser", f"{report['quantiser']}, {report['digits']} digits of {report['codes']} codes"),
        ("dimensions", f"{report['dimensions']}" if report["dimensions"] else "-"),
        ("distinct IDs", f"{report['distinct_ids']:,} (as quantised: {report['distinct_ids_as_quantised']:,})"),
        ("colliding items", f"{report['colliding_items']:,}, at most {report['largest_group']:,} with one ID"),
        ("test targets that share their ID", _percent(report["test_targets_sharing"])),
        ("items moved", f"{report['items_moved']:,}"),
    ]
    if report["error"] is not None:
        rows.append(("quantisation error", f"{_percent(report['error'])} of the variance"))
        if report["items_moved"]:
            rows.append(("... with items moved", _percent(report["error_with_moves"])))
    digits = [
        (number, used, f"{entropy:.2f}")
        for number, (used, entropy) in enumerate(zip(report["codes_used"], report["entropy_bits"]), start=1)
    ]
    pairs = sorted(
        report["mutual_information_bits"].items(), key=lambda pair: pair[1]["by_chance"] - pair[1]["measured"]
    )
    shared = [(name, f"{bits['measured']:.2f}", f"{bits['by_chance']:.2f}") for name, bits in pairs[:SHOWN_PAIRS]]
    parts = [
        tabulate(rows, tablefmt="plain", disable_numparse=True),
        tabulate(digits, ["digit", "codes used", f"entropy, bits (at most {np.log2(report['codes']):.0f})"]),
    ]
    if shared:
        parts.append(tabulate(shared, ["digits", "mutual information, bits", "by chance"]))
    return "\n\n".join(parts)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def draw(report: dict[str, Any], path: Path) -> None:
    """Left: items per code of each digit, most used first. Right: items by the size of their group."""
    from matplotlib.figure import Figure  # not pyplot: a caller's windows are the caller's

    figure = Figure(figsize=(10, 4), layout="constrained")
    usage, groups = figure.subplots(1, 2)
    for number, counts in enumerate(report["code_counts"], start=1):
        usage.plot(np.arange(1, len(counts) + 1), sorted(counts, reverse=True), label=f"digit {number}")
    usage.axhline(report["items"] / report["codes"], color="grey", linestyle=":", label="even use")
    usage.set(xlabel="code, most used first", ylabel="items", title="Use of codes", ylim=(0, None))
    usage.legend(frameon=False, fontsize="small", ncols=1 + len(report["code_counts"]) // 9)
    bins = _doubling_bins(report["items_by_group_size"])
    groups.bar(list(bins), list(bins.values()), color="tab:blue")
    groups.set(
        xlabel="items that share an ID", ylabel="items", title=f"{report['distinct_ids']:,} distinct IDs", yscale="log"
    )
    for axes in (usage, groups):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _doubling_bins(items_by_group_size: dict[str, int]) -> dict[str, int]:
    """{1: items, 2: items, 3-4: items, 5-8: items, ...}"""
    items_by_size = {int(size): items for size, items in items_by_group_size.items()}
    bins: dict[str, int] = {}
    low, high = 1, 1
    while low <= max(items_by_size):
        name = str(low) if low == high else f"{low}-{high}"
        bins[name] = sum(items for size, items in items_by_size.items() if low <= size <= high)
        low, high = high + 1, 2 * high
    return bins
