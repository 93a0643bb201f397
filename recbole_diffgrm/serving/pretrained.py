"""A recommender as a folder to hand on: safetensors, items, tokenizer, and a model card that says what it can do.

The folder is laid out like a run directory, so whatever takes a run takes it too; there is nothing in it that could be
executed, and no path of the machine that it comes from.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from tabulate import tabulate
from torch import Tensor

from recbole_diffgrm.data.columns import as_arrow
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments import item_table
from recbole_diffgrm.experiments.result import RunResult, hash_files
from recbole_diffgrm.files import first_line, make_folder, reading, write_text, writing
from recbole_diffgrm.words import count

if TYPE_CHECKING:
    from recbole_diffgrm.serving.recommender import Recommender

WEIGHTS_FILE = "model.safetensors"
CARD_FILE = "README.md"
PLACES = {"data_path": "dataset", "output_dir": "runs", "cache_dir": "cache"}  # keys that say where something was
INSTALL = 'pip install "recbole_diffgrm[serve]"'


def save(recommender: "Recommender", folder: Path) -> None:
    try:
        from safetensors.torch import save_file
    except ImportError:
        raise UserError(f"save_pretrained needs safetensors: {INSTALL}") from None
    result = recommender.result
    assert result is not None  # it was loaded
    make_folder(folder)
    if any(folder.iterdir()):
        raise UserError(f"save_pretrained: {folder} is not empty")
    state = {name: value.detach().cpu().contiguous().clone() for name, value in recommender.model.state_dict().items()}
    with writing(folder):
        save_file(state, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    has_sids = recommender.config.model_class.needs_sids(recommender.config)
    sids = recommender.model.semantic_ids.lookup(torch.arange(1, len(recommender.items.names))) if has_sids else None
    names, titles = (as_arrow(texts[1:]) for texts in (recommender.items.names, recommender.items.titles))
    item_table.write(folder, recommender.config["ITEM_ID_FIELD"], names, titles, sids)
    recommender.save_tokenizer(folder)
    config = {key: PLACES.get(key, value) for key, value in result.config.items()}
    digest = item_table.read_sid_digest(folder)
    saved = replace(result, run_dir=folder, config=config, sid_digest=digest, sha256=hash_files(folder))
    saved.save()
    write_text(make_card(saved, len(recommender.items.names) - 1), folder / CARD_FILE)


def load_weights(path: Path, device: Any) -> dict[str, Tensor]:
    with reading(path):
        try:
            from safetensors.torch import load_file
        except ImportError:
            raise UserError(f"{path} needs safetensors: {INSTALL}") from None
        return load_file(path, device=str(device))


def find_folder(name: str | Path, revision: str | None) -> Path:
    """A folder of this machine, or else one of the hub, downloaded."""
    if Path(name).is_dir():
        return Path(name)
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(f"{name} is no folder, and the hub needs huggingface_hub: {INSTALL}") from None
    try:
        return Path(huggingface_hub.snapshot_download(str(name), revision=revision))
    except Exception as error:  # this library raises all kinds
        raise UserError(f"{name} is no folder, and cannot be had from the hub ({first_line(error)})") from None


def make_card(result: RunResult, num_items: int) -> str:
    """What the model is, its metrics, and how these were obtained."""
    statistics, config = result.statistics, result.config
    names = {"all": "all items ranked", "unseen": "seen items filtered"}
    about = {
        "library_name": "recbole_diffgrm",
        "tags": ["recommender-systems", "sequential-recommendation", "semantic-ids", result.model],
        "model-index": [
            {
                "name": f"{result.model} on {result.dataset}",
                "results": [
                    {
                        "task": {"type": "sequential-recommendation", "name": "next item"},
                        "dataset": {"type": result.dataset, "name": result.dataset},
                        "metrics": [{"type": f"{name} ({ranking})", "value": value} for name, value in of.items()],
                    }
                    for ranking, of in result.test.items()
                ],
            }
        ],
    }
    metrics = list(dict.fromkeys(name for of in result.test.values() for name in of))
    rows = [[names.get(ranking, ranking), *(of.get(name) for name in metrics)] for ranking, of in result.test.items()]
    table = tabulate(rows, ["test", *metrics], tablefmt="github", floatfmt=".4f")
    added = num_items - statistics["items"]
    more = f"{count(added, 'item')} added by their text afterwards, without training." if added > 0 else ""
    split = yaml.safe_dump(config["eval_args"], default_flow_style=True, width=1000).strip()
    commit = result.environment.get("commit") or "unknown"
    return f"""---
{yaml.safe_dump(about, sort_keys=False, allow_unicode=True).strip()}
---

# {result.model} on {result.dataset}

Recommends the next item of a user's history: {count(num_items, "item")}, {result.parameters:,} trained parameters.
{more}

```python
from recbole_diffgrm import Recommender

recommender = Recommender.from_pretrained("this folder, or its name on the hub")
recommender.recommend([["an item id", "another one"]], k=10)
```

## Metrics

{table}

A hit is the target item; `sid_*`: an item with the target's semantic ID. One run: how much another seed would differ is
not known.

How they were obtained: {count(statistics["users"], "user")}, {count(statistics["items"], "item")} and
{count(statistics["interactions"], "interaction")} of {result.dataset};
{count(statistics["test_users"], "test user")}, split `{split}`; seed {result.seed}; {count(result.epochs, "epoch")}
trained, of which epoch {result.best_epoch} was the best in validation (`{config["valid_metric"]}`).
recbole_diffgrm at commit {commit}. All settings are in `result.json`.
"""
