"""python -m recbole_diffgrm.report"""

import sys

from recbole_diffgrm.cli.report import main

if __name__ == "__main__":
    sys.exit(main())
