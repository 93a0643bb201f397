"""python -m recbole_diffgrm.tune"""

import sys

from recbole_diffgrm.cli.tune import main

if __name__ == "__main__":
    sys.exit(main())
