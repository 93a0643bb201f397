"""HSTU's layer against plain loops."""

import math

import torch

from recbole_diffgrm.nn.hstu import HSTULayer, bucket_differences, relative_index


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def normalized(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    variance = sum((value - mean) ** 2 for value in values) / len(values)
    return [(value - mean) / math.sqrt(variance + 1e-6) for value in values]


def product(weight: list[list[float]], vector: list[float]) -> list[float]:
    return [sum(w * v for w, v in zip(row, vector)) for row in weight]


def test_layer_is_silu_attention():
    torch.manual_seed(0)
    size, heads, d, normalizer = 5, 2, 6, 21
    layer = HSTULayer(d, heads, dropout=0.5, normalizer=normalizer).double().eval()
    torch.nn.init.normal_(layer.gate_value_query_key.weight)
    x, bias = torch.randn(1, size, d).double(), torch.randn(1, size, size).double()
    rows = [
        [silu(value) for value in product(layer.gate_value_query_key.weight.tolist(), normalized(row))]
        for row in x[0].tolist()
    ]
    expected = []
    for i in range(size):
        mixed = []
        for head in range(heads):
            slots = range(head * d // heads, (head + 1) * d // heads)
            total = dict.fromkeys(slots, 0.0)
            for j in range(i + 1):
                logit = sum(rows[i][2 * d + slot] * rows[j][3 * d + slot] for slot in slots) + bias[0, i, j].item()
                for slot in slots:
                    total[slot] += silu(logit) / normalizer * rows[j][d + slot]
            mixed += list(total.values())
        gated = [gate * value for gate, value in zip(rows[i][:d], normalized(mixed))]
        out = product(layer.out.weight.tolist(), gated)
        expected.append([a + b + c for a, b, c in zip(x[0, i].tolist(), out, layer.out.bias.tolist())])
    torch.testing.assert_close(layer(x, bias)[0], torch.tensor(expected).double())


def test_differences_in_time_are_bucketed_by_their_logarithm():
    seconds = [0, 1, 2, 60, 3600, 86_400, 10**9]
    buckets = bucket_differences(torch.tensor([seconds]), torch.zeros(1, len(seconds)))[0, :, 0].tolist()
    assert buckets == [0, 0] + [math.floor(math.log(second) / 0.301) for second in seconds[2:]]
    assert bucket_differences(torch.tensor([[1e30]]), torch.zeros(1, 1)).item() == 128
    start = 1_400_000_000  # float32 cannot tell its seconds apart
    time = torch.tensor([[start, start + 5]], dtype=torch.int32)
    assert bucket_differences(time, time)[0].tolist() == [[0, 5], [5, 0]]


def test_relative_positions_have_a_place_each():
    index = relative_index(3, longest=3, device=torch.device("cpu"))
    assert index.tolist() == [[2, 3, 4], [1, 2, 3], [0, 1, 2]]
