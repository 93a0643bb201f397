"""DiffGRM (WWW '26): options -> network -> noising (training) and decoding (ranking) -> model."""

from recbole_diffgrm.models.diffgrm.model import DiffGRM

__all__ = ["DiffGRM"]
