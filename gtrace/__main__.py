"""``python -m gtrace``."""

import sys

from gtrace.cli import main

if __name__ == "__main__":
    sys.exit(main())
