"""Statistics of SIDs: how many items share one, how the codes of each digit are used, how much quantization loses."""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from recbole_diffgrm.data.columns import find_rows
from recbole_diffgrm.files import atomic_write
from recbole_diffgrm.tokenizer import collisions
from recbole_diffgrm.tokenizer.tokenizer import Tokenizer
from recbole_diffgrm.words import count

SHOWN_PAIRS = 6  # pairs of digits in the printed table; report.json has all


def describe(
    tokenizer: Tokenizer, item_ids: np.ndarray, test_targets: np.ndarray, about: dict[str, Any]
) -> dict[str, Any]:
    """Numbers about the SIDs of `item_ids`. `about`: what is known from building the tokenizer."""
    chosen = find_rows(item_ids, tokenizer.item_ids)
    codes, sids, codebook_size = tokenizer.codes[chosen], tokenizer.sids[chosen], tokenizer.codebook_size
    sharing = collisions.group_sizes(sids, codebook_size)
    targets = sharing[find_rows(test_targets, item_ids)] if len(test_targets) else np.zeros(0, int)
    counts = [np.bincount(column, minlength=codebook_size) for column in sids.T]
    group_size, members = np.unique(sharing, return_counts=True)
    settings, quantizer = tokenizer.settings, tokenizer.quantizer
    unknown = {"items_without_text": 0, "quantization_error": None, "quantization_error_after_reassignment": None}
    return (
        unknown
        | about
        | {
            "text_fields": list(tokenizer.source["fields"]),
            "text_encoder": settings["sid_text_encoder"] if tokenizer.reads_text else None,
            "quantizer": settings["sid_quantizer"],
            "dimensions": quantizer.dim if quantizer else None,
            "num_digits": sids.shape[1],
            "codebook_size": codebook_size,
            "collisions": settings["sid_collisions"],
            "sid_digest": tokenizer.digest(item_ids),
            "num_items": len(sids),
            "distinct_sids": len(np.unique(collisions.to_keys(sids, codebook_size))),
            "distinct_sids_as_quantized": len(np.unique(collisions.to_keys(codes, codebook_size))),
            "colliding_items": int((sharing > 1).sum()),
            "largest_group": int(sharing.max()),
            "items_by_group_size": dict(zip(map(str, group_size.tolist()), members.tolist())),
            "test_targets": len(targets),
            "test_targets_sharing": float((targets > 1).mean()) if len(targets) else None,
            "items_reassigned": int((sids[:, : codes.shape[1]] != codes).any(axis=1).sum()),
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
    """Of each pair of digits, in bits, next to that of shuffled digits: with few items it is far from 0 by chance."""
    shuffled = sids[np.random.default_rng(0).permutation(len(sids))]
    pairs = {}
    for a, b in combinations(range(sids.shape[1]), 2):
        pairs[f"{a + 1}-{b + 1}"] = {
            "measured": _pair_information(sids[:, a], sids[:, b]),
            "by_chance": _pair_information(sids[:, a], shuffled[:, b]),
        }
    return pairs


def _pair_information(a: np.ndarray, b: np.ndarray) -> float:
    joint = np.unique(a.astype(np.int64) << 16 | b, return_counts=True)[1]
    return _entropy(np.bincount(a)) + _entropy(np.bincount(b)) - _entropy(joint)


def format_table(report: dict[str, Any]) -> str:
    # what an item's codes are made from; without it they are random
    origin = "interactions" if "items_without_interactions" in report else "text"
    without, digits = report[f"items_without_{origin}"], count(report["num_digits"], "digit")
    rows = [
        ("items", f"{report['num_items']:,}"),
        (f"items without {origin}", f"{without:,}" + " (random codes)" * (without > 0)),
        ("text fields", ", ".join(report["text_fields"]) or "-"),
        ("text encoder", report["text_encoder"] or "-"),
        ("quantizer", f"{report['quantizer']}, {digits}, codebook size {report['codebook_size']}"),
        ("dimensions", f"{report['dimensions']}" if report["dimensions"] else "-"),
        ("digest of the SIDs", report["sid_digest"]),
        ("distinct SIDs", f"{report['distinct_sids']:,} (as quantized: {report['distinct_sids_as_quantized']:,})"),
        ("items that share a SID", f"{report['colliding_items']:,} (largest group: {report['largest_group']:,})"),
        ("test targets that share a SID", _percent(report["test_targets_sharing"])),
        ("items reassigned", f"{report['items_reassigned']:,}"),
    ]
    if report["quantization_error"] is not None:
        rows.append(("quantization error", f"{_percent(report['quantization_error'])} of the variance"))
        if report["items_reassigned"]:
            rows.append(("... after reassignment", _percent(report["quantization_error_after_reassignment"])))
    usage = [
        (number, used, f"{entropy:.2f}")
        for number, (used, entropy) in enumerate(zip(report["codes_used"], report["entropy_bits"]), start=1)
    ]
    pairs = sorted(
        report["mutual_information_bits"].items(), key=lambda pair: pair[1]["by_chance"] - pair[1]["measured"]
    )
    information = [(name, f"{bits['measured']:.2f}", f"{bits['by_chance']:.2f}") for name, bits in pairs[:SHOWN_PAIRS]]
    parts = [
        tabulate(rows, tablefmt="plain", disable_numparse=True),
        tabulate(usage, ["digit", "codes used", f"entropy, bits (at most {np.log2(report['codebook_size']):.0f})"]),
    ]
    if information:
        parts.append(tabulate(information, ["digits", "mutual information, bits", "by chance"]))
    return "\n\n".join(parts)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def draw(report: dict[str, Any], path: Path) -> None:
    """Left: items per code of each digit, most used first. Right: items by the size of their group."""
    from matplotlib.figure import Figure  # not pyplot, which would change the caller's figures

    figure = Figure(figsize=(10, 4), layout="constrained")
    usage, groups = figure.subplots(1, 2)
    for number, counts in enumerate(report["code_counts"], start=1):
        usage.plot(np.arange(1, len(counts) + 1), sorted(counts, reverse=True), label=f"digit {number}")
    usage.axhline(report["num_items"] / report["codebook_size"], color="grey", linestyle=":", label="even use")
    usage.set(xlabel="code, most used first", ylabel="items", title="Code usage", ylim=(0, None))
    usage.legend(frameon=False, fontsize="small", ncols=1 + len(report["code_counts"]) // 9)
    bins = _doubling_bins(report["items_by_group_size"])
    groups.bar(list(bins), list(bins.values()), color="tab:blue")
    groups.set(
        xlabel="items that share a SID",
        ylabel="items",
        title=f"{report['distinct_sids']:,} distinct SIDs",
        yscale="log",
    )
    for axes in (usage, groups):
        axes.spines[["top", "right"]].set_visible(False)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=150)


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
