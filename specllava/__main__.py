"""``python -m specllava``."""

import sys

from specllava.cli import main

sys.exit(main())
