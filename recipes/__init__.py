"""How the pairs that ship with the project were made: run from a clone, and no part of the package."""
