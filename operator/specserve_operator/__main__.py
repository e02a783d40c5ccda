"""``python -m specserve_operator``."""

import sys

from specserve_operator.main import cli

if __name__ == "__main__":
    sys.exit(cli())
