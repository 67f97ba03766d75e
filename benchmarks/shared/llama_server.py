"""llama.cpp's server within this process, by the package xllamacpp: loading it, asking it, reading its times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from specllava.runtime.prompt import Prompt

PACKAGE: Final = "xllamacpp==2026.10.11549"
FOLDER: Final = ".venv/llama"  # apart from what everything else is tested with
CONTEXT: Final = 1024  # tokens of prompt and answer


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer and its time.

    Args:
        tokens: without the one that ends it.
        passes: of the target after that over the prompt.
        emitted: tokens of these passes.
        read, seconds: of the prompt's pass, and from then to the end.
    """

    tokens: tuple[int, ...]
    passes: int
    emitted: int
    read: float
    seconds: float


def check_installed() -> None:
    """Check that the package is there.

    Raises:
        ValueError: it is not; one line with the way out.
    """
    if find_spec("xllamacpp") is None:
        way = f"pip install --no-deps --target {FOLDER} {PACKAGE}"
        raise ValueError(f"llama.cpp is not installed: {way}, then PYTHONPATH={FOLDER}")


def load_server(
    gguf: Path, kind: str = "none", options: Mapping[str, int] = MappingProxyType({}), draft: Path | None = None
) -> Any:
    """Load llama.cpp on one thread.

    Args:
        kind: of speculation, with its options.
        draft: GGUF file of the draft, for kinds that have one.
    """
    import xllamacpp

    params, name = xllamacpp.CommonParams(), kind.replace("-", "_")
    params.model.path, params.n_ctx, params.verbosity = str(gguf), CONTEXT, -1
    for one in (params, params.speculative.draft):
        one.cpuparams.n_threads = one.cpuparams_batch.n_threads = 1
    if draft:
        params.speculative.draft.mparams.path = str(draft)
    params.speculative.types = [getattr(xllamacpp.common_speculative_type, f"COMMON_SPECULATIVE_TYPE_{name.upper()}")]
    for option, value in options.items():
        setattr(getattr(params.speculative, name), option, value)
    return xllamacpp.Server(params)


def ask(server: Any, limit: int, ends: frozenset[int], prompt: Prompt) -> Answer:
    """Let llama.cpp answer greedily, without its prompt cache.

    Args:
        limit: tokens of the answer at most.

    Raises:
        ValueError: it gave no answer, or read another number of tokens; one line.
    """
    asked = {"prompt": prompt.input_ids[0].tolist(), "max_tokens": limit, "cache_prompt": False}
    asked |= {"temperature": 0.0, "samplers": ["top_k"], "top_k": 1, "return_tokens": True, "verbose": True}
    reply = server.handle_completions(asked)
    times = reply.get("timings", {})
    if times.get("prompt_n") != prompt.length:
        raise ValueError(f"llama.cpp did not answer {prompt.length} tokens: {str(reply)[:160]}")
    emitted = times["predicted_n"] - 1  # the prompt's pass gives the first, and the time leaves it out as well
    passes = emitted - times.get("draft_n_accepted", 0)
    tokens = tuple(token for token in reply["__verbose"]["tokens"] if token not in ends)
    return Answer(tokens, passes, emitted, times["prompt_ms"] / 1e3, times["predicted_ms"] / 1e3)
