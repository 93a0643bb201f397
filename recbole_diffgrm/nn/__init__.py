"""Building blocks of networks, in plain PyTorch: dropout, attention, Transformer layers, item embeddings."""
