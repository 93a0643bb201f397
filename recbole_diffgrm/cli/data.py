"""python -m recbole_diffgrm.data: archives to atomic files, without training anything."""

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path

from recbole_diffgrm.cli.arguments import exit_code
from recbole_diffgrm.config.layers import properties_dir, read_yaml
from recbole_diffgrm.data import amazon, amazon_2023, source
from recbole_diffgrm.data.download import dataset_folder
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.screen import log_to_screen


def _wrap(title: str, names: Sequence[str]) -> str:
    return textwrap.fill(title + ", ".join(names), 110, subsequent_indent="  ", break_on_hyphens=False)


EPILOG = f"""\
datasets:
  Amazon_<Category>       Amazon Reviews 2014, 5-core: reviews_<Category>_5.json.gz and meta_<Category>.json.gz
  Amazon_2023_<Category>  Amazon Reviews 2023, from which the 5-core is made: <Category>.jsonl.gz and
                          meta_<Category>.jsonl.gz
  another name            of RecBole's url.yaml, such as ml-1m or amazon-beauty: a zip of atomic files

{_wrap("categories of 2014: ", amazon.CATEGORIES)}

{_wrap("categories of 2023: ", amazon_2023.CATEGORIES)}
"""


def main() -> int:
    defaults = read_yaml(properties_dir() / "overall.yaml")
    parser = argparse.ArgumentParser(
        prog="python -m recbole_diffgrm.data",
        description="Download a dataset and convert it to RecBole's atomic files, as a run does if need be.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dataset", required=True, help="such as Amazon_Beauty; see below")
    parser.add_argument("--reviews", type=Path, help="reviews of an Amazon category, on this disk")
    parser.add_argument("--meta", type=Path, help="metadata of that category on this disk")
    parser.add_argument("--data_path", type=Path, default=Path(defaults["data_path"]), help="where to put the result")
    parser.add_argument("--amazon_url", default=defaults["amazon_url"], help="where to download 2014 from")
    parser.add_argument("--amazon_2023_url", default=defaults["amazon_2023_url"], help="where to download 2023 from")
    parser.add_argument("--recbole_url", default=defaults["recbole_url"], help="where RecBole's archives are")
    options = parser.parse_args()
    with log_to_screen():
        return exit_code(lambda: _convert(options))


def _convert(options: argparse.Namespace) -> int:
    dataset, folder = options.dataset, options.data_path / options.dataset
    if (options.reviews is None) != (options.meta is None):
        raise UserError("--reviews and --meta go together")
    if options.reviews:
        release = amazon_2023 if dataset.startswith(amazon_2023.PREFIX) else amazon
        if not dataset.startswith(release.PREFIX):
            raise UserError(f"--reviews and --meta are for Amazon_<Category> and Amazon_2023_<Category>, not {dataset}")
        with dataset_folder(folder):
            release.convert(dataset, [options.reviews, options.meta], folder)
    else:
        source.fetch(dataset, folder, vars(options))
    print(", ".join(str(path) for path in sorted(folder.glob(f"{dataset}.*"))))
    return 0
