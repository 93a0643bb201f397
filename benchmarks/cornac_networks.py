"""Cornac 3.0.1's networks with this project's weights and semantic IDs, in an environment of its own.

`save` runs here, all else there, without this project. Cornac numbers items from 0 and appends the padding row.
"""

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor


class Histories(NamedTuple):
    items: Tensor  # [B, L] padded on the right
    length: Tensor  # [B]
    target: Tensor  # [B]


def save(path, name: str, model, batches: list, **more) -> None:
    """Padded batches of the model's own, in Cornac's numbers."""
    from weights import cornac_diffgrm, cornac_tiger

    padding = model.n_items - 1
    histories = [
        Histories(torch.where(batch["item_id_list"] > 0, batch["item_id_list"] - 1, padding), batch["item_length"],
                  batch["item_id"] - 1)
        for batch in batches
    ]  # fmt: skip
    content = {
        "name": name,
        "weights": cornac_diffgrm(model.network) if name == "DiffGRM" else cornac_tiger(model),
        "sids": model.semantic_ids.lookup(torch.arange(1, model.n_items)),
        "codebook_size": model.semantic_ids.codebook_size,
        "sizes": sizes_of(name, model),
        "batches": [tuple(part) for part in histories],
    }
    torch.save(content | more, path)


def sizes_of(name: str, model) -> dict:
    if name == "DiffGRM":
        config = model.network.config
        sizes = {"d_model": config.hidden_size, "n_inner": config.inner_size, "n_head": config.num_heads}
        sizes |= {"encoder_n_layer": config.encoder_layers, "decoder_n_layer": config.decoder_layers}
        return sizes | {"dropout": config.dropout, "max_length": config.max_length}
    sizes, layers = model.sizes, (len(model.encoder.layers), len(model.decoder.layers))
    heads = {"num_heads": sizes.num_heads, "d_kv": sizes.attention_size // sizes.num_heads}
    heads |= {"num_enc_layers": layers[0], "num_dec_layers": layers[1], "dropout": model.encoder.dropout}
    return {"d_model": sizes.hidden_size, "d_ff": sizes.inner_size} | heads


def load(path):
    """(the network, what was saved)"""
    saved = torch.load(path)
    saved["batches"] = [Histories(*batch) for batch in saved["batches"]]
    sids, sizes = saved["sids"], dict(saved["sizes"])
    torch.manual_seed(0)
    if saved["name"] == "DiffGRM":
        from cornac.models.diffgrm.diffgrm import DiffGRMBackbone

        network = DiffGRMBackbone(sids.shape[1], saved["codebook_size"], sizes.pop("max_length"), **sizes)
        network.set_item_codes(sids.numpy())
        network.load_state_dict({**saved["weights"], "item_codes": network.item_codes})
        return network, saved
    from cornac.models.tiger.tiger import TIGERSeq2Seq

    network = TIGERSeq2Seq([saved["codebook_size"]] * sids.shape[1], **sizes)
    missing = network.load_state_dict(saved["weights"], strict=False)
    left = [name for name in missing.missing_keys if not name.endswith(("embed_tokens.weight", "offsets"))]
    if left or missing.unexpected_keys:
        raise SystemExit(f"Cornac's TIGER has other weights: {left}, {missing.unexpected_keys}")
    return network, saved


def make_loss(network, saved):
    """A function of a batch: the mean over the digits."""
    sids = saved["sids"]
    if saved["name"] == "DiffGRM":
        return lambda batch: network(batch.items, mask_of(batch), sids[batch.target])
    tokens = tiger_tokens(network, sids)

    def loss(batch: Histories) -> Tensor:
        words = tokens[batch.items].flatten(1)
        return network(words, (words != 0).float(), sids[batch.target]) / sids.shape[1]

    return loss


def make_search(network, saved):
    """A function of a batch and a beam: the best 10 SIDs of each user."""
    sids = saved["sids"]
    if saved["name"] == "DiffGRM":
        from cornac.models.diffgrm.diffgrm import cpd_decode_batch

        existing = set(map(tuple, sids.tolist()))

        def search(batch: Histories, beam: int) -> list:
            memory, padding = network.encode_history(batch.items, mask_of(batch))
            found, _ = cpd_decode_batch(network, memory, padding, beam, valid_code_set=existing)
            return [list(map(tuple, mine[:10])) for mine in found]

        return search
    tokens, children = tiger_tokens(network, sids), prefix_children(sids.tolist())

    def search_tiger(batch: Histories, beam: int) -> list:
        words = tokens[batch.items].flatten(1)
        rows = [words[[user]] for user in range(len(words))]  # it searches for one user at a time
        return [network.generate_beam(row, (row != 0).float(), beam, children)[0][:10] for row in rows]

    return search_tiger


def mask_of(batch: Histories) -> Tensor:
    return (torch.arange(batch.items.shape[1]) < batch.length[:, None]).float()


def tiger_tokens(network, sids: Tensor) -> Tensor:
    """[N + 1, n] token of each digit of each item; 0 for padding"""
    return torch.cat([sids + network.offsets, torch.zeros(1, sids.shape[1], dtype=torch.long)])


def prefix_children(sids: list[list[int]]) -> list[dict]:
    """For each digit: {the codes before it: the codes it can have}"""
    children = [defaultdict(set) for _ in sids[0]]
    for sid in sids:
        for digit, code in enumerate(sid):
            children[digit][tuple(sid[:digit])].add(code)
    return [{prefix: torch.tensor(sorted(codes)) for prefix, codes in of.items()} for of in children]
