"""SASRec's layer as its authors wrote it, against plain loops."""

import math

import torch
import torch.nn.functional as F

from recbole_diffgrm.nn.gpt2 import causal_bias
from recbole_diffgrm.nn.sasrec import SASRecLayer


def test_layer():
    torch.manual_seed(0)
    layer = SASRecLayer(6, num_heads=2, dropout=0.5).double().eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(1, 4, 6).double()
    expected = []
    for i in range(4):
        normalized = layer.query_norm(x[0, i])
        mixed = []
        for head in (slice(0, 3), slice(3, 6)):
            query = layer.query(normalized)[head]
            logits = [(query @ layer.key(x[0, j])[head]).item() / math.sqrt(3) for j in range(i + 1)]
            total = sum(map(math.exp, logits))
            values = [layer.value(x[0, j])[head] for j in range(i + 1)]  # neither keys nor values are normalized
            mixed.append(sum(math.exp(logit) / total * value for logit, value in zip(logits, values)))
        middle = layer.norm(normalized + torch.cat(mixed))
        expected.append(middle + layer.outer(F.relu(layer.inner(middle))))
    torch.testing.assert_close(layer(x, causal_bias(4, x.device))[0], torch.stack(expected))
