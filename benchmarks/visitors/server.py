"""The page served by a process of its own, and its configuration once it answers."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, Final

import httpx
import psutil

from benchmarks.shared.command import free_port
from benchmarks.visitors.visitor import Handlers
from specllava.core.files import shipped
from specllava.core.limits import Limits

STARTING: Final = 300.0  # seconds that a server may take to serve, models included
CROWD: Final = Limits(  # all visitors share one address here
    runs_per_minute=10**6, calls_per_minute=10**6, events_per_minute=10**6, sessions_per_minute=10**6,
    uploads_per_minute=10**6,
)  # fmt: skip


@contextlib.contextmanager
def server(limits: Limits = CROWD) -> Iterator[tuple[str, psutil.Process]]:
    """Serve the page with the toy pair; yield its address and process.

    Args:
        limits: of the page.
    """
    port, app = free_port(), shipped("app.py")
    given = {one.name: getattr(limits, one.name) for one in fields(Limits)}
    changed = {name: value for name, value in given.items() if value != getattr(Limits(), name)}
    words = [word for name, value in changed.items() for word in (f"--limits.{name.replace('_', '-')}", str(value))]
    command = [sys.executable, str(app), "--port", str(port), *words]
    process = subprocess.Popen(command, cwd=app.parent, stdout=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}/", psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


async def config_of(client: httpx.AsyncClient, address: str) -> Mapping[str, Any]:
    """Return the configuration of a page once it is served."""
    deadline = time.monotonic() + STARTING
    while True:
        try:
            found = await client.get(f"{address}config")
            found.raise_for_status()
            config: Mapping[str, Any] = found.json()
            return config
        except httpx.HTTPError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.5)


async def handlers_of(client: httpx.AsyncClient, address: str) -> Handlers:
    """Return the handlers of a page once it is served."""
    return Handlers.of(await config_of(client, address))


async def until_ready(address: str) -> None:
    """Wait until a page is served and its models are loaded."""
    async with httpx.AsyncClient(timeout=STARTING) as client:
        await config_of(client, address)
        while (await client.get(f"{address}health")).json()["status"] == "loading":
            await asyncio.sleep(0.5)
