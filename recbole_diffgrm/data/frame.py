"""A dataset from pandas frames.

The frames are written as atomic files, below a folder that is named by what is in them: from there on they are like any
other dataset. The same frames give the same files, so a finished run is found again, `resume` goes on, and a run
directory can be used when the process that had the frames is gone.
"""

import hashlib
import math
import re
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api import types

from recbole_diffgrm.data.atomic import check_ids, write_atomic_file
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import file_sha256

SEPARATOR = "|"  # of the values of a list
FOLDER = "cache/frames"

_UNUSABLE_IN_IDS = re.compile(r'["\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]')


@dataclass(frozen=True)
class Dataset:
    """Where a dataset is and what it says of itself; `run` and `compare` take it where they take a name.

    >>> run("SASRec", Dataset.from_frame(interactions, items, name="shop"))
    """

    name: str
    data_path: str  # <data_path>/<name>/<name>.inter
    settings: dict[str, Any] = field(default_factory=dict)  # beaten by presets, config files and arguments

    @classmethod
    def from_frame(
        cls,
        interactions: pd.DataFrame,
        items: pd.DataFrame | None = None,
        name: str = "frame",
        *,
        user: str = "user_id",
        item: str = "item_id",
        time: str = "timestamp",
        folder: str | Path = FOLDER,
    ) -> "Dataset":
        """`user`, `item` and `time` are the columns of these, `item` in both frames. Times are numbers or dates, which
        become seconds. The other columns of `items` are features: texts, numbers, lists of them. Files are written
        below `folder`; it may be deleted, and is written again."""
        if not isinstance(name, str) or not re.fullmatch(r"[^./\\][^/\\]*", name) or not name.isprintable():
            raise UserError(f"name must be a name for files, not {name!r}")
        if "\0" in str(folder):
            raise UserError(f"folder must be a folder, not {folder!r}")
        inter = _interaction_columns(interactions, user, item, time)
        files = {"inter": inter}
        settings: dict[str, Any] = {"load_col": {"inter": ["user_id", "item_id", "timestamp"]}}
        if items is not None:
            files["item"] = _item_columns(items, item, inter["item_id"].texts)
            settings |= _feature_settings(files["item"])
        return cls(name, str(_write(files, name, Path(folder))), settings)


class _Column(NamedTuple):
    kind: str  # of atomic files
    texts: list[str]
    is_category: bool = False  # few values, of use as a feature


def _interaction_columns(frame: pd.DataFrame, user: str, item: str, time: str) -> dict[str, _Column]:
    frame = _check_frame(frame, "interactions", {"user": user, "item": item, "time": time})
    columns = {
        "user_id": _Column("token", _ids(frame[user], "interactions", user)),
        "item_id": _Column("token", _ids(frame[item], "interactions", item)),
        "timestamp": _Column("float", _numbers(_seconds(frame[time], time))),
    }
    return columns | _other_columns(frame, "interactions", {user, item, time}, set(columns))


def _item_columns(frame: pd.DataFrame, item: str, interacted: list[str]) -> dict[str, _Column]:
    """A line for every item of either frame."""
    frame = _check_frame(frame, "items", {"item": item})
    ids = _ids(frame[item], "items", item)
    known: set[str] = set()
    repeated = next((one for one in ids if one in known or known.add(one)), None)  # type: ignore[func-returns-value]
    if repeated is not None:
        raise UserError(f"items: {item} {repeated!r} has several rows; keep one, as with drop_duplicates({item!r})")
    missing = [one for one in dict.fromkeys(interacted) if one not in known]
    if len(missing) == len(set(interacted)):
        raise UserError(f"items: no {item} of interactions is in it ({interacted[0]!r} is not, {ids[0]!r} is)")
    columns = _other_columns(frame, "items", {item}, {"item_id"})
    filled = {name: column._replace(texts=column.texts + [""] * len(missing)) for name, column in columns.items()}
    return {"item_id": _Column("token", ids + missing)} | filled


def _feature_settings(columns: dict[str, _Column]) -> dict[str, Any]:
    """What a dataset's YAML would say: lists and categories are features, texts and lists make semantic IDs."""
    features = [name for name, column in columns.items() if column.kind == "token_seq" or column.is_category]
    text = [name for name, column in columns.items() if column.kind.startswith("token") and name != "item_id"]
    load_col = {"inter": ["user_id", "item_id", "timestamp"], "item": ["item_id", *features]}
    return {"load_col": load_col, "seq_separator": SEPARATOR} | ({"sid_text_fields": text} if text else {})


def _check_frame(frame: Any, what: str, named: dict[str, str]) -> pd.DataFrame:
    if not isinstance(frame, pd.DataFrame):
        raise UserError(f"{what} must be a pandas DataFrame, not a {type(frame).__name__}")
    for argument, column in named.items():
        if not isinstance(column, Hashable):
            raise UserError(f"{argument} must be the name of one column, not {column!r}")
    in_index = (set(named.values()) - set(frame.columns)) & set(frame.index.names)
    if in_index:
        frame = frame.reset_index(sorted(in_index))
    for argument, column in named.items():
        if column not in frame.columns:
            present = ", ".join(map(str, frame.columns))
            more = ""
            if argument == "time":  # never assumed: another order is another result
                more = "; assign(timestamp=range(len(frame))) takes the order of the rows as time"
            raise UserError(f"{what} has no column {column!r}: name it, {argument}=...{more} (it has {present})")
    if frame.columns.has_duplicates:
        raise UserError(f"{what} has two columns {frame.columns[frame.columns.duplicated()][0]!r}")
    if frame.empty:
        raise UserError(f"{what} is empty")
    return frame


def _other_columns(frame: pd.DataFrame, what: str, used: set[str], taken: set[str]) -> dict[str, _Column]:
    columns = {}
    for name in frame.columns:
        if name in used:
            continue
        if not isinstance(name, str) or not re.fullmatch(r"[^:\t\r\n\0]+", name):
            raise UserError(f"{what}: column {name!r} cannot be written: names are texts without colons and tabs")
        if name in taken:
            raise UserError(f"{what}: column {name!r} is in the way of the one that gets its name: drop or rename it")
        if types.is_complex_dtype(frame[name]):
            raise UserError(f"{what}: column {name!r} holds complex numbers: drop or convert it")
        columns[name] = _convert(frame[name])
    return columns


def _ids(values: pd.Series, what: str, name: str) -> list[str]:
    try:
        codes, distinct = pd.factorize(values)
    except TypeError:  # lists, sets, dictionaries
        raise UserError(f"{what}: {name} must hold one id a row, a text or a number") from None
    if (codes < 0).any():
        row = values.index[codes < 0][0]
        raise UserError(f"{what}: {name} is missing in {(codes < 0).sum():,} rows, first in row {row}: drop them")
    strange = next(
        (value for value in distinct if isinstance(value, bytes | bytearray | complex | np.complexfloating)), None
    )
    if strange is not None:
        raise UserError(f"{what}: {name} {strange!r} cannot be an id: ids are texts or numbers, so convert it")
    texts = [_number(value) if types.is_number(value) else str(value) for value in distinct]
    for text in texts:
        if not text or _UNUSABLE_IN_IDS.search(text):
            raise UserError(
                f"{what}: {name} {text[:40]!r} cannot be an id: it is empty, or has a quote, tab or line break"
            )
    check_ids(texts, f"{what}: {name}")
    return [texts[code] for code in codes]


def _seconds(values: pd.Series, name: str) -> pd.Series:
    if any(kind(values) for kind in (types.is_bool_dtype, types.is_timedelta64_dtype, types.is_complex_dtype)):
        raise UserError(f"interactions: {name} is neither numbers nor dates ({values.dtype})")
    try:
        numbers = values if _are_dates(values) else pd.to_numeric(values)
    except (ValueError, TypeError, OverflowError):
        try:
            numbers = pd.to_datetime(values, utc=True, format="ISO8601")  # 01/02/2024 would be a guess
        except (ValueError, TypeError, OverflowError) as error:
            reason = str(error).split("\n")[0].split(". ")[0]
            raise UserError(
                f"interactions: {name} is neither numbers nor dates such as 2024-02-01 ({reason}): convert it, as with "
                "pd.to_datetime"
            ) from None
    seconds = _since_1970(numbers) if _are_dates(numbers) else numbers
    missing = seconds.isna() | seconds.isin([float("inf"), float("-inf")])
    if missing.any():
        row = values.index[missing][0]
        raise UserError(
            f"interactions: {name} is missing or infinite in {missing.sum():,} rows, first in row {row} "
            f"({str(values[missing].iloc[0])!r}): drop them"
        )
    return seconds


def _are_dates(values: pd.Series) -> bool:
    """With or without a time zone, of numpy or Arrow."""
    return values.dtype.kind == "M"


def _since_1970(dates: pd.Series) -> pd.Series:
    """Seconds in UTC, which dates without a time zone are taken for. NaN where there is no date."""
    utc = pd.to_datetime(dates, utc=True).astype("datetime64[us, UTC]")
    return (utc.astype("int64") / 1e6).where(dates.notna())


def _convert(values: pd.Series) -> _Column:
    """A column of texts, numbers, dates or lists."""
    if _are_dates(values):
        return _Column("float", _numbers(_since_1970(values)))
    if types.is_numeric_dtype(values):
        return _Column("float", _numbers(values))
    is_category = isinstance(values.dtype, types.CategoricalDtype)
    present = [value for value in values if not _is_missing(value)]
    if any(_is_list(value) for value in present):
        parts = [part for value in present if _is_list(value) for part in value]
        kind = "float_seq" if parts and all(types.is_float(part) for part in parts) else "token_seq"
        return _Column(kind, [_list_text(value) for value in values])
    return _Column("token", ["" if _is_missing(value) else _clean(str(value)) for value in values], is_category)


def _numbers(values: pd.Series) -> list[str]:
    return ["" if missing else _number(value) for value, missing in zip(values.tolist(), values.isna())]


def _number(value: Any) -> str:
    """1 for 1.0, which pandas makes of whole numbers where a value is missing, and for True."""
    return str(int(value)) if math.isfinite(value) and value == value // 1 else str(value)


def _list_text(value: Any) -> str:
    parts = value if _is_list(value) else [] if _is_missing(value) else [value]
    parts = sorted(parts, key=str) if isinstance(parts, set | frozenset) else parts
    texts = (_clean(str(part)).replace(SEPARATOR, "/") for part in parts if not _is_missing(part))
    return SEPARATOR.join(text for text in texts if text)


def _clean(text: str) -> str:
    """On one line, without tabs."""
    return " ".join(text.split())


def _is_list(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | dict)


def _is_missing(value: Any) -> bool:
    return not _is_list(value) and bool(pd.isna(value))


def _write(files: dict[str, dict[str, _Column]], name: str, folder: Path) -> Path:
    """Returns data_path. Processes that write the same frames at once replace a file by one with the same content."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=".") as temporary:
            digest = hashlib.sha256()
            for suffix, columns in files.items():
                path = Path(temporary) / f"{name}.{suffix}"
                header = {column: of.kind for column, of in columns.items()}
                write_atomic_file(path, header, _rows(columns))
                digest.update(suffix.encode() + bytes.fromhex(file_sha256(path)))
            data_path = folder.resolve() / digest.hexdigest()[:12]
            (data_path / name).mkdir(parents=True, exist_ok=True)
            for suffix in reversed(files):  # the .inter comes last: where it is, all is there
                (Path(temporary) / f"{name}.{suffix}").replace(data_path / name / f"{name}.{suffix}")
    except OSError as error:
        raise UserError(f"folder: {folder} cannot be written ({error.strerror})") from None
    return data_path


def _rows(columns: dict[str, _Column]) -> Iterator[tuple[str, ...]]:
    return zip(*(column.texts for column in columns.values()))
