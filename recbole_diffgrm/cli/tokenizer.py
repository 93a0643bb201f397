"""python -m recbole_diffgrm.tokenizer: semantic IDs of a dataset, without training a model."""

import sys
from collections.abc import Sequence
from typing import Any

from recbole_diffgrm.cli.arguments import exit_code, parse_arguments, split_files, working

USAGE = """\
Give every item of a dataset a semantic ID (SID) and report statistics of the SIDs.

  python -m recbole_diffgrm.tokenizer                       ml-100k with the bundled text encoder, no network
  python -m recbole_diffgrm.tokenizer --dataset=Amazon_Beauty --sid_text_encoder=bundled --sid_collisions=reassign
  python -m recbole_diffgrm.tokenizer --dataset=mydata --sid_text_fields=[title,brand] --sid_num_digits=3

  --dataset=NAME --data_path=FOLDER --config_files="A B"    as for run_recbole_diffgrm.py
  --sid_text_fields=[A,B] --sid_text_template=TEXT          item text: columns of .item, and how each is written
  --sid_text_encoder=bundled|NAME|FOLDER|FILE.npz|FILE.npy  item vectors: a sentence-transformers model, or embeddings
  --sid_file=FILE.sid|tokenizer.npz                         ready SIDs, or an earlier tokenizer to add new items to
  --sid_quantizer=opq|pq|...                                how vectors become codes (--help sid_quantizer)
  --sid_num_digits=N --sid_codebook_size=M --sid_pca_dim=N --sid_seed=N
  --sid_collisions=keep|reassign|extra_digit|random_digit   what to do with items that have the same codes
  --cache_dir=FOLDER                                        where results are stored (default: cache)

--help KEY describes one key; docs/configuration.md has them all.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    help_index = next((i for i, argument in enumerate(arguments) if argument in ("--help", "-h")), None)
    if help_index is not None:
        return exit_code(lambda: _help(arguments[help_index + 1 :]))
    return exit_code(lambda: _run(parse_arguments(arguments)))


def _help(keys: list[str]) -> int:
    if not keys:
        print(USAGE, end="")
        return 0
    from recbole_diffgrm.cli.reference import describe_key

    for key in keys:
        print(describe_key(key.lstrip("-")))
    return 0


def _run(options: dict[str, Any]) -> int:
    from recbole_diffgrm.models import check_config

    dataset_name = options.pop("dataset", "ml-100k")
    config_files = split_files(options.pop("config_files", ""))
    values = check_config("HistoryCopy", dataset_name, config_files, options)  # before torch is imported
    with working(values["state"]):
        return _tokenize(dataset_name, config_files, options)


def _tokenize(dataset_name: str, config_files: list[str], options: dict[str, Any]) -> int:
    from recbole_diffgrm.data.dataset import load_dataset
    from recbole_diffgrm.data.source import check_files
    from recbole_diffgrm.data.splits import make_split
    from recbole_diffgrm.models import build_config
    from recbole_diffgrm.tokenizer import report
    from recbole_diffgrm.tokenizer.pipeline import tokenize

    # A model that reads only general keys and those of the tokenizer.
    config = build_config("HistoryCopy", dataset_name, config_files, options)
    check_files(config)
    split = make_split(config, load_dataset(config))
    tokenized = tokenize(config, split)
    print(f"\n{dataset_name}\n\n{report.format_table(tokenized.report)}\n\nresults: {tokenized.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
