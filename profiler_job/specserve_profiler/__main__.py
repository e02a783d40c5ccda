"""``python -m specserve_profiler``: the same as ``specserve-profile``."""

import sys

from specserve_profiler.cli import main

sys.exit(main())
