"""Recognition of errors by their words and classes: a full device, a panic of Rust, a missing extra. No torch."""

from __future__ import annotations

from typing import Final

PAGE: Final = ("gradio", "plotly", "networkx")  # packages of the extra ``page``
PAGE_HINT: Final = 'this draws, and what draws is not installed: pip install "specllava[page]"'
CLASSES: Final = ("OutOfMemoryError",)  # of torch, for every accelerator
WORDS: Final = ("can't allocate memory", "not enough memory", "cannot allocate memory", "unable to allocate")


def is_panic(error: BaseException) -> bool:
    """Check for a panic of Rust, such as of tokenizers over a regular expression; it is no ``Exception``."""
    return type(error).__name__ == "PanicException"


def broken_import(error: BaseException) -> str:
    """Return what an installed package raises while it is imported; empty for any other error."""
    cause = error.__cause__ if isinstance(error, ImportError) else None
    while cause is not None and cause.__cause__ is not None:
        cause = cause.__cause__
    return "" if cause is None else f"{type(cause).__name__}: {' '.join(str(cause).split())[:200]}"


def lacks_page(error: BaseException) -> bool:
    """Check for an import that failed because the extra ``page`` is not installed."""
    return isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in PAGE


def is_out_of_memory(error: BaseException) -> bool:
    """Check for an error of a device without free memory; torch's of a CPU are plain runtime errors."""
    if isinstance(error, MemoryError) or type(error).__name__ in CLASSES:
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(words in text for words in WORDS)
