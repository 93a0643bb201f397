"""RQ-VAE (rq_vae): residual codebooks in the latent space of an autoencoder, as in TIGER (Rajput et al., NeurIPS 2023).

Loss: ||x - x'||^2 + 0.25 sum_l ||r_l - sg(e_l)||^2. Codebooks follow their residuals by moving averages instead of a
loss term. All randomness comes from one generator, training runs in one thread, and everything that changes is in the
checkpoint: neither the number of threads nor a kill changes the codes. Another processor does: float32 gradients differ
in their last bits, and a thousand steps multiply the difference.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from recbole_diffgrm.files import Damaged, make_folder
from recbole_diffgrm.lazy import LazyModule
from recbole_diffgrm.progress import progress_bar
from recbole_diffgrm.tokenizer.exact import STEP, power_of_two, to_grid
from recbole_diffgrm.tokenizer.parallel import one_thread
from recbole_diffgrm.tokenizer.quantizers.residual import ResidualQuantizer, residual_kmeans
from recbole_diffgrm.tokenizer.whitening import Whitening
from recbole_diffgrm.words import count

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    from recbole_diffgrm import checkpoint

    Layer = tuple[Tensor, Tensor]  # weight [in, out], bias [out]
else:
    torch, F = LazyModule("torch"), LazyModule("torch.nn.functional")
    checkpoint = LazyModule("recbole_diffgrm.checkpoint")

logger = logging.getLogger(__name__)

HIDDEN = (512, 256, 128)  # widths of the encoder's layers; the decoder mirrors them
BATCH_SIZE = 256  # TIGER has 1024; smaller ones make more steps of an epoch
LEARNING_RATE = 1e-3  # at the start; falls to 0 along a cosine
COMMITMENT = 0.25
EMA_DECAY = 0.99  # of the moving averages behind the codebooks, per step
CHECKPOINT_FILE = "rq_vae.pt"
CHECKPOINT_SECONDS = 30.0


class ResidualVAE(ResidualQuantizer):
    """codebooks [n, M, latent]; points are encoded vectors."""

    name = "rq_vae"
    summary = "residual codebooks in the latent space of an autoencoder, as in TIGER"
    packages = ("faiss-cpu", "numpy", "torch")
    keys = ("rq_vae_epochs", "rq_vae_latent_dim")
    resumable = True

    def __init__(self, whitening: Whitening, codebooks: np.ndarray, **encoder: np.ndarray):
        super().__init__(whitening, codebooks)
        self.encoder = encoder  # weight_0 [p, 512], bias_0 [512], weight_1, ...: float32
        self.dim = codebooks.shape[2]

    @classmethod
    def _train(
        cls,
        points: np.ndarray,
        num_digits: int,
        codebook_size: int,
        step: float,
        seed: int,
        *,
        rq_vae_epochs: int,
        rq_vae_latent_dim: int,
        work_dir: Path | None = None,
        show_progress: bool = False,
    ) -> dict[str, np.ndarray]:
        with one_thread():
            points = points.astype(np.float32)
            training = _Training(points, num_digits, codebook_size, seed, rq_vae_epochs, rq_vae_latent_dim)
            training.run(work_dir / CHECKPOINT_FILE if work_dir else None, show_progress)
        arrays = {"codebooks": training.codebooks.numpy()}
        for index, (weight, bias) in enumerate(training.encoder):
            arrays |= {f"weight_{index}": weight.detach().numpy(), f"bias_{index}": bias.detach().numpy()}
        # the first layer standardizes as well
        arrays["weight_0"] = arrays["weight_0"] * training.scale
        arrays["bias_0"] = arrays["bias_0"] - training.mean @ arrays["weight_0"]
        return arrays

    def transform(self, inputs: np.ndarray) -> np.ndarray:
        """[B, d] -> [B, latent] float64"""
        points = super().transform(inputs)
        num_layers = len(self.encoder) // 2
        for index in range(num_layers):
            weight, bias = (self.encoder[f"{name}_{index}"].astype(np.float64) for name in ("weight", "bias"))
            points = points @ weight + bias
            if index < num_layers - 1:
                points = np.maximum(points, 0)
        return points

    def state(self) -> dict[str, np.ndarray]:
        return super().state() | self.encoder

    @property
    def cells_per_input(self) -> int:
        return max(super().cells_per_input, *HIDDEN)


class _Training:
    """The autoencoder, its codebooks, and all else that changes while it is trained."""

    def __init__(
        self, points: np.ndarray, num_digits: int, codebook_size: int, seed: int, num_epochs: int, latent_dim: int
    ):
        # To mean 0 and, over all dimensions, variance 1: at the length 1 of most embeddings learning is slower.
        self.mean, self.scale = points.mean(axis=0), 1 / points.std(axis=0).mean()
        self.points = torch.from_numpy((points - self.mean) * self.scale)  # [N, p] float32
        self.num_epochs = num_epochs
        self.epoch = 0
        self.generator = torch.Generator().manual_seed(seed)
        widths = (points.shape[1], *HIDDEN, latent_dim)
        self.encoder = _make_layers(widths, self.generator)
        self.decoder = _make_layers(widths[::-1], self.generator)
        self.optimizer = torch.optim.Adam([part for layer in self.encoder + self.decoder for part in layer])
        with torch.no_grad():
            latent = _forward(self.encoder, self.points).numpy()
        step = STEP * float(power_of_two(np.abs(latent).max()))
        codebooks = residual_kmeans(to_grid(latent, step), num_digits, codebook_size, step, seed)
        # [n, M, w]; not parameters: moving averages of the residuals that have each code, `total` / `count`
        self.codebooks = torch.from_numpy(codebooks.astype(np.float32))
        self.count = torch.ones(num_digits, codebook_size)
        self.total = self.codebooks.clone()
        # of everything that decides the outcome
        self.fingerprint = hashlib.sha256(
            repr((points.shape, num_digits, codebook_size, seed, num_epochs, latent_dim)).encode() + points.tobytes()
        ).hexdigest()

    def run(self, checkpoint: Path | None, show_progress: bool) -> None:
        if checkpoint is not None:
            self._load(checkpoint)
        saved_at = time.monotonic()
        with progress_bar(
            total=self.num_epochs, initial=self.epoch, desc="fitting rq_vae", unit="epoch", show=show_progress
        ) as bar:
            while self.epoch < self.num_epochs:
                loss = self._run_epoch()
                self.epoch += 1
                bar.set_postfix_str(f"loss {loss:.4f}", refresh=False)
                bar.update()
                is_over = self.epoch == self.num_epochs
                if checkpoint is not None and (is_over or time.monotonic() - saved_at >= CHECKPOINT_SECONDS):
                    self._save(checkpoint)
                    saved_at = time.monotonic()

    def _run_epoch(self) -> float:
        """The mean loss. Codes that no item had in the epoch start again at the residual of a random item."""
        order = torch.randperm(len(self.points), generator=self.generator)
        batches = torch.tensor_split(order, math.ceil(len(order) / BATCH_SIZE))
        used = torch.zeros(self.count.shape, dtype=torch.bool)
        loss_sum = 0.0
        for index, rows in enumerate(batches):
            progress = (self.epoch + index / len(batches)) / self.num_epochs
            self.optimizer.param_groups[0]["lr"] = LEARNING_RATE * (1 + math.cos(math.pi * progress)) / 2
            loss, residuals, codes = self._step(self.points[rows])
            loss_sum += loss * len(rows)
            for level, code in enumerate(codes):
                used[level, code] = True
        for level, residual in enumerate(residuals):  # of the last batch
            self._restart(level, torch.nonzero(~used[level]).squeeze(1), residual)
        return loss_sum / len(order)

    def _step(self, points: Tensor) -> tuple[float, list[Tensor], list[Tensor]]:
        """One update; the loss, and residuals [B, w] and codes [B] of each level."""
        latent = _forward(self.encoder, points)  # [B, w]
        quantized = torch.zeros_like(latent)
        commitment = latent.new_zeros(())
        residuals, codes = [], []
        for codebook in self.codebooks:
            residual = latent - quantized
            with torch.no_grad():
                distance = torch.addmm(codebook.square().sum(dim=1), residual, codebook.T, alpha=-2)  # + ||r||^2
                code = distance.argmin(dim=1)
            centroid = codebook[code]
            commitment = commitment + _squared_error(residual, centroid)
            quantized = quantized + centroid
            residuals.append(residual.detach())
            codes.append(code)
        restored = _forward(self.decoder, latent + (quantized - latent).detach())  # straight through
        loss = _squared_error(points, restored) + COMMITMENT * commitment
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for level, (residual, code) in enumerate(zip(residuals, codes)):
            self._follow(level, residual, code)
        return loss.item(), residuals, codes

    def _follow(self, level: int, residual: Tensor, code: Tensor) -> None:
        """The codebook of a level moves towards the residuals that have its codes."""
        count, total = self.count[level], self.total[level]
        count.mul_(EMA_DECAY).index_add_(0, code, torch.ones(len(code)), alpha=1 - EMA_DECAY)
        total.mul_(EMA_DECAY).index_add_(0, code, residual, alpha=1 - EMA_DECAY)
        self.codebooks[level] = total / count[:, None]

    def _restart(self, level: int, dead: Tensor, residual: Tensor) -> None:
        chosen = residual[torch.randint(len(residual), (len(dead),), generator=self.generator)]
        self.codebooks[level, dead] = chosen
        self.count[level, dead] = 1
        self.total[level, dead] = chosen

    def _save(self, path: Path) -> None:
        content = {
            "fingerprint": self.fingerprint,
            "epoch": self.epoch,
            "layers": [[part.detach() for part in layer] for layer in self.encoder + self.decoder],
            "optimizer": self.optimizer.state_dict(),
            "codebooks": self.codebooks,
            "count": self.count,
            "total": self.total,
            "generator": self.generator.get_state(),
        }
        make_folder(path.parent)
        checkpoint.save(content, path)

    def _load(self, path: Path) -> None:
        """Go on where an earlier attempt stopped, if there was one and its checkpoint is intact."""
        if not path.exists():
            return
        try:
            content = checkpoint.load(path)
            is_ours = content.get("fingerprint") == self.fingerprint
        except Damaged:
            is_ours = False
        if not is_ours:
            logger.warning(f"{path} is damaged or of another fit: fitting starts over")
            return
        with torch.no_grad():
            for layer, saved in zip(self.encoder + self.decoder, content["layers"], strict=True):
                for part, value in zip(layer, saved, strict=True):
                    part.copy_(value)
        self.optimizer.load_state_dict(content["optimizer"])
        self.codebooks, self.count, self.total = content["codebooks"], content["count"], content["total"]
        self.generator.set_state(content["generator"])
        self.epoch = content["epoch"]
        logger.info(f"resuming rq_vae after {self.epoch:,} of {count(self.num_epochs, 'epoch')}")


def _make_layers(widths: Sequence[int], generator: torch.Generator) -> list[Layer]:
    """He's initialization, which keeps the scale of vectors through ReLU."""
    layers = []
    for num_inputs, num_outputs in pairwise(widths):
        weight = torch.randn(num_inputs, num_outputs, generator=generator) * math.sqrt(2 / num_inputs)
        layers.append((weight.requires_grad_(), torch.zeros(num_outputs, requires_grad=True)))
    return layers


def _forward(layers: Sequence[Layer], rows: Tensor) -> Tensor:
    *hidden, (weight, bias) = layers
    for hidden_weight, hidden_bias in hidden:
        rows = F.relu(torch.addmm(hidden_bias, rows, hidden_weight))
    return torch.addmm(bias, rows, weight)


def _squared_error(rows: Tensor, others: Tensor) -> Tensor:
    """Mean over rows of the squared distance."""
    return (rows - others).square().sum(dim=1).mean()
