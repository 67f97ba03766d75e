"""Chat templates: programs that come with a checkpoint, run in bounded time and memory.

A template that can write little more than its chat is rendered here: it reads, compares and joins what it is given.
Any other one, such as one that repeats strings or counts to a number, is rendered by a process with limits.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, Literal

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import ProcessorMixin

from specllava.core.bounded_process import own_environment
from specllava.models.checkpoints.text_processor import TextProcessor, plain_chat

Kind = Literal["messages", "parts"]  # the lists of a chat that a template may loop over
MOST_WRITTEN: Final = 2**28  # characters, as bounded by the template's syntax
LONGEST: Final = 2**18  # characters of a template; published ones have up to 20,000
WAIT: Final = 120.0  # seconds on the clock for the process, which has two on the processors
PROGRAM: Final = "specllava.models.checkpoints.chat_template_process"
PARTS: Final = ("content", "tool_calls")  # of a message: its lists, of which ours have the first
FILTERS: Final = frozenset(
    {
        "capitalize", "count", "d", "default", "first", "int", "last", "length", "list", "lower", "rejectattr",
        "selectattr", "string", "title", "tojson", "trim", "upper",
    }
)  # fmt: skip
METHODS: Final = frozenset(
    {"endswith", "get", "items", "keys", "lower", "lstrip", "rstrip", "split", "startswith", "strip", "title", "upper"}
)
PLAIN: Final = (
    nodes.Add, nodes.And, nodes.Assign, nodes.Break, nodes.Compare, nodes.Concat, nodes.CondExpr, nodes.Const,
    nodes.Continue, nodes.For, nodes.Getattr, nodes.Getitem, nodes.If, nodes.Keyword, nodes.List, nodes.Name,
    nodes.Neg, nodes.Not, nodes.NSRef, nodes.Operand, nodes.Or, nodes.Output, nodes.Scope, nodes.Slice, nodes.Sub,
    nodes.Template, nodes.TemplateData, nodes.Test, nodes.Tuple,
)  # fmt: skip


class _Generation(Extension):
    """transformers' tag around an assistant's message; its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@dataclass
class _Reader:
    """Reader of a template's syntax, which collects what bounds its output.

    Args:
        written: for each value and text that it writes, the loops over messages and over parts around it.
        longest: characters of the longest constant.
        joins: joined strings in assignments; each may double what a variable holds.
        kinds: of the variables, the list of the chat that they hold, or ``None``.
    """

    written: list[tuple[int, int]] = field(default_factory=list)
    longest: int = 0
    joins: int = 0
    kinds: dict[str, Kind | None] = field(
        default_factory=lambda: dict.fromkeys(("messages", "tools", "documents"), "messages")
    )

    def name_lists(self, template: nodes.Template) -> None:
        """Note which list each variable holds; one that holds different things holds none."""
        for one in [*template.find_all(nodes.Assign)] * 2:  # twice: a variable may hold what a later one held
            if isinstance(one.target, nodes.Name):
                kind = self._kind(one.node)
                same = self.kinds.setdefault(one.target.name, kind) == kind
                self.kinds[one.target.name] = kind if same else None

    def read(self, node: nodes.Node, loops: tuple[int, int] = (0, 0), assigned: bool = False) -> bool:
        """Read a node and what it contains; false where its cost does not follow from the chat's."""
        match node:
            case nodes.Const(value=str(text)) | nodes.TemplateData(data=text):
                self.longest = max(self.longest, len(text))
            case nodes.For():
                return self._loop(node, loops)
            case nodes.Assign():
                return self._assignment(node, loops)
            case nodes.Mod():
                return _is_turn(node)
            case nodes.Filter(name="tojson"):
                if node.args or node.kwargs:
                    return False
            case nodes.Filter():
                if node.name not in FILTERS:
                    return False
            case nodes.Call():
                if not _is_plain_call(node):
                    return False
            case _ if not isinstance(node, PLAIN):
                return False
        if isinstance(node, nodes.Output | nodes.Add | nodes.Concat):
            self.written += [loops for _ in node.iter_child_nodes()]
        if assigned and isinstance(node, nodes.Add | nodes.Concat):
            self.joins += sum(1 for _ in node.iter_child_nodes()) - 1
        return all(self.read(one, loops, assigned) for one in node.iter_child_nodes())

    def _loop(self, node: nodes.For, loops: tuple[int, int]) -> bool:
        kind = self._kind(node.iter)
        if kind is None or node.recursive or not isinstance(node.target, nodes.Name):
            return False
        if self.kinds.get(node.target.name) is not None:
            return False
        inner = (loops[0] + (kind == "messages"), loops[1] + (kind == "parts"))
        outer = [node.iter, *node.else_]
        within = [*node.body, *([] if node.test is None else [node.test])]
        return all(self.read(one, loops) for one in outer) and all(self.read(one, inner) for one in within)

    def _assignment(self, node: nodes.Assign, loops: tuple[int, int]) -> bool:
        target, value = node.target, node.node
        if isinstance(target, nodes.NSRef):  # which outlives a loop's rounds: it may count, and grow by nothing else
            counted = isinstance(value, nodes.Add) and _is_number(value.right)
            joined = isinstance(value, nodes.Add | nodes.Concat) or any(value.find_all((nodes.Add, nodes.Concat)))
            return target.attr not in PARTS and (counted or not joined) and self.read(value, loops)
        named = isinstance(target, nodes.Name) and target.name != "loop"
        return named and self.read(value, loops, assigned=True)

    def _kind(self, node: nodes.Node) -> Kind | None:
        """Return which list of the chat an expression is, or ``None``."""
        match node:
            case nodes.Name(name=name):
                return self.kinds.get(name)
            case nodes.Getitem(node=whole, arg=nodes.Slice()):
                return self._kind(whole)
            case nodes.Getitem(arg=nodes.Const(value=name)) | nodes.Getattr(attr=name) if name in PARTS:
                return "parts"
            case nodes.CondExpr(expr1=one, expr2=nodes.Node() as other):
                return self._kind(one) if self._kind(one) == self._kind(other) else None
            case nodes.Filter(node=nodes.Node() as whole, name="selectattr" | "rejectattr" | "list"):
                return self._kind(whole)
        return None


def _is_number(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, int)


def _is_turn(node: nodes.Mod) -> bool:
    """Check for ``loop.index0 % 2``: of a text, ``%`` would write as many spaces as the text asks for."""
    match node.left:
        case nodes.Getattr(node=nodes.Name(name="loop"), attr="index" | "index0"):
            return _is_number(node.right)
    return False


def _is_plain_call(node: nodes.Call) -> bool:
    """Check for a call that returns no more than it is given."""
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        return False
    match node.node:
        case nodes.Name(name="raise_exception"):
            return True
        case nodes.Name(name="namespace"):
            return not node.args and all(one.key not in PARTS for one in node.kwargs)
        case nodes.Name(name="strftime_now"):
            return all(isinstance(one, nodes.Const) and len(str(one.value)) < 40 for one in node.args)
        case nodes.Getattr(attr=name):
            return name in METHODS
    return False


@lru_cache(maxsize=16)
def _read(template: str) -> _Reader | None:
    """Read a template; ``None`` for one that is rendered apart."""
    environment = ImmutableSandboxedEnvironment(extensions=[_Generation, "jinja2.ext.loopcontrols"])
    reader = _Reader()
    try:
        parsed = environment.parse(template)
        reader.name_lists(parsed)
        return reader if reader.read(parsed) else None
    except (TemplateError, RecursionError, ValueError):  # whatever it is, the process finds the same
        return None


def is_bounded(template: str, chat: Sequence[dict[str, Any]], special: object) -> bool:
    """Check whether a template can write at most :data:`MOST_WRITTEN` characters of a chat, by its syntax.

    Args:
        special: the tokenizer's special tokens, which it may write too.
    """
    reader = _read(template)
    if reader is None:
        return False
    rounds = len(chat), max((len(message["content"]) for message in chat), default=0)
    most = sum(rounds[0] ** messages * rounds[1] ** parts for messages, parts in reader.written)
    each = max(reader.longest, len(json.dumps([chat, special], default=str)))
    return bool(most * each * 2**reader.joins <= MOST_WRITTEN)


def apply_template(
    processor: ProcessorMixin, chat: Sequence[dict[str, Any]], name: str, add_generation_prompt: bool = True
) -> str:
    """Write a chat by the template of the model called ``name``; each content is a list of parts, of a text its text.

    Raises:
        ValueError: the template fails, or takes more time or memory than a chat is worth.
    """
    template, special = processor.chat_template, processor.tokenizer.special_tokens_map
    if isinstance(processor, TextProcessor):
        chat = plain_chat(chat)
    if isinstance(template, dict):
        template = template.get("default")
    if isinstance(template, str) and len(template) > LONGEST:
        raise ValueError(f"the chat template of {name} has {len(template):,} characters: at most {LONGEST:,} are read")
    if isinstance(template, str) and not is_bounded(template, chat, special):
        return _render(json.dumps([template, chat, special, add_generation_prompt], default=str), name)
    try:
        return str(processor.apply_chat_template(chat, add_generation_prompt=add_generation_prompt))
    except Exception as error:  # whatever that program raises
        why = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise ValueError(f"the chat template of {name} fails: {why}") from error


@lru_cache(maxsize=16)
def _render(asked: str, name: str) -> str:
    """Render a template in a process of its own, as :data:`PROGRAM` reads it."""
    environment = own_environment() | {"OPENBLAS_NUM_THREADS": "1"}  # each would take address space
    command = [sys.executable, "-m", PROGRAM]
    try:
        ended = subprocess.run(
            command, input=asked.encode(), capture_output=True, timeout=WAIT, env=environment, check=False
        )
        answer = json.loads(ended.stdout) if ended.returncode == 0 else None
    except subprocess.TimeoutExpired:
        answer = None
    if answer is None:
        raise ValueError(
            f"the chat template of {name} takes more than two seconds or a gigabyte to write a chat: see whether it is"
            " the model's own"
        )
    if "error" in answer:
        raise ValueError(f"the chat template of {name} fails: {answer['error']}")
    return str(answer["text"])
