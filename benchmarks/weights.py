"""Weights of this project's networks under other people's names."""

import torch
import torch.nn.functional as F
from torch import Tensor


def hugging_face_t5(encoder, decoder) -> dict[str, Tensor]:
    """Of nn.t5's stacks, as transformers' T5 has them; without embeddings and head."""
    weights = {}
    for name, stack in (("encoder", encoder), ("decoder", decoder)):
        weights[f"{name}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = stack.position_bias.table
        weights[f"{name}.final_layer_norm.weight"] = stack.norm.weight
        for number, layer in enumerate(stack.layers):
            parts = [("SelfAttention", layer.self_attention, layer.self_attention.query_key_value.weight.chunk(3))]
            if name == "decoder":
                cross = layer.cross_attention
                parts += [("EncDecAttention", cross, (cross.query.weight, *cross.key_value.weight.chunk(2)))]
            for place, (theirs, ours, projections) in enumerate(parts):
                stem = f"{name}.block.{number}.layer.{place}."
                weights[stem + "layer_norm.weight"] = ours.norm.weight
                for letter, projection in zip("qkvo", (*projections, ours.out.weight)):
                    weights[f"{stem}{theirs}.{letter}.weight"] = projection
            stem, ours = f"{name}.block.{number}.layer.{len(parts)}.", layer.feed_forward
            weights[stem + "layer_norm.weight"] = ours.norm.weight
            weights[stem + "DenseReluDense.wi.weight"] = ours.inner.weight
            weights[stem + "DenseReluDense.wo.weight"] = ours.outer.weight
    return {name: weight.detach().clone() for name, weight in weights.items()}


def cornac_tiger(model) -> dict[str, Tensor]:
    """Of TIGER. Cornac's heads are not tied to the embeddings, nor scaled."""
    codes, d = model.code_table.detach(), model.sizes.hidden_size
    weights = hugging_face_t5(model.encoder, model.decoder)
    weights["token_emb.weight"] = F.pad(codes.flatten(0, 1), (0, 0, 1, 0))  # row 0 is padding
    weights["bos"] = model.start_embedding.detach().clone().view(1, 1, d)
    return weights | {f"heads.{digit}.weight": table * d**-0.5 for digit, table in enumerate(codes)}


def cornac_diffgrm(network) -> dict[str, Tensor]:
    """Of DiffGRM's network."""
    names = {"code_embedding": "code_embeddings", "mask_embedding": "mask_embeddings", "norm": "final_norm"}
    names |= {"position_embedding": "history_positions.weight"}
    names |= {"item_embedding.inner": "item_projection.0", "item_embedding.outer": "item_projection.2"}
    parts = {"self_attention.norm": "self_attention_norm", "self_attention.query_key_value": "self_attention.qkv"}
    parts |= {"self_attention.out": "self_attention.projection"}
    parts |= {"cross_attention.norm": "cross_attention_norm", "cross_attention.out": "cross_attention.projection"}
    parts |= {"feed_forward.norm": "feed_forward_norm", "feed_forward.inner": "feed_forward.input"}
    parts |= {"feed_forward.outer": "feed_forward.output"}
    weights, state = {}, network.state_dict()
    for name, value in state.items():
        stem, kind = name.rsplit(".", 1) if name.endswith((".weight", ".bias")) else (name, "")
        if stem.startswith(("encoder", "decoder")):
            side, number, part = stem.split(".", 2)
            if part in ("cross_attention.query", "cross_attention.key_value"):
                continue
            theirs = parts[part].replace("self_", "") if side == "encoder" else parts[part]
            weights[f"{side}_blocks.{number}.{theirs}.{kind}"] = value
        else:
            weights[names[stem] + (f".{kind}" if kind and stem != "position_embedding" else "")] = value
    for number in range(len(network.decoder)):
        both = [state[f"decoder.{number}.cross_attention.{part}.weight"] for part in ("query", "key_value")]
        weights[f"decoder_blocks.{number}.cross_attention.qkv.weight"] = torch.cat(both)
    return weights
