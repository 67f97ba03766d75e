"""The page as a user starts it: ``python app.py`` with the shipped pair and the recorded examples."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.browser import FINISHED, VIEWPORT, Visit, new_page
from support.served_page import answer_of, free_port

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def address(browser: Any) -> Iterator[str]:  # without a browser no server is started
    port = free_port()
    command = [sys.executable, "app.py", "--port", str(port)]
    process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"})
    address = f"http://127.0.0.1:{port}/"
    try:
        answer_of(address, process)
        yield address
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def test_the_shipped_pair_races_on_the_page(browser: Any, address: str) -> None:
    page = new_page(browser, VIEWPORT, locale="en-GB")
    errors: list[str] = []
    hosts: set[str] = set()
    page.on("console", lambda message: errors.extend([message.text] if message.type == "error" else []))
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.goto(address)
    tab = Visit(page)
    page.wait_for_selector(".tree .main-svg")
    assert "recorded run" in tab.text(".origin") and "identical" in tab.text(".same")
    tab.wait("document.querySelector('.chip').textContent.includes('toy')")
    page.click("text=New scene")
    tab.run("Describe this image in detail.")
    tab.wait(FINISHED)
    page.click("[data-do=last]")
    lanes = [tab.text(f"[data-lane={lane}] .words").replace("■", "").split() for lane in ("target-only", "speculative")]
    assert lanes[0] == lanes[1] and len(lanes[0]) > 20
    assert float(tab.text("[data-total=tau]")) > 1.5
    assert not errors, errors
    assert hosts <= {urlsplit(address).netloc, ""}, hosts
