"""Spec-LLaVA from top to bottom, in one file: a draft guesses a tree of tokens, the target checks it in one pass.

    python examples/spec_llava.py --image assets/examples/2-story.png --question "Tell me a story about this picture."

It needs torch, transformers and Pillow alone, and prints every tree. The package adds other rules and drafts, sampling
and CUDA graphs (``docs/architecture.md``); its tokens and trees are these.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoProcessor, DynamicCache, LlavaForConditionalGeneration
from transformers.utils import logging

TOY = Path(__file__).resolve().parents[1] / "assets" / "toy"
DEPTH, NODES, WIDTH = 16, 20, 4  # levels of a tree, guesses that the target checks, nodes that grow per level
THRESHOLD, BRANCHES = 0.3, 3  # nats of entropy above which a node branches, and into how many children at most
FLOOR, ANSWER = -2.0, 160  # nats below which no branch is followed, and tokens of the answer at most


class Decoder:
    """A language model with its KV cache."""

    def __init__(self, llava: LlavaForConditionalGeneration) -> None:
        self.decoder, self.head, self.cache = llava.model.language_model, llava.lm_head, DynamicCache()

    def read(self, embeds: Tensor) -> Tensor:
        """Read a prompt ``[1, length, hidden]``; return the logits after it, ``[vocab]``."""
        output = self.decoder(inputs_embeds=embeds, past_key_values=self.cache)
        return self.head(output.last_hidden_state[0, -1])

    def forward(self, tokens: list[int], visible: Tensor, positions: list[int]) -> Tensor:
        """Append tokens that attend to the ``visible`` slots ``[tokens, slots]``; return logits ``[tokens, vocab]``."""
        mask = torch.zeros(visible.shape, dtype=self.head.weight.dtype).masked_fill(~visible, -torch.inf)
        ids, at = torch.tensor([tokens]), torch.tensor([positions])
        inputs = {"input_ids": ids, "position_ids": at, "attention_mask": mask[None, None]}
        return self.head(self.decoder(**inputs, past_key_values=self.cache).last_hidden_state[0])

    def keep(self, slots: list[int]) -> None:
        """Keep these slots of the cache, in this order; drop all others."""
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[:, :, slots], layer.values[:, :, slots]

    @property
    def length(self) -> int:
        return self.cache.get_seq_length()


@dataclass
class Tree:
    """A tree of guesses; node 0 is the root, the last emitted token, which no cache holds yet."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])
    scores: list[float] = field(default_factory=lambda: [0.0])  # log-probability of the path, in nats
    entropies: list[float | None] = field(default_factory=lambda: [None])  # of the draft after a node

    def add(self, token: int, parent: int, log_prob: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.scores.append(self.scores[parent] + log_prob)
        self.entropies.append(None)
        return len(self.tokens) - 1

    def path(self, node: int) -> list[int]:
        """The nodes from the root down to ``node``."""
        return [] if node < 0 else [*self.path(self.parents[node]), node]


def prompt_embeds(llava: LlavaForConditionalGeneration, ids: Tensor, features: Tensor) -> Tensor:
    """Put a picture's projected features into its slots of the prompt."""
    embeds = llava.model.language_model.embed_tokens(ids)
    slots = (ids == llava.config.image_token_id)[..., None].expand_as(embeds)
    return embeds.masked_scatter(slots, llava.model.multi_modal_projector(features))


def grow(draft: Decoder, unread: list[int], depth: int, eos: int) -> Tree:
    """Grow a tree below the last of ``unread``, one pass of the draft per level; nothing follows ``eos``.

    A node whose entropy is at most the threshold gets one child, an unsure one exp(entropy), rounded up.
    """
    text = draft.length + len(unread)  # slots of the text, up to the root
    tree, level, slot_of = Tree([unread[-1]]), [0], {0: text - 1}
    for number in range(depth):
        if number == 0:
            causal = torch.ones(len(unread), text, dtype=torch.bool).tril(draft.length)
            logits = draft.forward(unread, causal, list(range(draft.length, text)))[-1:]
        else:
            # The best nodes of the level that may still be among the best of the tree.
            best = heapq.nlargest(NODES, tree.scores[1:])
            floor = max(FLOOR, best[-1]) if len(best) == NODES else FLOOR
            level = heapq.nlargest(WIDTH, [n for n in level if tree.scores[n] >= floor], key=lambda n: tree.scores[n])
            if not level:
                break
            slot_of |= {node: draft.length + row for row, node in enumerate(level)}
            visible = torch.zeros(len(level), draft.length + len(level), dtype=torch.bool)
            visible[:, :text] = True
            for row, node in enumerate(level):
                visible[row, [slot_of[above] for above in tree.path(node)]] = True
            logits = draft.forward([tree.tokens[n] for n in level], visible, [text + number - 1] * len(level))
        new = []
        for node, row in zip(level, logits.log_softmax(-1), strict=True):
            tree.entropies[node] = entropy = float(-(row.exp() * row).sum())
            count = 1 if entropy <= THRESHOLD else min(BRANCHES, math.ceil(math.exp(entropy)))
            top = row.topk(count)
            new += [tree.add(int(t), node, float(p)) for p, t in zip(top.values, top.indices, strict=True)]
        level = [node for node in new if tree.tokens[node] != eos]
    return select(tree)


def select(tree: Tree) -> Tree:
    """Return the tree of its best guesses by the log-probability of their paths."""
    good = [node for node in range(1, len(tree.tokens)) if tree.scores[node] >= FLOOR]
    chosen = [0, *sorted(sorted(good, key=lambda node: (-tree.scores[node], node))[:NODES])]
    number = {node: index for index, node in enumerate(chosen)} | {-1: -1}
    tokens, scores, entropies = ([of[n] for n in chosen] for of in (tree.tokens, tree.scores, tree.entropies))
    return Tree(tokens, [number[tree.parents[n]] for n in chosen], scores, entropies)


def verify(target: Decoder, tree: Tree) -> tuple[list[int], int]:
    """Check a whole tree in one pass; return the accepted path, the root first, and the target's next token.

    Each node attends to the text and to its own ancestors. A child is accepted if it is the target's own choice.
    """
    text, count = target.length, len(tree.tokens)
    visible = torch.zeros(count, text + count, dtype=torch.bool)
    visible[:, :text] = True
    for node in range(count):
        visible[node, [text + above for above in tree.path(node)]] = True
    positions = [text + len(tree.path(node)) - 1 for node in range(count)]
    choices = target.forward(tree.tokens, visible, positions).argmax(-1).tolist()
    path = [0]
    for node in range(1, count):  # parents come before their children
        if tree.parents[node] == path[-1] and tree.tokens[node] == choices[path[-1]]:
            path.append(node)
    target.keep([*range(text), *(text + node for node in path)])
    return path, choices[path[-1]]


@torch.inference_mode()
def answer(
    image: Path, question: str, dtype: torch.dtype = torch.float32
) -> Iterator[tuple[Tree, list[int], list[int]]]:
    """Yield each step of an answer: its tree, the accepted path, and the tokens that it emits; first the root alone."""
    load = LlavaForConditionalGeneration.from_pretrained
    target, draft = load(TOY / "target", dtype=dtype), load(TOY / "draft", dtype=dtype)
    processor = AutoProcessor.from_pretrained(TOY / "target")
    chat = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    asked = processor.apply_chat_template(chat, add_generation_prompt=True)
    inputs = processor(text=asked, images=Image.open(image).convert("RGB"), return_tensors="pt")
    # The picture is encoded once, by the target's tower; each model projects the features for itself.
    tower = target.model.vision_tower(inputs["pixel_values"].to(dtype), output_hidden_states=True)
    features = tower.hidden_states[target.config.vision_feature_layer][:, 1:]
    big, small = Decoder(target), Decoder(draft)
    root = int(big.read(prompt_embeds(target, inputs["input_ids"], features)).argmax())
    small.read(prompt_embeds(draft, inputs["input_ids"], features))
    yield Tree([root]), [0], [root]
    unread, left, text, eos = [root], ANSWER - 1, small.length, target.generation_config.eos_token_id
    while left > 0 and root != eos:
        # The draft forgets its guesses; what was accepted is read with the next root.
        small.keep(list(range(text)))
        text += len(unread)
        tree = grow(small, unread, min(DEPTH, left - 1), eos)
        path, root = verify(big, tree)
        tokens = [*(tree.tokens[node] for node in path[1:]), root][:left]
        if eos in tokens:
            tokens = tokens[: tokens.index(eos) + 1]
        yield tree, path, tokens
        unread, left, root = tokens, left - len(tokens), tokens[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Answer a question about a picture, and print every tree.")
    parser.add_argument("--image", type=Path, default=TOY.parent / "examples" / "1-describe.png")
    parser.add_argument("--question", default="Describe this image in detail.")
    asked = parser.parse_args()
    logging.set_verbosity_error()
    tokenizer, emitted = AutoProcessor.from_pretrained(TOY / "target").tokenizer, []
    for step, (tree, path, tokens) in enumerate(answer(asked.image, asked.question)):
        print(f"\nstep {step}: {len(tree.tokens) - 1} guesses, {len(path) - 1} accepted")
        for node, token in enumerate(tree.tokens):
            mark, indent = "+" if node in path else " ", "  " * len(tree.path(node))
            unsure = "" if tree.entropies[node] is None else f"  entropy {tree.entropies[node]:.2f}"
            print(f"{mark}{indent}{tokenizer.decode([token])!r} {math.exp(tree.scores[node]):.2f}{unsure}")
        emitted += tokens
    print(f"\n{tokenizer.decode(emitted, skip_special_tokens=True)}")
    print(f"{len(emitted)} tokens in {step} passes of the target")


if __name__ == "__main__":
    main()
