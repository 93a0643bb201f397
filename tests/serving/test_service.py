"""The service: answers, errors, limits, and its end."""

import json
import signal
import socket
import time
from contextlib import suppress

import pytest

pytest.importorskip("fastapi", reason='the service needs pip install "recbole_diffgrm[serve]"')
pytest.importorskip("uvicorn")

from fastapi.testclient import TestClient

from recbole_diffgrm import Recommender, run
from recbole_diffgrm.cli.serve import _listen, main
from recbole_diffgrm.serving import service
from recbole_diffgrm.serving.recommender import Query
from recbole_diffgrm.serving.search import TitleSearch
from tests.conftest import run_python


@pytest.fixture
def recommender(text_run):
    return Recommender.load(text_run)


@pytest.fixture
def client(recommender):
    with TestClient(service.create_app(recommender), raise_server_exceptions=False) as client:
        yield client


def test_recommendations_are_those_of_the_recommender(client, recommender):
    asked = {"histories": [["i1", "i2"], ["i3"]], "k": 5, "allow": [f"i{i}" for i in range(20)], "exclude": ["i7"]}
    lists = client.post("/recommend", json={**asked, "filter_seen": True}).json()["lists"]
    queries = [Query(history, 5, asked["allow"], ["i7"], True) for history in asked["histories"]]
    for mine, theirs in zip(lists, recommender.answer(queries), strict=True):
        assert [(one["item"], one["title"]) for one in mine] == [(one.item, one.title) for one in theirs]
        assert [one["score"] for one in mine] == pytest.approx([one.score for one in theirs], abs=1e-5)
    assert not {one["item"] for mine in lists for one in mine} & {"i7"}


def test_explanations_follow_the_search(client, recommender):
    explained = client.post("/explain", json={"history": ["i1", "i2"], "k": 4}).json()["recommendations"]
    theirs = recommender.recommend([["i1", "i2"]], 4)[0]
    assert [one["item"] for one in explained] == [one.item for one in theirs]
    for one, trace in zip(explained, recommender.trace(["i1", "i2"], [one.item for one in theirs])):
        assert one["denoising"]["sid"] == list(recommender.sid(one["item"])) == trace.sid
        assert [s["chosen"]["digit"] for s in one["denoising"]["steps"]] == [s.chosen.digit for s in trace.steps]


def test_items_are_found_by_title(client):
    assert client.get("/items", params={"query": "ITEM 39"}).json() == {
        "items": [{"item": "i39", "title": "Item 39"}],
        "total": 1,
    }
    found = client.get("/items", params={"query": "item 1", "limit": 3}).json()
    assert found["total"] == 13 and len(found["items"]) == 3  # 1, 10 to 19, 21 and 31: "1" may be in the id
    assert client.get("/items").json()["total"] == 40
    assert client.get("/items", params={"query": "nothing"}).json() == {"items": [], "total": 0}


def test_a_search_in_the_middle_of_an_addition(recommender):
    """The model changes before its items do: a search knows neither until both have."""
    search, items = TitleSearch(recommender), recommender.items
    recommender.add_items([{"item_id": "n1", "title": "Item 7"}])
    known, recommender.items = recommender.items, items
    assert search.find("item", 100)[1] == 40
    recommender.items = known
    search.update()
    assert search.find("item", 100)[1] == 41


def test_a_new_item_is_found_and_recommended(client):
    new = {"item_id": "n1", "title": "Item 7", "categories": "c2|c3"}
    answer = client.post("/items", json={"items": [new]})
    assert answer.status_code == 201 and answer.json()["items"][0]["item"] == "n1"
    assert client.get("/items", params={"query": "n1"}).json()["total"] == 1
    assert client.get("/health").json()["added"] == 1
    (only,) = client.post("/recommend", json={"histories": [["i3", "n1"]], "allow": ["n1"]}).json()["lists"][0]
    assert only["item"] == "n1"
    (numbered,) = client.post("/items", json={"items": [{**new, "item_id": 9}]}).json()["items"]
    assert numbered["item"] == "9"  # not 9.0
    again = client.post("/items", json={"items": [new]})
    assert again.status_code == 422 and "'n1' is there already" in again.json()["error"]


def test_health(client):
    told = client.get("/health").json()
    assert told.items() >= {"model": "DiffGRM", "items": 40, "explains": True, "filters_seen": False}.items()
    assert told["id_column"] == "item_id" and told["text_columns"] == ["title", "categories"]


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("/recommend", b"{", 422, "JSON"),
        ("/recommend", b'"\xff"', 400, ""),
        ("/recommend", b"[" * 100_000, 400, ""),
        ("/recommend", b'{"histories": [["x9"]]}', 422, "unknown items: x9"),
        ("/recommend", b'{"histories": [["i1"]], "allow": ["x9"]}', 422, "allow: unknown items: x9"),
        ("/recommend", b'{"histories": []}', 422, "histories"),
        ("/recommend", b'{"histories": [[]]}', 422, "histories.0"),
        ("/recommend", b'{"histories": [["x9"]], "skip_unknown": true}', 422, "at least one known item"),
        ("/recommend", b'{"histories": [["i1"]], "k": 0}', 422, "k:"),
        ("/recommend", b'{"histories": [["i1"]], "topk": 3}', 422, "topk"),
        ("/recommend", b'{"histories": [["\\ud800"]]}', 422, "histories.0.0"),
        ("/recommend", b'{"histories": [["i1"]], "\\ud800": 1}', 422, ""),
        ("/explain", b'{"history": ["i1"], "k": 21}', 422, "k:"),
        ("/items", b'{"items": [{"title": "A"}]}', 422, "item_id"),
        ("/items", b'{"items": [{"item_id": "n", "titel": "A"}]}', 422, "none of title, categories"),
        ("/items", b'{"items": [{"item_id": "n", "title": {"a": 1}}]}', 422, "title"),
        ("/items", b'{"items": [{"item_id": true, "title": "A"}]}', 422, "item_id"),
        ("/items", b'{"items": [{"item_id": 5.0, "title": "A"}]}', 422, "item_id must be a text or a whole number"),
        ("/items", b'{"items": [{"item_id": ["n"], "title": "A"}]}', 422, "item_id must be a text or a whole number"),
        ("/items", b'{"items": [{"item_id": "n", "title": NaN}]}', 422, "title"),
        ("/recommend", b" " * (service.MAX_BODY + 1), 413, "larger than"),
        ("/nowhere", b"{}", 404, "Not Found"),
        ("/health", b"{}", 405, "Method Not Allowed"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_mistakes_are_one_json_line(client, path, body, status, words):
    answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status and set(answer.json()) == {"error"}
    assert words in answer.json()["error"] and "\n" not in answer.json()["error"]


def test_slow_requests_end(recommender, monkeypatch):
    monkeypatch.setattr(service, "TIME_LIMIT", 0.1)
    monkeypatch.setattr(Recommender, "answer", lambda self, queries: time.sleep(0.5) or [[]])
    with TestClient(service.create_app(recommender)) as client:
        answer = client.post("/recommend", json={"histories": [["i1"]]})
    assert answer.status_code == 504 and "not done within" in answer.json()["error"]


def test_failures_are_told(recommender, monkeypatch):
    monkeypatch.setattr(Recommender, "answer", lambda self, queries: 1 / 0)
    with TestClient(service.create_app(recommender), raise_server_exceptions=False) as client:
        answer = client.post("/recommend", json={"histories": [["i1"]]})
    assert answer.status_code == 500 and "ZeroDivisionError" in answer.json()["error"]


def test_no_more_waits_than_can_be_done(recommender, monkeypatch):
    monkeypatch.setattr("recbole_diffgrm.serving.worker.MAX_WAITING", 0)
    with TestClient(service.create_app(recommender)) as client:
        answer = client.post("/recommend", json={"histories": [["i1"]]})
    assert answer.status_code == 503 and answer.headers["Retry-After"] == "1"


def test_models_that_only_score(text_options):
    settings = {key: value for key, value in text_options.items() if not key.startswith("sid_")}
    recommender = Recommender.load(run("SASRec", "tiny", **settings).run_dir)
    with TestClient(service.create_app(recommender)) as client:
        assert client.get("/health").json().items() >= {"explains": False, "text_columns": []}.items()
        assert len(client.post("/recommend", json={"histories": [["i1"]], "k": 7}).json()["lists"][0]) == 7
        for path, body in (("/explain", {"history": ["i1"]}), ("/items", {"items": [{"item_id": "n", "title": "A"}]})):
            answer = client.post(path, json=body)
            assert answer.status_code == 422 and "SASRec" in answer.json()["error"]


def test_the_page_runs_only_its_own_script(client):
    answer = client.get("/")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy and "unsafe" not in policy
    assert "innerHTML" not in answer.text and "http://" not in answer.text and "https://" not in answer.text


# Against its own description


@pytest.fixture
def api_schema(recommender):
    schemathesis = pytest.importorskip("schemathesis")
    return schemathesis.openapi.from_asgi("/openapi.json", service.create_app(recommender))


@pytest.mark.slow
def test_generated_requests_find_no_fault(api_schema):
    """Whatever a client sends, valid or not: no 500, and answers as described."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable
    from schemathesis import GenerationMode, checks

    wanted = [
        checks.not_a_server_error,
        *checks.CHECKS.get_by_names(
            ["status_code_conformance", "content_type_conformance", "response_schema_conformance"]
        ),
    ]
    for operation in api_schema.get_all_operations():
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            strategy = operation.ok().as_strategy(generation_mode=mode)

            @settings(
                max_examples=25,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=strategy)
            def send(case):
                case.call_and_validate(checks=wanted)

            with suppress(Unsatisfiable):  # there is no wrong way to ask for /health
                send()


# The command


@pytest.mark.slow
def test_load_and_sigterm_lose_no_request(text_run):
    """Clients ask without pause; what was sent before the end is answered, what comes later is refused."""
    done = run_python("benchmarks/serve.py", "--run", text_run, "--clients=1,8", "--seconds=0.5")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for counts in [*report["clients"].values(), report["sigterm"]]:
        assert counts["lost"] == counts["failed"] == 0 and counts["answered"] > 0, report
    assert report["sigterm"]["exit_code"] == -signal.SIGTERM


def test_answers_are_sent_at_once():
    """Not once the client has confirmed their head, which it may do 40 ms later."""
    with _listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_command_line_mistakes(text_run, capsys, monkeypatch):
    assert main(["--help"]) == 0 and "--port" in capsys.readouterr().out
    assert main([]) == 2
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    for arguments, words in [
        (["--port=8000"], "first argument"),
        (["nowhere"], "nowhere"),
        ([str(text_run), "--port=many"], "--port"),
        ([str(text_run), "--epochs=3"], "epochs"),
        ([str(text_run), f"--port={port}"], f"cannot listen on 127.0.0.1, port {port}"),
        ([str(text_run), "--host=no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
    ]:
        assert main(arguments) == 2
        assert words in capsys.readouterr().err
    taken.close()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert main([str(text_run)]) == 2
    assert "recbole_diffgrm[serve]" in capsys.readouterr().err
