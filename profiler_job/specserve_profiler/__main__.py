"""``python -m specserve_profiler``: what a Job runs (``job``), and all of ``specserve-profile`` where it is installed.

A Job has this package as a zip without the command line, so ``job`` needs nothing but what every engine image has.
"""

import sys

from specserve_profiler.session.console import own_streams


def main() -> int:
    """``job`` is run right here, all else is the command line's."""
    own_streams()
    if sys.argv[1:] == ["job"]:
        from specserve_profiler.session.job import run_job

        return run_job()
    try:
        from specserve_profiler.cli import main as command_line
    except ModuleNotFoundError as error:
        if error.name != "specserve_profiler.cli":
            raise
        sys.stderr.write("this copy of the profiler knows one command: python -m specserve_profiler job\n")
        return 2
    return command_line()


if __name__ == "__main__":
    sys.exit(main())
