"""The datasets that RecBole names in its url.yaml: zip archives of atomic files."""

import os
import zipfile
from functools import cache
from pathlib import Path, PurePosixPath

from recbole_diffgrm.config.layers import read_yaml
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import check_unpacked_size, reading, sync_folder, writing
from recbole_diffgrm.progress import progress_bar
from recbole_diffgrm.recbole_compat import recbole_dir

URL_KEY = "recbole_url"
SUFFIXES = (".inter", ".user", ".item")  # what is read here; archives may hold knowledge graphs and more

# Where url.yaml says that they are; recbole_url may name another place with the same files.
_HOME = "https://recbole.s3-accelerate.amazonaws.com/ProcessedDatasets/"


@cache
def _addresses() -> dict[str, str]:
    return read_yaml(recbole_dir() / "properties" / "dataset" / "url.yaml")


def dataset_names() -> list[str]:
    return list(_addresses())


def archive_urls(dataset: str, url: str) -> list[str]:
    address = _addresses()[dataset]
    return [f"{url.rstrip('/')}/{address.removeprefix(_HOME)}" if address.startswith(_HOME) else address]


def by_hand(dataset: str, archives: list[Path], folder: Path) -> str:
    return f"get {archives[0].name} by hand, put it into {folder} and run the same command"


def convert(dataset: str, archives: list[Path], folder: Path) -> None:
    """Unpack the atomic files under the dataset's own name. The .inter comes last: where it is, all is there."""
    [archive] = archives
    written: dict[Path, Path] = {}  # {temporary file: its name}
    try:
        with reading(archive, if_damaged="delete it and get it again"), zipfile.ZipFile(archive) as opened:
            check_unpacked_size(opened)
            for name, member in _atomic_files(opened, dataset, archive).items():
                temporary = folder / f".{name}.{os.getpid()}.tmp"
                written[temporary] = folder / name
                _unpack(opened, member, temporary)
        for temporary, path in sorted(written.items(), key=lambda pair: pair[1].suffix == ".inter"):
            with writing(path):
                temporary.replace(path)
                sync_folder(folder)
    finally:
        for temporary in written:
            temporary.unlink(missing_ok=True)


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> None:
    """Its content alone, under a name of ours: a path inside the archive leads nowhere. Reading checks the checksum."""
    with (
        archive.open(member) as packed,
        progress_bar(total=member.file_size, desc=f"unpack {path.name}", unit="B", unit_scale=True) as bar,
        writing(path),
        path.open("wb") as file,
    ):
        while block := packed.read(1 << 20):
            file.write(block)
            bar.update(len(block))
        file.flush()
        os.fsync(file.fileno())


def _atomic_files(archive: zipfile.ZipFile, dataset: str, path: Path) -> dict[str, zipfile.ZipInfo]:
    """{name for the dataset: member}. Archives use a name of their own: Amazon_Beauty.inter for amazon-beauty."""
    members = {}
    for member in archive.infolist():
        name = PurePosixPath(member.filename.replace("\\", "/")).name
        if not member.is_dir() and name.endswith(SUFFIXES) and not name.startswith("."):  # ._x.inter is of macOS
            if name in members:
                raise UserError(_choose_by_hand(path, f"two files {name}"))
            members[name] = member
    stem = _stem([name for name in members if name.endswith(".inter")], path)
    return {
        dataset + name.removeprefix(stem): member for name, member in members.items() if name.startswith(f"{stem}.")
    }


def _stem(names: list[str], path: Path) -> str:
    """What the .inter files are called in the archive: x of x.inter, or of x.train.inter, x.test.inter."""
    if len(names) == 1:
        return names[0].removesuffix(".inter")
    stems = sorted({name.split(".")[0] for name in names})
    if len(stems) == 1:
        return stems[0]
    found = f"several datasets ({', '.join(stems)})" if stems else "no .inter file"
    raise UserError(_choose_by_hand(path, found))


def _choose_by_hand(path: Path, found: str) -> str:
    """What was downloaded is deleted, as after every failure."""
    name = path.name.removesuffix(".part")
    return f"{name} holds {found}: get it by hand and unpack what you want into {path.parent}"
