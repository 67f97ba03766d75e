"""One vocabulary for target and draft: the same token behind every id, and as many rows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase


def check_tokens(
    name: str, tokenizer: PreTrainedTokenizerBase, target_name: str, target_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Refuse a model whose ids mean other tokens than the target's.

    Raises:
        ValueError: with the number of ids that differ, and the first of them.
    """
    theirs = {number: token for token, number in tokenizer.get_vocab().items()}
    ours = {number: token for token, number in target_tokenizer.get_vocab().items()}
    shared = sorted(theirs.keys() & ours.keys())
    differ = [number for number in shared if theirs[number] != ours[number]]
    if differ:
        first = differ[0]
        raise ValueError(
            f"the tokenizers of {name} and {target_name} differ in {len(differ)} of {len(shared)} shared ids, first in"
            f" {first}: {theirs[first]!r} and {ours[first]!r}; a draft needs the target's tokens"
        )


def align(model: PreTrainedModel, name: str, tokens: int, size: int) -> None:
    """Give a model ``size`` rows of embeddings and of its head, in place.

    New rows are the mean of those there are: as an input a token of no particular meaning, as a guess never better than
    the best (the mean of logits). Rows behind the last token are padding and may be cut.

    Args:
        tokens: ids that the model's tokenizer uses.

    Raises:
        ValueError: it uses ids that the target does not have.
    """
    rows = model.get_input_embeddings().weight
    if tokens > size:
        raise ValueError(f"{name} uses {tokens} tokens, more than the target's {size} rows: no draft can be made of it")
    head = model.get_output_embeddings().weight
    embeddings = model.get_input_embeddings()  # which may do more than look up
    embeddings.weight, embeddings.num_embeddings = nn.Parameter(_resize(rows, size)), size
    wider = nn.Linear(head.shape[1], size, bias=False, device="meta")
    wider.weight = nn.Parameter(_resize(head, size))
    model.set_output_embeddings(wider)
    for config in {id(one): one for one in (model.config, model.config.get_text_config())}.values():
        config.vocab_size = size
        config.tie_word_embeddings = False


@torch.no_grad()
def _resize(rows: Tensor, size: int) -> Tensor:
    """Resize ``[rows, hidden]`` to ``[size, hidden]``."""
    if size <= len(rows):
        return rows[:size].clone()
    mean = rows.double().mean(dim=0).to(rows.dtype)
    return torch.cat([rows, mean.expand(size - len(rows), -1)])
