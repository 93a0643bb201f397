"""A checked configuration as RecBole's Config, which its datasets, models and metrics read."""

import copy
import hashlib
import json
from typing import Any

from recbole_diffgrm import processes, recbole_compat  # noqa: F401  before RecBole
from recbole_diffgrm.config import yaml_text
from recbole_diffgrm.config.build import ModelClass, available_metrics, dataset_dir
from recbole_diffgrm.config.recbole_metrics import smaller_metrics
from recbole_diffgrm.config.valid_metric import ValidMetric, parse_valid_metric
from recbole_diffgrm.errors import UserError

from recbole.config import Config as RecBoleConfig  # isort: skip


def choose_device(use_gpu: bool, gpu_id: int | str, local_rank: int, num_gpus: int) -> str:
    """The GPU `gpu_id` among those that are visible. Several processes have those of a list, or the following ones."""
    try:
        numbers = [int(part) for part in str(gpu_id).split(",") if part.strip()]
    except ValueError:
        raise UserError(f"gpu_id must be the number of a GPU, or several with commas between, not {gpu_id!r}") from None
    if not use_gpu or not num_gpus or not numbers or numbers[0] < 0:
        return "cpu"
    if len(numbers) == 1:
        numbers = list(range(numbers[0], num_gpus))
    if local_rank >= len(numbers) or not 0 <= numbers[local_rank] < num_gpus:
        raise UserError(
            f"gpu_id: {gpu_id} leaves process {local_rank + 1} of this machine without a GPU: {num_gpus} can be seen "
            "(CUDA_VISIBLE_DEVICES); start fewer processes, or choose other GPUs"
        )
    return f"cuda:{numbers[local_rank]}"


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
        """RecBole would overwrite CUDA_VISIBLE_DEVICES: with another's GPU on a shared machine, and with the same one
        for every process."""
        import torch

        values = self.final_config_dict
        device = choose_device(values["use_gpu"], values["gpu_id"], processes.local_rank(), torch.cuda.device_count())
        if device != "cpu":
            torch.cuda.set_device(device)
        values |= {"device": torch.device(device), "single_spec": True, "local_rank": 0}

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
