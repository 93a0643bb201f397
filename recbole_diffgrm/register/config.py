"""RecBole's Config(model, dataset, config_file_list, config_dict) for the project's models."""

import logging
from typing import Any

from recbole_diffgrm.config.build import known_keys
from recbole_diffgrm.config.protocol import is_sampled
from recbole_diffgrm.config.recbole_arguments import read_arguments, read_command_line
from recbole_diffgrm.config.recbole_config import Config, RecBoleConfig
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.models import build_from_layers, get_options, text_keys

logger = logging.getLogger(__name__)

# Without effect in a run directory, but read by RecBole's own trainer and evaluator.
STOCK_KEYS = {"checkpoint_dir", "metric_decimal_place"}

# Without effect in a run directory; here RecBole would read what it saved, made with another tokenizer.
REFUSED_KEYS = ("save_dataset", "dataset_save_path", "save_dataloaders", "dataloaders_save_path")

# Options of RecBole's run_recbole.py that are not settings.
SCRIPT_OPTIONS = {"config_files", "nproc", "ip", "port", "world_size", "group_offset"}


class StockConfig(Config):
    """Our layers and our checks. As everywhere in RecBole, options of the running program count too."""

    def __init__(self, model=None, dataset=None, config_file_list=None, config_dict=None):
        arguments = read_arguments(model, dataset, config_file_list, config_dict, read_command_line(text_keys()))
        name = arguments.model if isinstance(arguments.model, str) else arguments.model.__name__
        stock: dict[str, Any] = {}
        for source, layer in arguments.user_layers:
            for key in REFUSED_KEYS:
                if layer.get(key):
                    raise UserError(f"{source}: {key}: RecBole would use the saved data with another tokenizer")
            stock |= {key: layer.pop(key) for key in STOCK_KEYS & layer.keys()}
        _drop_unknown(arguments.user_layers[-1][1], known_keys(name, get_options(name)))
        built = build_from_layers(name, arguments.dataset, arguments.user_layers, arguments.presets)
        super().__init__(built.model_class, built.dataset, built.values | stock)
        self.final_config_dict |= stock
        if not self["repeatable"]:
            raise UserError("repeatable: RecBole's evaluation cannot filter seen items; recbole_diffgrm.run can")
        if is_sampled(built.values):
            raise UserError("eval_args: here all items are ranked (mode: full); recbole_diffgrm.run can sample them")


def asked_model(model=None, dataset=None, config_file_list=None, config_dict=None) -> Any:
    """The name or class that Config gets, found as RecBole finds it."""
    if model is not None:
        return model
    reader = RecBoleConfig.__new__(RecBoleConfig)
    reader.yaml_loader = reader._build_yaml_loader()
    layers = [reader._load_config_files(config_file_list), config_dict or {}, reader._load_cmd_line()]
    return next((layer["model"] for layer in reversed(layers) if "model" in layer), None)


def _drop_unknown(command_line: dict[str, Any], known: set[str]) -> None:
    """The program is not ours: it may have options of its own."""
    unknown = command_line.keys() - known
    for key in unknown:
        del command_line[key]
    if unknown - SCRIPT_OPTIONS:
        logger.warning(f"options of the command line that are no settings: {', '.join(sorted(unknown))}")
