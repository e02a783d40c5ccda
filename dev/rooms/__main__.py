"""``python -m rooms``: write the rooms into docs/architecture.md, check that they are right there, or count lines."""

import argparse
import sys

from rooms.draw import BEGIN, END, lines_of_code, section
from rooms.read import ROOT

PAGE = ROOT / "docs" / "architecture.md"


def main() -> int:
    """Exit code 1 where ``check`` finds another picture than the imports make."""
    parser = argparse.ArgumentParser(prog="python -m rooms", description=__doc__)
    parser.add_argument("what", choices=["write", "check", "count"])
    what = parser.parse_args().what
    if what == "count":
        print(lines_of_code())
        return 0
    text = PAGE.read_text()
    before, found = text.partition(BEGIN)[::2]
    right = before + section() + found.partition(END)[2]
    if what == "write":
        PAGE.write_text(right)
    elif text != right:
        sys.stderr.write(
            f"{PAGE.relative_to(ROOT)}: the rooms are others now: run `make rooms` and read the difference\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
