"""python run_recbole_diffgrm.py --help"""

import sys

from recbole_diffgrm.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
