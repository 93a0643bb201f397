"""The training loop: rates, clipping, selection, repetition."""

import pytest
import torch

from recbole_diffgrm import checkpoint
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.evaluation.evaluator import Evaluation
from recbole_diffgrm.experiments.pipeline import run
from recbole_diffgrm.models import build_config
from recbole_diffgrm.models.base import LossOutput
from recbole_diffgrm.training import trainer
from recbole_diffgrm.training.lr_schedule import rate_factor
from recbole_diffgrm.training.signals import StopSignal
from recbole_diffgrm.training.tracking import Tracking


class Toy(torch.nn.Module):
    """One weight; the loss is its value, so that the gradient is 1."""

    rebuilt_state = ()

    def __init__(self, loss=None):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))
        self.loss = loss or (lambda weight: weight.sum())

    def losses(self, batch):
        loss = self.loss(self.weight)
        return LossOutput(loss if isinstance(loss, dict) else {"loss": loss}, num_targets=2)


class Batches:
    """Stands for a loader of three batches."""

    def __len__(self):
        return 3

    def plan(self, epoch):
        return [torch.zeros(1)] * 3

    def batch(self, index):
        return index


def toy_trainer(tmp_path, model, **overrides):
    overrides = {"learner": "sgd", "learning_rate": 0.1, "show_progress": False, **overrides}
    config = build_config("SASRec", "ml-100k", overrides=overrides)
    return trainer.Trainer(config, model, tmp_path, Tracking([]), StopSignal(tmp_path), trainer.Progress())


def test_scheduled_steps_add_up(tmp_path):
    model = Toy()
    made = toy_trainer(tmp_path, model, scheduler="linear", warmup_steps=2)
    made.fit(Batches(), None, epochs=2)
    rates = [0.1 * rate_factor("linear", step, 2, 6) for step in range(6)]
    assert model.weight.tolist() == pytest.approx([-sum(rates)] * 3)
    assert [entry["learning_rate"] for entry in made.progress.curve] == pytest.approx([rates[2], rates[5]])


@pytest.mark.parametrize("clip", [0.5, {"max_norm": 0.5}])
def test_clipping(tmp_path, clip):
    model = Toy()
    toy_trainer(tmp_path, model, clip_grad_norm=clip).fit(Batches(), None, epochs=1)
    assert model.weight.norm().item() == pytest.approx(3 * 0.1 * 0.5, rel=1e-5)


@pytest.mark.parametrize("learner", ["adam", "adamw", "sgd", "adagrad", "rmsprop"])
def test_optimizers(tmp_path, learner):
    model = Toy()
    made = toy_trainer(tmp_path, model, learner=learner, weight_decay=0.01)
    assert type(made.optimizer).__name__.lower() == learner
    assert made.optimizer.param_groups[0]["weight_decay"] == 0.01
    made.fit(Batches(), None, epochs=1)
    assert (model.weight < 0).all()


def test_losses_in_parts(tmp_path):
    made = toy_trainer(tmp_path, Toy(lambda weight: {"a": weight.sum() * 0 + 2, "b": weight.sum() * 0 + 3}))
    made.fit(Batches(), None, epochs=1)
    assert made.progress.curve[0]["loss"] == 5
    assert made.progress.curve[0]["loss_parts"] == {"a": 2, "b": 3}
    assert made.progress.curve[0]["num_targets"] == 3 * 2


def test_nan_is_named(tmp_path):
    with pytest.raises(UserError, match=r"NaN in epoch 1, batch 1: lower learning_rate"):
        toy_trainer(tmp_path, Toy(lambda weight: weight.sum() * float("nan"))).fit(Batches(), None, epochs=1)


def fit_with_scores(tmp_path, monkeypatch, scores, epochs=20, **overrides):
    """Train with validation scores given in advance."""
    waiting = iter(scores)
    metrics = {"recall@5": 0, "recall@10": 0, "ndcg@5": 0, "hit@5": 0, "hit@10": 0, "mrr@5": 0, "mrr@10": 0}

    def fake(*arguments, **keywords):
        return {"all": Evaluation({**metrics, "ndcg@10": next(waiting)}, torch.zeros(0), None)}

    monkeypatch.setattr(trainer, "evaluate", fake)
    model = Toy()
    made = toy_trainer(tmp_path, model, **overrides)
    made.fit(Batches(), object(), epochs)
    best = checkpoint.load(tmp_path / "best.pt")["state_dict"]["weight"]
    return made.progress, best


def test_early_stopping_compares_unrounded_scores(tmp_path, monkeypatch):
    """RecBole rounds to four places first and stops one evaluation late."""
    scores = [0.03001, 0.03002, 0.03003, 0.03002, 0.03003, 0.03001, 0.9]
    progress, best = fit_with_scores(tmp_path, monkeypatch, scores, stopping_step=3)
    assert progress.best_epoch == 3
    assert progress.best_score == 0.03003
    assert progress.epoch == 6  # three evaluations without a better one
    assert best.tolist() == pytest.approx([-0.1 * 3 * 3] * 3)  # weights of epoch 3


def test_evaluation_every_other_epoch_and_at_the_end(tmp_path, monkeypatch):
    progress, _ = fit_with_scores(tmp_path, monkeypatch, [0.1, 0.2, 0.3], epochs=5, eval_step=2)
    assert [entry["epoch"] for entry in progress.curve if "valid" in entry] == [2, 4, 5]
    assert progress.best_epoch == 5


def test_weighted_selection(tmp_path, monkeypatch):
    progress, _ = fit_with_scores(tmp_path, monkeypatch, [0.5, 0.1], epochs=2, valid_metric="0.2*Recall@10-NDCG@10")
    assert progress.best_epoch == 2
    assert progress.best_score == pytest.approx(-0.1)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["SASRec", "BERT4Rec", "GRU4Rec"])
def test_same_seed_same_metrics_bit_for_bit(model, options):
    first, second = (run(model, "tiny", **options) for _ in range(2))
    assert first.test == second.test and first.valid == second.valid
    assert [entry["loss"] for entry in first.curve] == [entry["loss"] for entry in second.curve]
    other = run(model, "tiny", **options, seed=7)
    assert [entry["loss"] for entry in other.curve] != [entry["loss"] for entry in first.curve]


@pytest.mark.slow
def test_mixed_precision_runs(options):
    assert run("SASRec", "tiny", **options, enable_amp=True).test["all"]["recall@10"] > 0


def test_averaged_weights_are_evaluated_and_kept(tmp_path):
    """SGD walks from 0 in steps of -0.1; the mean starts at the first weights."""
    model = Toy()
    made = toy_trainer(tmp_path, model, ema_decay=0.6)
    made.fit(Batches(), None, epochs=2)
    mean = -0.1
    for step in range(2, 7):
        mean = 0.6 * mean + 0.4 * (-0.1 * step)
    assert model.weight.tolist() == pytest.approx([-0.6] * 3)
    assert made.evaluated.weight.tolist() == pytest.approx([mean] * 3)
    assert checkpoint.load(tmp_path / "best.pt")["state_dict"]["weight"].tolist() == pytest.approx([mean] * 3)


@pytest.mark.slow
def test_averaging_changes_what_is_tested_not_what_is_trained(options):
    plain, averaged = run("SASRec", "tiny", **options), run("SASRec", "tiny", **options, ema_decay=0.9)
    assert [entry["loss"] for entry in plain.curve] == [entry["loss"] for entry in averaged.curve]
    assert plain.valid != averaged.valid


def test_compilation_is_asked_for(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiled.append(how) or function)
    for compile_ in (False, True):
        toy_trainer(tmp_path, Toy(), compile=compile_).fit(Batches(), None, epochs=1)
    assert compiled == [{"dynamic": True}]


def test_a_compiler_that_fails_is_one_line(tmp_path, monkeypatch):
    def compile_(function, **how):
        def fail(batch):
            raise type("InductorError", (RuntimeError,), {"__module__": "torch._inductor.exc"})("No C++ compiler\nmore")

        return fail

    monkeypatch.setattr(torch, "compile", compile_)
    with pytest.raises(UserError, match=r"compile: .*\(No C\+\+ compiler\); set compile to False"):
        toy_trainer(tmp_path, Toy(), compile=True).fit(Batches(), None, epochs=1)


def test_weights_that_are_not_finite_are_named(tmp_path):
    """The loss of the last step is still fine; what it does to the weights is not."""
    with pytest.raises(UserError, match="weights became NaN or infinite in epoch 1: lower learning_rate"):
        toy_trainer(tmp_path, Toy(lambda weight: (weight * 1e38).sum()), learning_rate=1000).fit(Batches(), None, 1)


def test_first_evaluation(tmp_path, monkeypatch):
    progress, _ = fit_with_scores(tmp_path, monkeypatch, [0.1, 0.2, 0.3], epochs=6, eval_from=4)
    assert [entry["epoch"] for entry in progress.curve if "valid" in entry] == [4, 5, 6]
