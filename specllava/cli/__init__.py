"""The command line: ``python -m specllava COMMAND``, a file per group of commands."""
