"""Makes sure that a data set's files are there, downloading what can be downloaded."""

from pathlib import Path

from recbole_diffgrm.config.config import Config
from recbole_diffgrm.data import amazon
from recbole_diffgrm.errors import UserError


def ensure_files(config: Config) -> None:
    folder = Path(config["data_path"])
    if (folder / f"{config.dataset}.inter").exists():
        return
    if not config.dataset.startswith(amazon.PREFIX):
        raise UserError(
            f"{folder / config.dataset}.inter does not exist: put it there, or set data_path to the folder that holds "
            f"{config.dataset}/"
        )
    amazon.fetch(config.dataset, folder, config["amazon_url"])
