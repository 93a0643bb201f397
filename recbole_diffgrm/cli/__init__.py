from recbole_diffgrm.cli.main import main

__all__ = ["main"]
