"""python -m recbole_diffgrm.tokenizer: semantic IDs of a data set, without training anything."""

import logging
import sys
from collections.abc import Sequence
from typing import Any

from recbole_diffgrm.cli import parse_arguments
from recbole_diffgrm.errors import UserError

USAGE = """\
Give every item of a data set a semantic ID, and say what the IDs are like.

  python -m recbole_diffgrm.tokenizer                                          ml-100k, bundled encoder, no network
  python -m recbole_diffgrm.tokenizer --dataset=Amazon_Beauty --sid_encoder=bundled --sid_collisions=reassign
  python -m recbole_diffgrm.tokenizer --dataset=mydata --sid_text_fields=[title,brand] --sid_digits=3 --sid_codes=128

  --dataset=NAME --data_path=FOLDER --config_files="A B"   as for run_recbole_diffgrm.py
  --sid_text_fields=[A,B] --sid_text_template=TEXT         text: columns of .item, and how one is written
  --sid_encoder=bundled|NAME|FOLDER|FILE.npz|FILE.npy      vectors: a sentence-transformers model, or ready embeddings
  --sid_file=FILE.sid|tokenizer.npz                        ready IDs, or an earlier tokenizer (new items join it)
  --sid_quantiser=opq|pq|rq_kmeans|random --sid_digits=4 --sid_codes=256 --sid_pca_dim=256 --sid_seed=N
  --sid_collisions=keep|reassign|extra_digit               items that would share an ID
  --cache_dir=FOLDER                                       where results are kept (default: cache)

Every key is described in properties/tokenizer.yaml.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if "--help" in arguments or "-h" in arguments:
        print(USAGE, end="")
        return 0
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    ours = logging.getLogger("recbole_diffgrm")
    ours.addHandler(handler)
    ours.setLevel("INFO")
    try:
        _main(parse_arguments(arguments))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    finally:
        ours.removeHandler(handler)
    return 0


def _main(options: dict[str, Any]) -> None:
    from recbole_diffgrm.config.config import build_config
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.prepare import check_files
    from recbole_diffgrm.tokenizer import report
    from recbole_diffgrm.tokenizer.prepare import prepare

    dataset_name = options.pop("dataset", "ml-100k")
    config_files = str(options.pop("config_files", "")).split()
    config = build_config("DiffGRM", dataset_name, config_files, options)
    check_files(config)
    dataset = load_dataset(config)
    prepared = prepare(config, dataset, dataset.build())
    print(f"\n{dataset_name}\n\n{report.table(prepared.report)}\n\nresults: {prepared.folder}")


if __name__ == "__main__":
    sys.exit(main())
