"""python -m spillway"""

import sys

from spillway.cli import main

if __name__ == "__main__":
    sys.exit(main())
