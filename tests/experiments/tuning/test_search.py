import optuna
import pytest
from optuna.trial import TrialState, create_trial

from recbole_diffgrm import checkpoint
from recbole_diffgrm.errors import UserError
from recbole_diffgrm.experiments import pipeline
from recbole_diffgrm.experiments.result import RunResult
from recbole_diffgrm.experiments.tuning.search import Search
from recbole_diffgrm.experiments.tuning.space import Choice, Range
from recbole_diffgrm.models import build_config
from recbole_diffgrm.training.trainer import Trainer

SPACE = {"learning_rate": Range(1e-3, 1e-1, log=True), "hidden_size": Choice((16, 32))}


@pytest.fixture
def make_search(options):
    config_files = options.pop("config_files")

    def make(space=SPACE, folder="runs", sampler="tpe", pruner="median", **changes) -> Search:
        overrides = {**options, **changes, "output_dir": f"{options['output_dir']}/{folder}"}

        def build(values):
            return build_config("SASRec", "tiny", config_files, {**overrides, **values})

        return Search("SASRec", build({}), build, space, sampler, pruner)

    return make


def outcome(search):
    return [(trial.params, trial.value, trial.intermediate_values, trial.state) for trial in search.study.trials]


def run_dirs(search):
    return sorted(path for path in search.folder.parent.glob("SASRec-*"))


def test_trials_are_trained_and_only_the_best_is_tested(make_search):
    search = make_search()
    search.run(3)
    trials = search.study.trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 3 and search.is_done()
    assert trials[0].params["learning_rate"] == 1e-3  # as configured; 64 is not among the widths, and drawn
    for trial in trials:
        run_dir = search.folder.parent / trial.user_attrs["run_dir"]
        progress = checkpoint.load(run_dir / "state.pt")["progress"]
        assert progress["finished"] and progress["best_score"] == trial.value
        assert trial.intermediate_values == {entry["epoch"]: entry["score"] for entry in progress["curve"]}
    assert not list(search.folder.parent.rglob("result.json")) and search.best_result() is None
    search.test_best()
    best = max(trials, key=lambda trial: trial.value)
    [result] = search.folder.parent.rglob("result.json")
    assert result.parent.name == best.user_attrs["run_dir"]
    assert RunResult.load(result.parent) == search.best_result()
    assert search.best_result().valid["ndcg@10"] == best.value and search.best_result().test["all"]


def test_testing_the_best_does_not_train(make_search, monkeypatch):
    search = make_search()
    search.run(1)
    whole = pipeline.run_config(make_search(folder="whole").build(search.values(search.best_trial())))
    monkeypatch.setattr(Trainer, "_step", lambda *arguments: pytest.fail("trained"))
    search.test_best()
    assert search.best_result().test == whole.test and search.best_result().valid == whole.valid


def test_one_process_repeats_exactly_and_may_stop_between(make_search):
    whole, in_parts = make_search(folder="whole"), make_search(folder="parts")
    whole.run(4)
    in_parts.run(2)
    make_search(folder="parts").run(4)  # as another process would
    assert outcome(whole) == outcome(in_parts)
    assert len({trial.params["learning_rate"] for trial in whole.study.trials}) == 4
    other = make_search(folder="other", seed=1)
    other.run(2)
    assert other.study.trials[1].params != whole.study.trials[1].params


def test_a_trial_that_was_left_behind_is_continued(make_search, monkeypatch):
    whole, stopped = make_search(folder="whole"), make_search(folder="stopped")
    whole.run(3)
    original, steps = Trainer._step, []

    def stop_in_the_second_trial(self, *arguments):
        steps.append(1)
        if len(steps) == 18:  # 5 steps an epoch, 2 epochs a trial
            raise KeyboardInterrupt
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", stop_in_the_second_trial)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(3)
    monkeypatch.setattr(Trainer, "_step", original)
    assert [trial.state for trial in stopped.study.trials] == [TrialState.COMPLETE, TrialState.RUNNING]
    assert len(stopped.study.trials[1].intermediate_values) == 1
    make_search(folder="stopped").run(3)
    assert outcome(stopped) == outcome(whole) and len(run_dirs(stopped)) == 3


def test_a_trial_of_another_process_is_left_alone(make_search):
    search, other = make_search(), make_search()
    search.folder.mkdir(parents=True)
    with search._claim(2) as first, other._claim(2) as second, make_search()._claim(2) as third:
        assert (first.number, second.number, third) == (0, 1, None)
        assert not search.is_done()
    with other._claim(2) as again:  # both were left behind now
        assert again.number == 0


def test_values_that_are_being_trained_elsewhere(make_search):
    search, other = make_search({"hidden_size": Choice((16,))}), make_search({"hidden_size": Choice((16,))})
    original = other._should_prune

    def run_meanwhile(trial, progress):
        search.run(2)
        return original(trial, progress)

    object.__setattr__(other, "_should_prune", run_meanwhile)
    other.run(2)
    assert sorted(trial.state.name for trial in search.study.trials) == ["COMPLETE", "FAIL"]
    assert len(run_dirs(search)) == 1


def test_values_that_were_trained_already_are_not_trained_again(make_search, monkeypatch):
    search = make_search({"hidden_size": Choice((16,))})
    search.run(1)
    search.test_best()
    monkeypatch.setattr(Trainer, "_step", lambda *arguments: pytest.fail("trained"))
    search.run(2)
    first, second = search.study.trials
    assert first.value == second.value and first.intermediate_values == second.intermediate_values
    assert len(run_dirs(search)) == 1


def test_pruning_stops_a_run(make_search, capsys):
    search = make_search(epochs=4)
    search.folder.mkdir(parents=True)
    for _ in range(5):
        good = create_trial(value=1.0, intermediate_values={1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0})
        search.study.add_trial(good)
    search.run(6)
    pruned = search.study.trials[5]
    assert pruned.state == TrialState.PRUNED and list(pruned.intermediate_values) == [1]
    [run_dir] = run_dirs(search)
    assert not (run_dir / "result.json").exists() and "given up after epoch 1" in (run_dir / "log.txt").read_text()
    assert "Traceback" not in (run_dir / "log.txt").read_text() and "trial 6: pruned" in capsys.readouterr().out
    progress = checkpoint.load(run_dir / "state.pt")["progress"]
    assert progress["epoch"] == 1 and not progress["finished"]
    # It can be finished all the same, as any run that was stopped.
    config = search.build(search.values(pruned))
    finished = pipeline.run_config(config, resume=True)
    whole = pipeline.run_config(make_search(folder="whole", epochs=4).build(search.values(pruned)))
    assert finished.run_dir == run_dir and finished.test == whole.test


def test_no_pruning(make_search):
    search = make_search(pruner="none")
    search.folder.mkdir(parents=True)
    for _ in range(5):
        search.study.add_trial(create_trial(value=1.0, intermediate_values={1: 1.0, 2: 1.0}))
    search.run(6)
    assert search.study.trials[5].state == TrialState.COMPLETE


def test_values_that_do_not_go_together_fail_a_trial_not_the_search(make_search):
    search = make_search({"hidden_size": Choice((33, 16))}, sampler="grid")
    search.run(None)
    by_width = {trial.params["hidden_size"]: trial for trial in search.study.trials}
    assert by_width[16].state == TrialState.COMPLETE
    assert by_width[33].state == TrialState.FAIL
    assert by_width[33].user_attrs["reason"] == "hidden_size (33) must be a multiple of n_heads (2)"
    assert search.best_trial().params == {"hidden_size": 16}


def test_an_error_in_the_code_fails_a_trial_not_the_search(make_search, monkeypatch, capsys):
    search = make_search()
    original, calls = Trainer._step, []

    def fail_at_first(self, *arguments):
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("broken")
        return original(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", fail_at_first)
    search.run(2)
    assert [trial.state for trial in search.study.trials] == [TrialState.FAIL, TrialState.COMPLETE]
    assert search.study.trials[0].user_attrs["reason"] == "RuntimeError: broken"
    assert "Traceback" in capsys.readouterr().err


def test_an_error_before_the_first_training_ends_the_search(make_search, monkeypatch):
    """It is of the data, and the trial is done again when it is fixed."""
    search = make_search()

    def fail(*arguments):
        raise UserError("no text encoder")

    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "attach_item_data", fail)
        with pytest.raises(UserError, match="no text encoder"):
            search.run(2)
    search.run(2)
    assert [trial.state for trial in search.study.trials] == [TrialState.COMPLETE] * 2
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "attach_item_data", fail)
        search.run(3)
    assert search.study.trials[2].user_attrs["reason"] == "no text encoder"


def test_grid_has_every_combination_once(make_search):
    search = make_search({"hidden_size": Choice((16, 32)), "n_layers": Choice((1, 2))}, sampler="grid", epochs=1)
    search.run(100)
    found = sorted(tuple(trial.params.values()) for trial in search.study.trials)
    assert found == [(16, 1), (16, 2), (32, 1), (32, 2)]
    with pytest.raises(UserError, match="learning_rate is a range"):
        make_search(sampler="grid").check()


def test_other_settings_are_another_search(make_search):
    folders = {
        make_search().folder,
        make_search(epochs=3).folder,
        make_search(sampler="random").folder,
        make_search({"hidden_size": Choice((16,))}).folder,
    }
    assert len(folders) == 4
    assert make_search(state="WARNING").folder == make_search().folder  # it affects nothing


def test_a_search_needs_validation(make_search):
    for changes in (
        {"epochs": 0},
        {"eval_args": {"split": {"LS": "test_only"}}},
        {"eval_args": {"split": {"RS": [8, 0, 2]}}},
    ):
        with pytest.raises(UserError, match="needs validation"):
            make_search(**changes).check()
    make_search(eval_args={"split": {"RS": [8, 2, 0]}}).check()


def test_time_is_up(make_search):
    search = make_search()
    search.run(3, deadline=0)
    assert search.study.trials == []


def test_journal_can_be_read_with_optuna_alone(make_search):
    search = make_search()
    search.run(1)
    backend = optuna.storages.journal.JournalFileBackend(str(search.folder / "journal.log"))
    study = optuna.load_study(study_name="SASRec", storage=optuna.storages.JournalStorage(backend))
    assert study.best_value == search.best_trial().value
