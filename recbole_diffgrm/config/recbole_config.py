"""A checked configuration as RecBole's Config, which its datasets, models and metrics read."""

import copy
import hashlib
import json
from typing import Any

from recbole_diffgrm import recbole_compat  # noqa: F401  before RecBole
from recbole_diffgrm.config import yaml_text
from recbole_diffgrm.config.build import ModelClass, available_metrics, dataset_dir
from recbole_diffgrm.config.recbole_metrics import smaller_metrics
from recbole_diffgrm.config.valid_metric import ValidMetric, parse_valid_metric

from recbole.config import Config as RecBoleConfig  # isort: skip


class Config(RecBoleConfig):
    """RecBole's Config, filled with values that are merged and checked already.

    RecBole would read sys.argv, evaluate strings as Python and let its own files beat the dataset's. Not here.
    """

    def __init__(self, model_class: ModelClass, dataset: str, values: dict[str, Any]):
        self.values = values  # plain data: what the user would have to write to get this run
        super().__init__(model=model_class, dataset=dataset)

    def _build_yaml_loader(self):
        return yaml_text.Loader

    def _load_config_files(self, file_list):
        return {}

    def _load_variable_config_dict(self, config_dict):
        return {}

    def _load_cmd_line(self):
        return {}

    def _load_internal_config_dict(self, model, model_class, dataset):
        self.internal_config_dict = copy.deepcopy(self.values)
        self.internal_config_dict["MODEL_TYPE"] = model_class.type

    def _set_default_parameters(self):
        # RecBole refuses `repeatable: False` for sequential models because it cannot mask histories; this project can.
        repeatable = self.final_config_dict["repeatable"]
        self.final_config_dict["repeatable"] = True
        super()._set_default_parameters()
        self.final_config_dict["repeatable"] = repeatable
        self.final_config_dict["data_path"] = str(dataset_dir(self.values["data_path"], self.dataset))
        self.final_config_dict["metric_decimal_place"] = 20  # RecBole rounds; never before a comparison of scores

    def _init_device(self):
        if not self.final_config_dict["use_gpu"]:  # RecBole looks at gpu_id alone
            self.final_config_dict["gpu_id"] = ""
        super()._init_device()

    @property
    def valid_metric_terms(self) -> ValidMetric:
        available = available_metrics(self.model_class, self.values)
        return parse_valid_metric(self["valid_metric"], available, smaller_metrics())

    def run_hash(self, data_fingerprint: str) -> str:
        """Short hash of everything that decides the outcome of the run."""
        from recbole_diffgrm import __version__

        not_hashed = self.model_class.Options.keys("nothing", "file")
        decisive = {key: value for key, value in self.values.items() if key not in not_hashed}
        content = [self.model, self.dataset, data_fingerprint, __version__, decisive]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:8]
