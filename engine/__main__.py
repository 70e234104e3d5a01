"""`python -m engine ...` is `freecfr ...`."""

import sys

from engine.cli import main

sys.exit(main())
