"""Quantizers: vectors to codes. `QUANTIZERS` maps each value of `sid_quantizer` to its class."""

from recbole_diffgrm.tokenizer.quantizers.base import QUANTIZERS, Nearest, Quantizer, register
from recbole_diffgrm.tokenizer.quantizers.product import OptimizedProductQuantizer, ProductQuantizer
from recbole_diffgrm.tokenizer.quantizers.random_codes import RandomCodes
from recbole_diffgrm.tokenizer.quantizers.residual_kmeans import ResidualKMeans
from recbole_diffgrm.tokenizer.quantizers.rq_vae import ResidualVAE
from recbole_diffgrm.tokenizer.quantizers.svd import BinnedFactors

register(OptimizedProductQuantizer)
register(ProductQuantizer)
register(ResidualKMeans)
register(ResidualVAE)
register(BinnedFactors)
register(RandomCodes)

__all__ = ["QUANTIZERS", "Nearest", "Quantizer", "register"]
