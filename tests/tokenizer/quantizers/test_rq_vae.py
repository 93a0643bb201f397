"""RQ-VAE: encoding against loops, training against autograd and plain sums, kills, threads and seeds."""

import itertools

import numpy as np
import pytest
import torch

from recbole_diffgrm.tokenizer.quantizers import rq_vae
from recbole_diffgrm.tokenizer.quantizers.rq_vae import CHECKPOINT_FILE, ResidualVAE, _Training
from tests.tokenizer.conftest import correlated, run_tokenizer

VECTORS = correlated(300)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(rq_vae, "HIDDEN", (32, 16))
    monkeypatch.setattr(rq_vae, "BATCH_SIZE", 64)


def fit(vectors=VECTORS, *, epochs=5, pca_dim=16, seed=0, num_digits=3, codebook_size=8, **further) -> ResidualVAE:
    further = {"rq_vae_epochs": epochs, "rq_vae_latent_dim": 6, **further}
    return ResidualVAE.fit(vectors, num_digits, codebook_size, pca_dim, seed, **further)


def assert_same(first: ResidualVAE, second: ResidualVAE) -> None:
    assert first.state().keys() == second.state().keys()
    for name, array in first.state().items():
        assert (array == second.state()[name]).all(), name


@pytest.mark.parametrize("pca_dim", [16, None])
def test_encoding_by_hand(pca_dim):
    quantizer = fit(pca_dim=pca_dim)
    assert (quantizer.num_digits, quantizer.codebook_size, quantizer.input_dim, quantizer.dim) == (3, 8, 24, 6)
    layers = [(quantizer.encoder[f"weight_{i}"], quantizer.encoder[f"bias_{i}"]) for i in range(3)]
    assert [weight.shape for weight, _ in layers] == [(15 if pca_dim else 24, 32), (32, 16), (16, 6)]
    for vector, codes in zip(VECTORS[:20], quantizer.encode(VECTORS)):
        x = quantizer.whitening.apply(vector[None])[0]
        for index, (weight, bias) in enumerate(layers):
            x = np.array([sum(x * column) for column in weight.astype(float).T]) + bias
            x = x if index == 2 else np.array([max(value, 0) for value in x])
        for digit, codebook in enumerate(quantizer.codebooks.astype(float)):
            nearest = int(np.argmin([((x - centroid) ** 2).sum() for centroid in codebook]))
            assert codes[digit] == nearest
            x = x - codebook[nearest]


def test_codes_do_not_depend_on_other_items():
    quantizer = fit()
    together = quantizer.encode(VECTORS)
    assert (quantizer.encode(VECTORS[::-1])[::-1] == together).all()
    assert all((quantizer.encode(VECTORS[i : i + 1]) == together[i]).all() for i in range(0, 300, 10))


def test_nearest_codes():
    """Against the distance in the latent space to what every possible SID stands for."""
    quantizer = fit(codebook_size=4)
    everything = np.array(list(itertools.product(range(4), repeat=3)), np.uint16)
    points = quantizer.transform(VECTORS[:10])
    near = quantizer.nearest(points, 64)
    for row, point in enumerate(points):
        errors = [
            ((point - sum(quantizer.codebooks[k, code[k]].astype(float) for k in range(3))) ** 2).sum()
            for code in everything
        ]
        assert (near.codes[row] == everything[np.argsort(errors)]).all()
        assert np.allclose(near.errors[row], np.sort(errors))


def test_latent_space_of_training_is_that_of_encoding():
    """The first layer takes over the standardization."""
    trained = []

    class Recorded(_Training):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            trained.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rq_vae, "_Training", Recorded)
        quantizer = fit()
    with torch.no_grad():
        latent = rq_vae._forward(trained[0].encoder, trained[0].points)
    assert np.allclose(quantizer.transform(VECTORS), latent, atol=1e-5)
    assert trained[0].points.mean(dim=0).abs().max() < 1e-5
    assert trained[0].points.std(dim=0, correction=0).mean() == pytest.approx(1, abs=1e-5)


def test_one_step():
    """Loss and gradients as written in the paper; codebooks are moving averages."""
    training = _Training(VECTORS[:50], 2, 4, seed=0, num_epochs=1, latent_dim=3)
    encoder = [[part.detach().clone().requires_grad_() for part in layer] for layer in training.encoder]
    decoder = [[part.detach().clone().requires_grad_() for part in layer] for layer in training.decoder]
    codebooks, count, total = training.codebooks.clone(), training.count.clone(), training.total.clone()
    points = training.points[:20]
    training.optimizer.param_groups[0]["lr"] = 0.0
    loss, residuals, codes = training._step(points)

    expected = 0
    sums, numbers = torch.zeros_like(total), torch.zeros_like(count)
    for row, x in enumerate(points):
        latent = rq_vae._forward(encoder, x[None])[0]
        left, quantized = latent, torch.zeros(3)
        for level in range(2):
            distances = [((left.detach() - centroid) ** 2).sum() for centroid in codebooks[level]]
            code = int(torch.stack(distances).argmin())
            assert codes[level][row] == code
            assert torch.allclose(residuals[level][row], left.detach(), atol=1e-6)
            sums[level, code] += left.detach()
            numbers[level, code] += 1
            expected = expected + 0.25 * ((left - codebooks[level, code]) ** 2).sum() / 20
            quantized = quantized + codebooks[level, code]
            left = left - codebooks[level, code]
        restored = rq_vae._forward(decoder, (latent + (quantized - latent).detach())[None])[0]
        expected = expected + ((x - restored) ** 2).sum() / 20
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    for layer, reference in zip(training.encoder + training.decoder, encoder + decoder):
        for part, other in zip(layer, reference):
            assert torch.allclose(part.grad, other.grad, atol=1e-4 * other.grad.abs().max())
    new_total, new_count = 0.99 * total + 0.01 * sums, 0.99 * count + 0.01 * numbers
    assert torch.allclose(training.codebooks, new_total / new_count[..., None], atol=1e-5)


def test_dead_codes_start_again():
    training = _Training(VECTORS, 2, 8, seed=0, num_epochs=1, latent_dim=4)
    for level in range(2):
        training.codebooks[level, 5] = 1e4  # no item is near
        training.total[level, 5] = 1e4
    training._run_epoch()
    assert training.codebooks.abs().max() < 100
    assert (training.count > 0).all()


def test_training_helps():
    """Fewer epochs, larger error; all codes are used."""
    vectors = correlated(600, 24)
    losses = []
    for epochs in (1, 40):
        training = _Training(vectors, 2, 16, seed=0, num_epochs=epochs, latent_dim=6)
        losses.append([training._run_epoch() for training.epoch in range(epochs)][-1])
    assert losses[1] < 0.6 * losses[0]
    codes = fit(vectors, epochs=40, pca_dim=None, codebook_size=16).encode(vectors)
    assert all(len(np.unique(column)) == 16 for column in codes.T)


def test_own_generator():
    state = torch.get_rng_state()
    first = fit()
    assert (torch.get_rng_state() == state).all()
    torch.manual_seed(1)
    torch.rand(7)
    assert_same(first, fit())
    assert (first.codebooks != fit(seed=1).codebooks).any()


def test_number_of_threads(monkeypatch):
    """However many there are, training takes one, and the caller has them back."""
    step, during = _Training._step, []

    def recorded_step(training, points):
        during.append(torch.get_num_threads())
        return step(training, points)

    monkeypatch.setattr(_Training, "_step", recorded_step)
    threads = torch.get_num_threads()
    fitted = []
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            fitted.append(fit())
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    assert set(during) == {1}
    assert_same(*fitted)


class Stopper:
    """Raises in the middle of an epoch, once."""

    def __init__(self, monkeypatch, at_step: int):
        self.steps, self.epochs = 0, []
        step, run_epoch = _Training._step, _Training._run_epoch

        def counted_step(training, points):
            self.steps += 1
            if self.steps == at_step:
                raise KeyboardInterrupt
            return step(training, points)

        def counted_epoch(training):
            self.epochs.append(training.epoch)
            return run_epoch(training)

        monkeypatch.setattr(_Training, "_step", counted_step)
        monkeypatch.setattr(_Training, "_run_epoch", counted_epoch)


def test_kill_and_continue(monkeypatch, tmp_path):
    whole = fit(epochs=6)
    monkeypatch.setattr(rq_vae, "CHECKPOINT_SECONDS", 0)
    stopper = Stopper(monkeypatch, at_step=18)  # 5 steps an epoch: the 4th
    with pytest.raises(KeyboardInterrupt):
        fit(epochs=6, work_dir=tmp_path / "fit")
    assert [path.name for path in (tmp_path / "fit").iterdir()] == [CHECKPOINT_FILE]
    assert_same(fit(epochs=6, work_dir=tmp_path / "fit"), whole)
    assert stopper.epochs == [0, 1, 2, 3, 3, 4, 5]
    assert_same(fit(epochs=6, work_dir=tmp_path / "fit"), whole)  # killed between the last epoch and the end
    assert len(stopper.epochs) == 7


@pytest.mark.parametrize("damage", ["cut", "other fit", "nonsense"])
def test_unusable_checkpoint(tmp_path, caplog, damage):
    path = tmp_path / CHECKPOINT_FILE
    fit(VECTORS[:200] if damage == "other fit" else VECTORS, work_dir=tmp_path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    elif damage == "nonsense":
        path.write_bytes(b"nonsense")
    assert_same(fit(work_dir=tmp_path), fit())
    assert "starts over" in caplog.text


@pytest.mark.slow
def test_in_the_cache(settings, monkeypatch, steps):
    """A killed tokenization goes on, and leaves nothing behind; only rq_vae's own keys count, and only for it."""
    monkeypatch.setattr(rq_vae, "CHECKPOINT_SECONDS", 0)
    keys = {"sid_quantizer": "rq_vae", "rq_vae_epochs": 4, "rq_vae_latent_dim": 6}
    whole = run_tokenizer(settings, **keys, cache_dir=settings["cache_dir"] + "2").tokenizer
    stopper = Stopper(monkeypatch, at_step=3)
    with pytest.raises(KeyboardInterrupt):
        run_tokenizer(settings, **keys)
    resumed = run_tokenizer(settings, **keys)
    assert stopper.epochs == [0, 1, 2, 2, 3]
    assert (resumed.tokenizer.sids == whole.sids).all()
    assert_same(resumed.tokenizer.quantizer, whole.quantizer)
    entries = [path for path in resumed.folder.parent.iterdir() if path.name.startswith("codes-")]
    assert [sorted(path.name for path in entry.iterdir()) for entry in entries] == [["about.json", "tokenizer.npz"]]
    assert resumed.report["dimensions"] == 6
    assert resumed.report["codes_used"] == [len(np.unique(column)) for column in whole.sids.T]

    steps.clear()
    run_tokenizer(settings, **keys)
    assert steps == []
    run_tokenizer(settings, **{**keys, "rq_vae_epochs": 5})
    run_tokenizer(settings, **{**keys, "rq_vae_latent_dim": 5}, sid_collisions="reassign")
    assert steps == ["fit", "resolve", "fit", "resolve"]
    run_tokenizer(settings)
    steps.clear()
    run_tokenizer(settings, rq_vae_epochs=5)
    assert steps == []
