"""What is said while a command works."""

import logging

from recbole_diffgrm import run
from recbole_diffgrm.screen import log_to_screen
from tests.conftest import run_python


def test_the_first_line_comes_before_torch(tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise SystemExit('torch is imported')\n")
    for program in (["run_recbole_diffgrm.py"], ["-m", "recbole_diffgrm.tokenizer"]):
        done = run_python(*program, PYTHONPATH=str(tmp_path))
        first, second = done.stderr.splitlines()
        assert "loading libraries" in first and second == "torch is imported"


def test_every_step_of_a_run_is_named(options, tmp_path, encoder_folder, capsys):
    settings = {"sid_quantizer": "opq", "sid_pca_dim": 6, "sid_text_encoder": str(encoder_folder)}
    run("DiffGRM", "tiny", **options, **settings, cache_dir=str(tmp_path / "cache"))
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    steps = ["reading tiny", "encoding 40 texts", "fitting opq", "DiffGRM on tiny", "60 users, 40 items, "]
    steps += ["train: at most 2 epochs of ", "train epoch 1: loss", "train epoch 2: loss", "testing on 60 targets"]
    places = [next(i for i, line in enumerate(lines) if line.startswith(step)) for step in steps]
    assert places == sorted(places)


def test_one_user_is_no_users(options, tmp_path, capsys):
    folder = tmp_path / "data" / "tiny"
    folder.mkdir(parents=True)
    rows = "".join(f"u\ti{item}\t{item}\n" for item in range(12))
    (folder / "tiny.inter").write_text("user_id:token\titem_id:token\ttimestamp:float\n" + rows)
    settings = {"data_path": str(tmp_path / "data"), "load_col": {"inter": ["user_id", "item_id", "timestamp"]}}
    run("Pop", "tiny", **{**options, **settings})
    told = capsys.readouterr().err
    assert "1 user, 12 items, 12 interactions" in told and "1 test user\n" in told and "1 test target (" in told
    assert "1 users" not in told and "1 targets" not in told and "1 validation users" not in told


def test_only_warnings_of_other_libraries(capsys):
    with log_to_screen(), log_to_screen("WARNING"):
        logging.getLogger("recbole_diffgrm.x").info("quiet")
    with log_to_screen():
        with log_to_screen():
            logging.getLogger("recbole_diffgrm.x").info("ours")
        logging.getLogger("faiss.loader").info("theirs")
        logging.getLogger("faiss.loader").warning("their warning")
        logging.getLogger().info("\x1b[31mRecBole's\x1b[0m")
    logging.getLogger("recbole_diffgrm.x").info("afterwards")
    assert [line[9:] for line in capsys.readouterr().err.splitlines()] == ["ours", "their warning", "RecBole's"]
