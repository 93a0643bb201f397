"""python -m recbole_diffgrm.study"""

import sys

from recbole_diffgrm.cli.study import main

if __name__ == "__main__":
    sys.exit(main())
