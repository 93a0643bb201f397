"""python -m recbole_diffgrm.data"""

import sys

from recbole_diffgrm.cli.data import main

if __name__ == "__main__":
    sys.exit(main())
