"""RecBole's SequentialDataset on flat arrays: lean loading, exact time order, no padded copies."""

import logging
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from pandas.api.types import union_categoricals
from recbole.data.dataset import SequentialDataset
from recbole.utils import FeatureSource, FeatureType

from recbole_diffgrm.data.atomic import PADDING, read_header
from recbole_diffgrm.data.sequences import Fields, FlatSequences, PrefixSamples, stable_order
from recbole_diffgrm.data.source import interaction_files
from recbole_diffgrm.data.tables import Columns, read_features, read_interactions, split_lists
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import reading

logger = logging.getLogger(__name__)


def load_dataset(config) -> "FlatSequentialDataset":
    """Load, filter and number a dataset; settings that RecBole cannot carry out on it are one line."""
    logger.info(f"reading {config.dataset} from {config['data_path']}")
    try:
        return FlatSequentialDataset(config)
    except UserError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise UserError(
            f"{config.dataset} cannot be loaded with these settings: {type(error).__name__}: {error} (check load_col, "
            "filters and the like)"
        ) from error


class FlatSequentialDataset(SequentialDataset):
    """Loads, filters and numbers like RecBole (the same ids in the same order); differs in what it keeps in memory."""

    inter_feat: Any  # a table while it is loaded, then PrefixSamples

    def _load_data(self, token, dataset_path):
        columns = ((self.uid_field, "token"), (self.iid_field, "token"), (self.time_field, "float"))
        for path in interaction_files(self.config):
            header = read_header(path)
            if self.iid_field + self.config["LIST_SUFFIX"] in header:
                raise UserError(
                    f"{path} holds ready-made histories ({self.iid_field}{self.config['LIST_SUFFIX']}), which are not "
                    "read: give files of single interactions; histories are made of those of earlier files"
                )
            for field, kind in columns:
                if header.get(field) != kind:
                    present = ", ".join(f"{name}:{kind}" for name, kind in header.items())
                    raise UserError(f"{path} must have a column {field}:{kind}; it has {present}")
                if field not in self.config["load_col"]["inter"]:
                    raise UserError(f"load_col: inter must name {field}")
        for suffix in ("user", "item"):
            if suffix in self.config["load_col"]:
                path = Path(dataset_path) / f"{token}.{suffix}"
                with reading(path, if_missing=f"put it there, or leave {suffix} out of load_col"):
                    path.stat()
        super()._load_data(token, dataset_path)

    def _load_inter_feat(self, token, dataset_path):
        """RecBole drops interactions without user or item, but not those of ready-made splits."""
        super()._load_inter_feat(token, dataset_path)
        if self.benchmark_filename_list is None:
            return
        if self.inter_feat[[self.uid_field, self.iid_field]].isna().any(axis=None):
            raise UserError(
                f"benchmark_filename: {token} has interactions without {self.uid_field} or {self.iid_field}"
            )

    def _benchmark_presets(self):
        """RecBole's columns of ready-made histories: there are none."""

    def _load_feat(self, filepath, source):
        """RecBole's reader stops at a lone quote and keeps every token of every line as an object of its own."""
        load_col, unload_col = self._get_load_and_unload_col(source)
        if load_col == set():
            return None
        path = Path(filepath)
        columns = {
            name: FeatureType(kind)
            for name, kind in read_header(path).items()
            if (load_col is None or name in load_col) and (unload_col is None or name not in unload_col)
        }
        missing = (load_col or set()) - set(columns)
        if missing:
            raise UserError(f"load_col: {path} has no column {', '.join(sorted(missing))}")
        if not columns:
            return None
        ids = self.uid_field, self.iid_field
        self._check_types(path, columns, ids)
        if source == FeatureSource.INTERACTION:
            table = read_interactions(path, columns, ids, self.time_field)
        else:
            table = read_features(path, columns, ids)
        for name, kind in columns.items():
            self.field2source[name] = source
            self.field2type[name] = kind
            self.field2seqlen[name] = 1
            if kind in (FeatureType.FLOAT, FeatureType.FLOAT_SEQ):
                self.field2bucketnum[name] = 2
            if kind in (FeatureType.TOKEN_SEQ, FeatureType.FLOAT_SEQ):
                most = (self.config["seq_len"] or {}).get(name)
                table[name] = split_lists(table[name], kind, self.config["seq_separator"], most, f"{path}: {name}")
                self.field2seqlen[name] = max(map(len, table[name]), default=0)
        return table

    def _check_types(self, path: Path, columns: Columns, ids: tuple[str, str]) -> None:
        """A column has one type in all files, and an id is a token: else its values would be other ones."""
        for name, kind in columns.items():
            expected = FeatureType.TOKEN if name in ids else self.field2type.get(name, kind)
            if kind != expected:
                raise UserError(f"{path}: {name}:{kind.value} must be {name}:{expected.value}, as in other files")

    def _filter_by_field_value(self):
        """RecBole reads whatever it is given for an interval, and text for a list of letters."""
        for name, wanted in (self.config["val_interval"] or {}).items():
            kind = self.field2type.get(name)
            if kind is None:
                raise UserError(f"val_interval: there is no column {name}, or load_col does not load it")
            if kind not in (FeatureType.FLOAT, FeatureType.TOKEN):
                raise UserError(f"val_interval: {name} holds lists ({kind.value}), which cannot be filtered")
            if isinstance(wanted, str) != (kind == FeatureType.FLOAT):
                form = "an interval such as '[3,inf)'" if kind == FeatureType.FLOAT else "a list of the values to keep"
                raise UserError(f"val_interval: {name} is a {kind.value}: give {form}, not {wanted!r}")
        super()._filter_by_field_value()

    def _remove_duplication(self):
        """RecBole sorts by time with an unstable sort; ties are to keep the order of the file."""
        keep = self.config["rm_dup_inter"]
        if keep is not None:
            ordered = self.inter_feat.sort_values(self.time_field, kind="stable")
            self.inter_feat = ordered.drop_duplicates([self.uid_field, self.iid_field], keep=keep)

    def _reset_index(self):
        if self.inter_feat.empty:
            raise UserError(
                f"{self.dataset_name} is too small: no interaction is there, or none is left by the filters"
            )
        super()._reset_index()

    def _remap(self, remap_list):
        """Number tokens in order of first appearance, like RecBole, but on category codes where it can be done."""
        if not remap_list or any(kind != FeatureType.TOKEN for _, _, kind in remap_list):
            return super()._remap(remap_list)
        columns = [pd.Categorical(feat[field]) for feat, field, _ in remap_list]
        codes, tokens = pd.factorize(union_categoricals(columns) if len(columns) > 1 else columns[0])
        codes = codes.astype(np.int32)
        codes += 1  # a missing token has code -1 and becomes padding
        id_token = np.array([PADDING, *tokens], dtype=object)  # of fixed width, one long id would make all as wide
        token_id = _TokenNumbers(id_token)
        start = 0
        for (feat, field, _), column in zip(remap_list, columns):
            feat[field] = codes[start : start + len(column)]
            start += len(column)
            self.field2id_token.setdefault(field, id_token)
            self.field2token_id.setdefault(field, token_id)
        return None

    def _change_feat_format(self):
        """Item and user features become tensors as in RecBole; interactions become flat sequences."""
        table, self.inter_feat = self.inter_feat, self.inter_feat.iloc[:0]
        super(SequentialDataset, self)._change_feat_format()
        names = [name for name in table if name not in (self.uid_field, self.iid_field, self.time_field)]
        features = {name: self._dataframe_to_interaction(table[[name]])[name] for name in names}
        # By user, then time, in float64: as float32 (RecBole) seconds of one minute become equal. Ties keep file order.
        # Columns are let go one by one, which lowers the peak of loading.
        times = table.pop(self.time_field).to_numpy()
        features[self.time_field] = _exact_times(times)
        order = stable_order(times)
        del times
        part = None  # of a ready-made split; it comes before time
        if self.benchmark_filename_list is not None:
            part = np.repeat(np.arange(len(self.file_size_list), dtype=np.int8), self.file_size_list)
            order = order[stable_order(part[order])]
        user = table.pop(self.uid_field).to_numpy()
        order = order[stable_order(user[order])]
        user, item = user[order], table.pop(self.iid_field).to_numpy()[order]
        for name in features:
            features[name] = features[name][torch.from_numpy(order)]
        self.ready_made_parts = None if part is None else torch.from_numpy(part[order])  # [N] 0, 1, 2
        flat = FlatSequences.build(user, item, features, None if part is None else part[order])
        fields = Fields(self.uid_field, self.iid_field, self.item_list_length_field, self.config["LIST_SUFFIX"])
        rows = torch.arange(len(flat.user), dtype=torch.int32)
        self.inter_feat = PrefixSamples(flat, rows, self.max_item_list_len, fields)
        self.field2seqlen[self.iid_field + self.config["LIST_SUFFIX"]] = self.max_item_list_len

    def build(self) -> list["FlatSequentialDataset"]:
        """RecBole's way to ask for training, validation and test data."""
        from recbole_diffgrm.data.splits import make_split

        split = make_split(self.config, self)
        return [split.train, split.valid, split.test]

    def __getitem__(self, index, join=True):
        """Features of users and items are not joined into batches: the models that use them look them up."""
        return self.inter_feat[index]

    def join(self, df):
        return df

    def statistics(self) -> dict[str, float]:
        users, items, interactions = self.user_num - 1, self.item_num - 1, len(self.inter_feat)
        return {
            "users": users,
            "items": items,
            "interactions": interactions,
            "interactions_per_user": interactions / users,
            "interactions_per_item": interactions / items,
            "sparsity": 1 - interactions / (users * items),
        }


def _exact_times(times: np.ndarray) -> torch.Tensor:
    """Whole numbers, such as seconds, take the 4 bytes that float32 would; others take 8."""
    limits = np.iinfo(np.int32)
    if limits.min <= times.min() and times.max() <= limits.max:
        whole = times.astype(np.int32)
        if (whole == times).all():
            return torch.from_numpy(whole)
    return torch.from_numpy(times)


class _TokenNumbers(Mapping):
    """token -> number, made when someone asks: for a million users a dict takes 100 MB."""

    def __init__(self, tokens: np.ndarray):
        self.tokens = tokens

    @cached_property
    def numbers(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens.tolist())}

    def __getitem__(self, token: str) -> int:
        return self.numbers[token]

    def __iter__(self):
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.tokens)
