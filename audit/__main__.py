"""Arguments, output and exit status of nogil-audit."""

import sys


def main() -> int:
    print("nogil-audit: this version of freecfr comes without the checker", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
