"""python -m recbole_diffgrm.serve"""

import sys

from recbole_diffgrm.cli.serve import main

if __name__ == "__main__":
    sys.exit(main())
