"""`python -m murmurate`: the command, where no script is installed."""

import sys

from murmurate.programs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
