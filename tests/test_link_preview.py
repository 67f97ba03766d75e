"""What other sites show where the page is linked, and the links that the page itself has."""

from __future__ import annotations

import re
from html import unescape
from typing import Any
from urllib.parse import urlsplit

import pytest
from PIL import Image
from support.browser import Server, Visit, Visitor

from visual.page.middleware import PICTURE, PICTURE_SIZE, LinkPreview
from visual.player import markup
from visual.player.static_files import STATIC

TAG = r'<meta\s+(?:property|name)="([^"]+)"\s+content="([^"]*)"\s*/?>'


def document(headers: dict[str, str], root_path: str = "") -> str:
    scope: dict[str, Any] = {
        "type": "http", "method": "GET", "path": "/", "query_string": b"", "scheme": "http",
        "server": ("127.0.0.1", 7860), "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    gradios = (
        b'<html><head><meta\nproperty="og:title" content="Gradio" /><meta name="twitter:image" content="x" /></head>'
    )
    return LinkPreview(root_path).put_into(gradios + b"<body>og:title</body></html>", scope).decode()


@pytest.mark.parametrize(("headers", "root_path", "root"), [
    ({"host": "127.0.0.1:7860"}, "", "http://127.0.0.1:7860"),
    ({"host": "a.example"}, "/demo", "http://a.example/demo"),
    ({"host": "a.example", "x-forwarded-host": "b.example", "x-forwarded-proto": "https"}, "", "https://b.example"),
    ({"host": "a.example"}, "https://c.example/page", "https://c.example/page"),
])  # fmt: skip
def test_preview_addresses_are_absolute_and_of_the_request(headers: dict[str, str], root_path: str, root: str) -> None:
    tags = dict(re.findall(TAG, document(headers, root_path)))
    assert tags["og:url"] == f"{root}/"
    assert tags["og:image"].startswith(f"{root}/gradio_api/file=/") and PICTURE in tags["og:image"]
    assert unescape(tags["og:title"]) == markup.TITLE and tags["description"] == tags["og:description"] == markup.CLAIM
    assert "Gradio" not in document(headers, root_path) and document(headers, root_path).endswith(
        "<body>og:title</body></html>"
    )


def test_a_host_that_is_no_host_becomes_no_markup() -> None:
    assert "<script>" not in document({"host": 'a"><script>alert(1)</script>'})


def test_the_served_page_has_one_set_of_tags_and_its_picture(server: Server, tab: Visit) -> None:
    served = tab.page.request.get(server.address).text()
    names = [name for name, _ in re.findall(TAG, served) if name.startswith(("og:", "twitter:"))]
    assert len(names) == len(set(names)) and "og:image" in names and served.count("<title>") == 1
    assert served.index("og:title") < served.index("gradio_config")
    address = unescape(dict(re.findall(TAG, served))["og:image"])
    assert urlsplit(address).netloc == urlsplit(server.address).netloc
    answer = tab.page.request.get(address)
    assert answer.status == 200 and answer.headers["content-type"] == "image/png"


def test_the_picture_is_of_the_size_that_it_is_said_to_have_and_small() -> None:
    file = STATIC / PICTURE
    assert Image.open(file).size == PICTURE_SIZE and file.stat().st_size < 150_000


def test_links_open_in_a_new_tab(tab: Visit) -> None:
    links = tab.page.locator("#links a, #foot a")
    for link in links.all():
        assert link.get_attribute("target") == "_blank" and link.get_attribute("rel") == "noopener"
    assert [link.inner_text() for link in tab.page.locator("#links a").all()] == list(markup.PAPERS)
    assert all(name.endswith(" paper") for name in markup.PAPERS)
    assert "Apache" in tab.text("#foot")


def test_code_and_documentation_are_linked_where_their_address_is_known() -> None:
    made = markup.links("https://huggingface.co/spaces/a/b/tree/main")
    assert 'href="https://huggingface.co/spaces/a/b/tree/main"' in made and 'main/docs"' in made
    assert "Code" not in markup.links()


def test_the_first_tab_stop_skips_to_the_player(visit: Visitor) -> None:
    tab = visit("?example=race-1&step=2")
    tab.page.evaluate("document.activeElement.blur()")
    tab.page.keyboard.press("Tab")
    assert tab.page.evaluate("document.activeElement.textContent") == "Skip to the player"
    tab.page.keyboard.press("Enter")
    assert tab.page.evaluate("document.activeElement.matches('.stage')")
    tab.page.wait_for_url("**step=2")
    tab.page.keyboard.press("ArrowRight")
    assert tab.step() == 3
