"""``python -m gtrace``."""

import sys

from gtrace.commands.cli import main

if __name__ == "__main__":
    sys.exit(main())
