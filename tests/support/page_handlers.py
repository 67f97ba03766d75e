"""Handlers of the live page, as its configuration gives them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from support.visitor import Handlers


@dataclass(frozen=True, slots=True)
class Page:
    """Handlers of a page, by what visitors do."""

    config: Mapping[str, Any]
    run: Handlers
    runs: Mapping[str, Handlers]  # of the lab and of A against B, by the id of their card

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Page:
        """Find them in the page's configuration."""
        props = {part["id"]: part["props"] for part in config["components"]}
        runs: dict[str, Handlers] = {}
        for card in _nodes(config["layout"]):
            if "experiment" in _classes(props[card["id"]]):
                button = next(one["id"] for one in _nodes(card) if "lab-run" in _classes(props[one["id"]]))
                runs[props[card["id"]]["elem_id"]] = Handlers.of(config, button)
        return cls(config, Handlers.of(config), runs)

    def part(self, name: str) -> int:
        """Return the number of the first component with this id or class."""
        parts = self.config["components"]
        number: int = next(p["id"] for p in parts if name in (p["props"].get("elem_id"), *_classes(p["props"])))
        return number

    def handler(self, number: int | None, event: str) -> int:
        """Return the handler of a component's event, or, without a component, of the page's that sets most."""
        calls = [one for one in self.config["dependencies"] if one["backend_fn"]]
        if number is not None:
            found = [one for one in calls if [number, event] in one["targets"]]
        else:
            found = [one for one in calls if len(one["outputs"]) > 1 and any(of[1] == event for of in one["targets"])]
        handler: int = found[-1]["id"]
        return handler


def _nodes(tree: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for node in tree.get("children") or ():
        yield node
        yield from _nodes(node)


def _classes(props: Mapping[str, Any]) -> list[str]:
    return " ".join(props.get("elem_classes") or ()).split()
