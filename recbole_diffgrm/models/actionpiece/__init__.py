"""ActionPiece (Hou et al., ICML 2025): tokens that depend on their context, made by merging features of items."""
