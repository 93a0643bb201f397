"""python -m recbole_diffgrm: the same as run_recbole_diffgrm.py and the command recbole-diffgrm."""

import sys

from recbole_diffgrm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
