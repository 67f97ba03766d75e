"""Options of the page: its command line, and the environment that replaces it on a hosted Space. No torch."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from specllava.cli.options import PairOptions
from specllava.config import Limits

PRIVATE_NETWORKS: Final = "10.0.0.0/8,172.16.0.0/12,192.168.0.0/16"


@dataclass(frozen=True)
class PageOptions:
    """Watch lossless tree speculative decoding of a vision-language model."""

    running: PairOptions = field(default_factory=lambda: _pair_from_environment())

    host: str = field(
        default_factory=lambda: _from("GRADIO_SERVER_NAME") or ("0.0.0.0" if _from("SPACE_ID") else "127.0.0.1")
    )
    """Who may connect: GRADIO_SERVER_NAME; without it everybody on a hosted Space, otherwise this machine alone."""

    port: int = field(default_factory=lambda: int(_from("GRADIO_SERVER_PORT", "PORT") or 7860))
    """Where the page is served: GRADIO_SERVER_PORT or PORT, 7860 without them."""

    root_path: str = field(default_factory=lambda: _from("GRADIO_ROOT_PATH"))
    """Path or whole address under which a proxy shows the page, such as /demo: GRADIO_ROOT_PATH."""

    trusted_proxies: str = field(
        default_factory=lambda: _from("FORWARDED_ALLOW_IPS") or (PRIVATE_NETWORKS if _from("SPACE_ID") else "")
    )
    """Addresses and networks of proxies, with commas between, that are believed in X-Forwarded-For whom they speak for:
    FORWARDED_ALLOW_IPS; without it those of private networks on a hosted Space, otherwise none."""

    code: str = field(default_factory=lambda: _from("SPECLLAVA_CODE") or _space_files())
    """Address of the project's files, for the links Code and Docs: SPECLLAVA_CODE, on a hosted Space its own files."""

    drafts: tuple[str, ...] = ()
    """More drafts of the target for visitors to choose from, each loaded when it is first used: names of presets, ids
    of the hub, or directories."""

    open: Path | None = None
    """A race file to show first, in place of an example."""

    limits: Limits = field(default_factory=lambda: _limits())
    """What a visitor may ask for; each may also be set as SPECLLAVA_ and its name, such as SPECLLAVA_NEW_TOKENS."""


def _from(*names: str) -> str:
    """Return the first of these environment variables that is set."""
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _limits() -> Limits:
    """Return the limits that the environment sets, and the usual ones besides."""
    given: dict[str, Any] = {limit.name: _from(f"SPECLLAVA_{limit.name.upper()}") for limit in fields(Limits)}
    return Limits(**{name: value for name, value in given.items() if value})


def _pair_from_environment() -> PairOptions:
    """Return the pair that a hosted page, which has no command line, loads."""
    target, draft = _from("SPECLLAVA_TARGET") or None, _from("SPECLLAVA_DRAFT") or None
    return PairOptions(_from("SPECLLAVA_PRESET") or PairOptions.preset, target, draft)


def _space_files() -> str:
    space = _from("SPACE_ID")
    return f"https://huggingface.co/spaces/{space}/tree/main" if space else ""
