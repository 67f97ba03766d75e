"""The command ``python -m specllava generate``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from specllava.cli.options import (
    DecodingOptions,
    PairOptions,
    check_outputs,
    load_pair,
    with_fallback_drafter,
    write_json,
)
from specllava.config import DecodingConfig
from specllava.whole_file import write_whole


@dataclass(frozen=True)
class Generate:
    """Answer a question about a picture, speculatively."""

    image: Path
    """Picture file."""

    prompt: str
    """The question."""

    json: Path | None = None
    """Write token ids and text to this file."""

    trace: Path | None = None
    """Write the whole trace to this file."""

    pair: PairOptions = field(default_factory=PairOptions)
    decoding: DecodingOptions = field(default_factory=DecodingConfig)

    def run(self, console: Console) -> None:
        from specllava.models.images import read_size

        check_outputs(json=self.json, trace=self.trace)
        read_size(self.image)  # a missing picture is reported before a model is loaded
        pair = load_pair(self.pair)
        decoding = with_fallback_drafter(pair, self.decoding, fallback="none")
        # Without a trace file nobody reads what the target computed for every node: it is not recorded.
        trace = pair.generate(self.image, self.prompt, decoding, record=self.trace is not None)
        console.print(trace.text, markup=False, highlight=False)
        name = "target_only" if decoding.drafter == "none" else "speculative"
        write_json(self.json, {name: {"token_ids": list(trace.token_ids), "text": trace.text}})
        if self.trace:
            write_whole(self.trace, trace.to_json())
