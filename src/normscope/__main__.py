"""``python -m normscope`` is the ``normscope`` command."""

import sys

from normscope.cli import main

if __name__ == "__main__":
    sys.exit(main())
