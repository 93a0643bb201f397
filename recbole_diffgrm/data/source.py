"""Makes sure that the files of a dataset are there and fit the configuration, and downloads what can be downloaded."""

from pathlib import Path

from recbole_diffgrm.config.build import Config
from recbole_diffgrm.data import amazon
from recbole_diffgrm.data.atomic import read_header
from recbole_diffgrm.errors import UserError


def check_files(config: Config) -> None:
    folder = Path(config["data_path"])
    if not (folder / f"{config.dataset}.inter").exists():
        if not config.dataset.startswith(amazon.PREFIX):
            raise UserError(
                f"{folder / config.dataset}.inter does not exist: put it there, or set data_path to the folder that "
                f"holds {config.dataset}/"
            )
        amazon.fetch(config.dataset, folder, config["amazon_url"])
    _check_features(config, folder / f"{config.dataset}.item")


def _check_features(config: Config, path: Path) -> None:
    """Models of RecBole that use item features say so in selected_features or item_attribute."""
    used = [*(config["selected_features"] or []), *([config["item_attribute"]] if config["item_attribute"] else [])]
    loaded = config["load_col"].get("item", [])
    for name in used:
        if name not in loaded or not path.exists() or name not in read_header(path):
            raise UserError(
                f"{config.model} uses the item feature {name!r}, which is not loaded: add it to load_col (item) and "
                f"to {path}"
            )
