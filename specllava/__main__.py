"""``python -m specllava``, and the command ``specllava``."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C ends it in one line, also while it is being imported."""
    try:
        from specllava.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("specllava: stopped", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
