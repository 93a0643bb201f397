"""Keys of RecBole without effect here, of older RecBoles and of other libraries: what becomes of each.

So RecBole's own YAML files and those that its sister projects publish can be used as they are, while nobody is promised
something that does not happen.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

from recbole_diffgrm.errors import UserError, suggest

logger = logging.getLogger(__name__)


class WithoutEffect(NamedTuple):
    """RecBole's default and ~ are accepted silently; any other value with a warning or, where it would have changed the
    result, not at all."""

    reason: str
    refused: bool = False
    same_as_default: tuple[Any, ...] = ()


_READ_AGAIN = WithoutEffect("the atomic files are read at every run")
_STAGES = WithoutEffect(
    "pre-training and fine-tuning run one after the other", refused=True, same_as_default=("pretrain", "")
)
_NO_GRAPH = WithoutEffect("no knowledge graph is loaded", refused=True)
_NO_GRAPH_FIELD = WithoutEffect("no knowledge graph is loaded")
_NO_NETWORK = WithoutEffect("no social network is loaded")
_NO_LABELS = WithoutEffect("sequential models do not read labels")
_NO_DOMAINS = WithoutEffect("one dataset is loaded; set its keys at the top of the file", refused=True)

WITHOUT_EFFECT = {
    # Where and how RecBole saves, logs and loads
    "worker": WithoutEffect("batches are cut in the training process"),
    "checkpoint_dir": WithoutEffect("checkpoints are in the run directory; set output_dir"),
    "save_step": WithoutEffect("a checkpoint is written every epoch", same_as_default=(50,)),
    "save_dataset": _READ_AGAIN,
    "dataset_save_path": _READ_AGAIN,
    "save_dataloaders": _READ_AGAIN,
    "dataloaders_save_path": _READ_AGAIN,
    "metric_decimal_place": WithoutEffect("metrics are kept at full precision"),
    "loss_decimal_place": WithoutEffect("losses are kept at full precision"),
    "valid_metric_bigger": WithoutEffect("it follows from valid_metric"),
    "enable_scaler": WithoutEffect("it follows from enable_amp"),
    # What would change the result
    "field_separator": WithoutEffect(
        "columns of atomic files are separated by tabs", refused=True, same_as_default=("\\t",)
    ),
    "additional_feat_suffix": WithoutEffect("only .inter, .user and .item are loaded", refused=True),
    "eval_type": WithoutEffect("items are ranked", refused=True, same_as_default=("ranking", "RANKING")),
    "config_file": WithoutEffect("use config_files", refused=True),
    "transform": WithoutEffect(
        "a model that needs one has it (BERT4Rec mask_itemseq, SHAN inverse_itemseq), and no model reads another",
        refused=True,
        same_as_default=("mask_itemseq", "inverse_itemseq"),
    ),
    "train_stage": _STAGES,
    "pre_model_path": _STAGES,
    # Other kinds of models
    "kg_reverse_r": _NO_GRAPH,
    "entity_kg_num_interval": _NO_GRAPH,
    "relation_kg_num_interval": _NO_GRAPH,
    "alias_of_entity_id": _NO_GRAPH,
    "alias_of_relation_id": _NO_GRAPH,
    "HEAD_ENTITY_ID_FIELD": _NO_GRAPH_FIELD,
    "TAIL_ENTITY_ID_FIELD": _NO_GRAPH_FIELD,
    "RELATION_ID_FIELD": _NO_GRAPH_FIELD,
    "ENTITY_ID_FIELD": _NO_GRAPH_FIELD,
    "NET_SOURCE_ID_FIELD": _NO_NETWORK,
    "NET_TARGET_ID_FIELD": _NO_NETWORK,
    "filter_net_by_inter": _NO_NETWORK,
    "undirected_net": _NO_NETWORK,
    "source_domain": _NO_DOMAINS,
    "target_domain": _NO_DOMAINS,
    "LABEL_FIELD": _NO_LABELS,
    "threshold": _NO_LABELS,
}

# Names of earlier versions of RecBole, and what they are today. At ~ they asked for nothing, and are accepted.
RENAMED = {
    "neg_sampling": "train_neg_sample_args: {distribution: uniform, sample_num: 1}",
    "training_neg_sample_num": "train_neg_sample_args: {distribution: uniform, sample_num: 1}",
    "training_neg_sample_distribution": "train_neg_sample_args: {distribution: uniform, sample_num: 1}",
    "training_neg_sample_args": "train_neg_sample_args",
    "eval_neg_sample_args": "eval_args: {mode: full}",
    "eval_setting": "eval_args: {split: {LS: valid_and_test}, order: TO, mode: full}",
    "split_ratio": "eval_args: {split: ...}",
    "leave_one_out_num": "eval_args: {split: {LS: valid_and_test}}",
    "group_by_user": "eval_args: {group_by: user}",
    "min_user_inter_num": "user_inter_num_interval: '[5,inf)'",
    "max_user_inter_num": "user_inter_num_interval: '[0,100]'",
    "min_item_inter_num": "item_inter_num_interval: '[5,inf)'",
    "max_item_inter_num": "item_inter_num_interval: '[0,100]'",
    "lowest_val": "val_interval: {rating: '[3,inf)'}",
    "highest_val": "val_interval: {rating: '[0,3]'}",
    "equal_val": "val_interval: {rating: '[3,3]'}",
    "not_equal_val": "val_interval",
    "fields_in_same_space": "alias_of_user_id, alias_of_item_id",
}

# What people call it elsewhere: the first one that a model reads is suggested.
SYNONYMS = {
    ("lr", "rate", "step_size"): ("learning_rate",),
    ("batch_size", "batch", "bs"): ("train_batch_size",),
    ("test_batch_size", "valid_batch_size", "val_batch_size"): ("eval_batch_size",),
    ("max_len", "maxlen", "max_length", "max_seq_len", "max_seq_length", "seq_length", "max_sequence_length"): (
        "MAX_ITEM_LIST_LENGTH",
    ),
    ("n_epochs", "num_epochs", "max_epochs", "num_train_epochs", "epoch"): ("epochs",),
    ("patience", "early_stop", "early_stopping", "early_stopping_patience"): ("stopping_step",),
    ("gpu", "gpus", "cuda", "device", "cuda_device"): ("gpu_id",),
    ("cpu", "no_cuda", "use_cuda"): ("use_gpu",),
    ("dropout", "dropout_rate", "drop_rate", "dropout_prob"): ("dropout_prob", "hidden_dropout_prob"),
    ("attn_dropout", "attention_dropout"): ("attn_dropout_prob",),
    (
        "dim",
        "d_model",
        "hidden_dim",
        "hidden_units",
        "emb_size",
        "emb_dim",
        "embedding_dim",
        "embed_dim",
        "embedding_size",
    ): (
        "embedding_size",
        "hidden_size",
    ),
    ("d_ff", "dim_feedforward", "ffn_dim"): ("inner_size",),
    ("d_kv",): ("head_size",),
    ("num_heads", "nhead", "heads"): ("n_heads",),
    ("num_layers", "n_layers", "layers", "num_blocks", "n_blocks", "depth"): (
        "n_layers",
        "num_layers",
        "encoder_layers",
    ),
    ("optimizer", "optim"): ("learner",),
    ("wd", "l2", "l2_reg", "l2_emb"): ("weight_decay",),
    ("grad_clip", "clip", "clip_grad", "max_grad_norm"): ("clip_grad_norm",),
    ("warmup", "num_warmup_steps"): ("warmup_steps",),
    ("lr_scheduler", "schedule", "lr_schedule"): ("scheduler",),
    ("amp", "fp16", "bf16", "mixed_precision"): ("enable_amp",),
    ("ema",): ("ema_decay",),
    ("loss",): ("loss_type",),
    ("k", "top_k", "ks"): ("topk",),
    ("metric", "eval_metric", "eval_metrics"): ("metrics",),
    ("random_seed", "random_state"): ("seed",),
    ("data", "data_dir", "data_root", "root", "dataset_path"): ("data_path",),
    ("out", "output", "out_dir", "save_dir", "log_dir", "checkpoint"): ("output_dir",),
    ("num_beams", "beam", "beams", "n_beam", "beam_width"): ("beam_size",),
    ("codebook_size", "num_codes", "n_codes", "num_clusters"): ("sid_codebook_size",),
    ("num_digits", "n_digit", "n_digits", "num_codebooks", "n_codebook", "num_levels"): ("sid_num_digits",),
    ("quantizer",): ("sid_quantizer",),
    ("text_encoder", "encoder", "sent_emb_model"): ("sid_text_encoder",),
    ("config", "conf", "config_path", "config_file_list"): ("config_files",),
    ("continue", "load", "restore"): ("resume",),
}


def settle(key: str, value: Any, source: str, defaults: Mapping[str, Any]) -> bool:
    """Is the key one of these, and thereby dealt with? `defaults` are RecBole's."""
    if key in WITHOUT_EFFECT:
        entry = WITHOUT_EFFECT[key]
        if value is not None and value != defaults.get(key) and value not in entry.same_as_default:
            if entry.refused:
                raise UserError(f"{source}: {key} has no effect here: {entry.reason}")
            warn_once(f"{source}: {key} has no effect here: {entry.reason}")
        return True
    if key in RENAMED:
        if value is not None:
            raise UserError(f"{source}: {key} is a name of earlier versions of RecBole; write {RENAMED[key]}")
        return True
    return False


@cache  # a comparison builds many configurations from the same files
def warn_once(message: str) -> None:
    logger.warning(f"warning: {message}")


def suggest_key(key: str, known: Iterable[str]) -> str:
    """` Did you mean X?`, by what other libraries call it or by spelling, or nothing."""
    known = set(known) - set(WITHOUT_EFFECT)
    return suggest_synonym(key, known) or suggest(key.replace("-", "_"), known)


def suggest_synonym(key: str, known: Iterable[str]) -> str:
    name = key.lower().replace("-", "_")
    meant = next((names for synonyms, names in SYNONYMS.items() if name in synonyms), ())
    found = next((candidate for candidate in meant if candidate in known and candidate != key), None)
    return f" Did you mean {found}?" if found else ""
