"""Draw how a finished run of DiffGRM generates one recommendation, digit by digit: the picture of the README.

    python docs/make_figure.py runs/ml-100k/DiffGRM-... --history "258 313"

Shows the best recommendation whose semantic ID was generated: which digit is filled at each step, with which code and
what probability, and which items are still possible. Items of the history are filtered.
"""

import argparse
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

from recbole_diffgrm import Recommender, UserError
from recbole_diffgrm.serving.recommender import FilledDigit, Recommendation

MASKED, KNOWN, NEW = ("#eceff1", "#90a4ae"), ("#bbdefb", "#0d47a1"), ("#1565c0", "#ffffff")  # (box, text)
GREY, BLACK = "#607d8b", "#212121"
BOX, GAP = 0.56, 0.1  # inches
LEFT, BOXES, CANDIDATES = 0.15, 1.1, 4.0  # inches from the left: columns of the table
LINE = 52  # characters of titles beside the boxes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of a finished run")
    parser.add_argument("--history", default="258 313", help="item ids, the most recent last")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "images" / "denoising.png")
    options = parser.parse_args()
    try:
        recommender = Recommender.load(options.run, repeatable=False)
        history = options.history.split()
        rank, chosen, path = choose(recommender, history)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    options.output.parent.mkdir(parents=True, exist_ok=True)
    draw(recommender, history, rank, chosen, path, options.output)
    print(options.output)
    return 0


def choose(recommender: Recommender, history: list[str]) -> tuple[int, Recommendation, list[FilledDigit]]:
    """The best recommendation whose SID was generated: its rank, and how its digits were filled."""
    paths = recommender.explain(history)
    for rank, chosen in enumerate(recommender.recommend([history])[0], start=1):
        path = paths.get(recommender.sid(chosen.item))
        if path:
            return rank, chosen, path
    raise UserError("history: none of its recommendations has a generated SID; try another one")


def candidates(recommender: Recommender, path: list[FilledDigit]) -> list[list[str]]:
    """Titles of the items that are still possible before the first step and after each one, most popular first."""
    names = [recommender.items.names[number] for number in recommender.model.semantic_ids.popular.tolist()]
    sids = {name: recommender.sid(name) for name in names}
    of_steps = []
    for count in range(len(path) + 1):
        left = [name for name in names if all(sids[name][step.digit] == step.code for step in path[:count])]
        of_steps.append([title_of(recommender, name) for name in left])
    return of_steps


def draw(
    recommender: Recommender,
    history: list[str],
    rank: int,
    chosen: Recommendation,
    path: list[FilledDigit],
    output: Path,
) -> None:
    titles = [title_of(recommender, item) for item in history]
    possible = candidates(recommender, path)
    width, height = 9.0, 1.0 + (len(path) + 1) * (BOX + GAP) + 0.55
    figure = plt.figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(height, 0))
    axes.axis("off")

    def write(x: float, y: float, text: str, **style) -> None:
        axes.text(x, y, text, **{"va": "center", "fontsize": 11, "color": BLACK} | style)

    write(LEFT, 0.3, "History", fontweight="bold")
    write(BOXES, 0.3, "  →  ".join(titles))
    for digit in range(len(path)):
        write(BOXES + digit * (BOX + GAP) + BOX / 2, 0.8, f"digit {digit + 1}", ha="center", fontsize=10, color=GREY)
    write(CANDIDATES, 0.8, "items that are still possible", fontsize=10, color=GREY)
    for number in range(len(path) + 1):
        top = 0.97 + number * (BOX + GAP)
        middle = top + BOX / 2
        write(LEFT, middle, f"step {number}" if number else "start", color=GREY)
        filled = {step.digit: step for step in path[:number]}
        for digit in range(len(path)):
            is_new = number > 0 and digit == path[number - 1].digit
            fill, color = MASKED if digit not in filled else NEW if is_new else KNOWN
            left = BOXES + digit * (BOX + GAP)
            shape = FancyBboxPatch((left, top), BOX, BOX, boxstyle="round,pad=0,rounding_size=0.08", fc=fill, ec="none")
            axes.add_patch(shape)
            text = str(filled[digit].code) if digit in filled else "?"
            write(left + BOX / 2, middle - (0.1 if is_new else 0), text, ha="center", fontsize=13, color=color)
            if is_new:
                probability = f"{filled[digit].probability:.0%}"
                write(left + BOX / 2, middle + 0.17, probability, ha="center", fontsize=9, color=color)
        count = len(possible[number])
        write(CANDIDATES, middle, f"{count:,}", fontweight="bold")
        write(CANDIDATES + 0.6, middle, list_titles(possible[number]), fontsize=10)
    bottom = height - 0.35
    write(LEFT, bottom, "Result", fontweight="bold")
    sid = " ".join(map(str, recommender.sid(chosen.item)))
    write(BOXES, bottom, title_of(recommender, chosen.item), fontweight="bold", color=NEW[0])
    write(CANDIDATES, bottom, f"semantic ID {sid}, recommendation {rank}", fontsize=10, color=GREY)
    figure.savefig(output, dpi=200)
    plt.close(figure)


def title_of(recommender: Recommender, item: str) -> str:
    """With articles at the front: Godfather, The -> The Godfather."""
    title = recommender.items.titles[recommender.items.numbers[item]]
    for article in ("The", "A", "An"):
        if title.endswith(f", {article}"):
            return f"{article} {title.removesuffix(f', {article}')}"
    return title


def list_titles(titles: list[str]) -> str:
    """The first of them that fit on a line."""
    text = titles[0]
    for title in titles[1:]:
        if len(text) + len(title) > LINE:
            return text + ", ..."
        text += f", {title}"
    return text


if __name__ == "__main__":
    sys.exit(main())
