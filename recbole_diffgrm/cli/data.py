"""python -m recbole_diffgrm.data: Amazon 2014 archives to atomic files, without training anything."""

import argparse
from pathlib import Path

from recbole_diffgrm.cli.arguments import exit_code
from recbole_diffgrm.config.layers import properties_dir, read_yaml
from recbole_diffgrm.data import amazon
from recbole_diffgrm.errors import UserError


def main() -> int:
    defaults = read_yaml(properties_dir() / "overall.yaml")
    parser = argparse.ArgumentParser(
        prog="python -m recbole_diffgrm.data",
        description="Convert Amazon Reviews 2014 (5-core reviews and metadata) to RecBole atomic files.",
        epilog="Without --reviews and --meta the archives are downloaded first.",
    )
    parser.add_argument("--dataset", required=True, help="Amazon_<Category>, such as Amazon_Beauty")
    parser.add_argument("--reviews", type=Path, help="reviews_<Category>_5.json.gz on this disk")
    parser.add_argument("--meta", type=Path, help="meta_<Category>.json.gz on this disk")
    parser.add_argument("--data_path", type=Path, default=Path(defaults["data_path"]), help="where to put the result")
    parser.add_argument("--amazon_url", default=defaults["amazon_url"], help="where to download from")
    options = parser.parse_args()
    return exit_code(lambda: _convert(options))


def _convert(options: argparse.Namespace) -> int:
    folder = options.data_path / options.dataset
    if (options.reviews is None) != (options.meta is None):
        raise UserError("--reviews and --meta go together")
    if options.reviews:
        amazon.convert(options.dataset, options.reviews, options.meta, folder)
    else:
        amazon.fetch(options.dataset, folder, options.amazon_url)
    print(f"{folder / options.dataset}.inter and .item")
    return 0
