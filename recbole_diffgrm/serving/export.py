"""A recommender as programs of torch.export: encoding, and one step of the decoder, with any number of users, items of
a history and branches. With the table of semantic IDs and a copy of the loader beside them, the folder needs torch and
nothing else (serving/exported.py)."""

import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.export import Dim

import recbole_diffgrm
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import atomic_write, make_folder, write_json, write_text, writing
from recbole_diffgrm.serving.exported import ENCODE_FILE, SETTINGS_FILE, STEP_FILE, TABLES_FILE

if TYPE_CHECKING:
    from recbole_diffgrm.serving.recommender import Recommender

LOADER = (
    "errors.py",
    "files.py",
    "generation",
    "serving/exported.py",
)  # of the package: no more than the loader imports
MOST = 1 << 16  # users, branches


@torch.no_grad()
def export(recommender: "Recommender", folder: Path) -> None:
    programs, config = recommender.model.programs(), recommender.config
    make_folder(folder)
    if any(folder.iterdir()):
        raise UserError(f"export: {folder} is not empty")
    ids, longest = recommender.model.semantic_ids, config["MAX_ITEM_LIST_LENGTH"]
    batch, beam, states = (Dim(name, min=1, max=MOST) for name in ("batch", "beam", "states"))
    length = Dim("length", min=1, max=longest) if longest > 1 else None
    size = min(2, longest)
    items = torch.ones(3, size, dtype=torch.int64, device=config["device"])
    lengths = torch.full_like(items[:, 0], size)
    memory, _ = programs.encode(items, lengths)
    digits = torch.zeros(3, 4, ids.num_digits, dtype=torch.int64, device=config["device"])
    of_layers = [{0: batch, 2: states} for _ in memory["keys"]]
    of_memory: dict[str, Any] = {name: {0: batch} for name in memory}
    of_memory |= {"keys": of_layers, "values": of_layers, "bias": {0: batch, 3: states}}
    _write(programs.encode, (items, lengths), ({0: batch, 1: length}, {0: batch}), folder / ENCODE_FILE)
    _write(programs.step, (digits, memory), ({0: batch, 1: beam}, of_memory), folder / STEP_FILE)
    buffers = {name: buffer.cpu().clone() for name, buffer in ids.named_buffers()}
    with atomic_write(folder / TABLES_FILE) as file:
        torch.save(buffers, file)
    settings = {
        **programs.search,
        "widths": recommender.model.beam_widths,
        "max_length": longest,
        "filter_seen": not config["repeatable"],
        "model": config.model,
        "dataset": config.dataset,
        "names": recommender.items.names,
        "titles": recommender.items.titles,
    }
    write_json(settings, folder / SETTINGS_FILE)
    _copy_loader(folder)


def _write(module: torch.nn.Module, inputs: tuple, shapes: Any, path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about itself
        program = torch.export.export(module.eval(), inputs, dynamic_shapes=shapes, strict=False)
        for node in program.graph.nodes:
            node.meta.pop("stack_trace", None)  # paths of this machine
        with writing(path):
            torch.export.save(program, path)


def _copy_loader(folder: Path) -> None:
    source, target = Path(recbole_diffgrm.__file__).parent, folder / "recbole_diffgrm"
    for name in LOADER:
        files = [source / name] if name.endswith(".py") else sorted((source / name).glob("*.py"))
        for file in files:
            copy = target / file.relative_to(source)
            make_folder(copy.parent)
            with writing(copy):
                shutil.copyfile(file, copy)
    for package in (target, target / "serving"):
        write_text("", package / "__init__.py")
