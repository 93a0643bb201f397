"""python -m recbole_diffgrm.tokenizer"""

import sys

from recbole_diffgrm.cli.tokenizer import main

if __name__ == "__main__":
    sys.exit(main())
