"""DiffGRM (Liu et al., WWW 2026): masked diffusion fills the digits of a semantic ID in any order.

options -> network -> noising (training) and decoding (ranking) -> model
"""
