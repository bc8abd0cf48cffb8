"""`python -m remuda.cli`: the same command by module name, for starting ourselves in the background."""

import sys

from remuda.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
