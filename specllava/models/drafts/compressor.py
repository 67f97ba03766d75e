"""SpecVLM's compressor of image tokens, and its gate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from specllava.models.options import CompressorConfig, OperatorName


def segments_of(slots: Tensor) -> list[tuple[int, int, int]]:
    """Cut a text into runs of image slots and what lies between; ``slots`` is ``[length]``.

    Returns:
        Begin, end and number of each segment in order: runs of slots are numbered from 1, text has number 0.
    """
    edges = torch.diff(F.pad(slots.to(torch.int8), (1, 1))).nonzero()[:, 0].tolist()  # begin, end, begin, end, …
    bounds = [0, *edges, len(slots)]
    cut = enumerate(pairwise(bounds))
    return [(begin, end, (index + 1) // 2 * (index % 2)) for index, (begin, end) in cut if begin < end]


class ImageAdaptor(nn.Module):
    """Cross-attention from learnt queries to the embeddings of a run of image slots; no positions, not causal."""

    def __init__(self, queries: int, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.q = nn.Parameter(torch.empty(queries, heads, width // heads))
        self.k_proj = nn.Linear(width, width, bias=bias)
        self.v_proj = nn.Linear(width, width, bias=bias)
        self.o_proj = nn.Linear(width, width, bias=False)
        nn.init.normal_(self.q, std=0.02)

    def forward(self, embeds: Tensor) -> Tensor:
        """Compress ``[slots, hidden]`` to ``[queries, hidden]``."""
        count, heads, size = self.q.shape
        keys, values = (made(embeds).view(1, -1, heads, size).transpose(1, 2) for made in (self.k_proj, self.v_proj))
        seen = F.scaled_dot_product_attention(self.q.transpose(0, 1)[None], keys, values)  # [1, heads, queries, size]
        gathered: Tensor = self.o_proj(seen[0].transpose(0, 1).reshape(count, heads * size))
        return gathered


class Operator(nn.Module, ABC):
    """Operator over the entries of one run, ``[slots, width]`` to ``[kept, width]``."""

    commutes = False  # it may be computed before a linear product as well as after it, with fewer rows to multiply

    def forward(self, entries: Tensor) -> Tensor:
        return self._compress(entries) if self.output_length(len(entries)) < len(entries) else entries

    @abstractmethod
    def output_length(self, slots: int) -> int:
        """Return the number of entries that it makes of a run, at most ``slots``."""

    @abstractmethod
    def _compress(self, entries: Tensor) -> Tensor:
        """Compress a run that becomes shorter."""


class ByRatio(Operator):
    """Operator that keeps one entry for ``ratio`` slots, and one for the rest."""

    def __init__(self, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio

    def output_length(self, slots: int) -> int:
        return -(-slots // self.ratio)


class Prune(ByRatio):
    """Keep evenly spaced entries; in training as many random ones, in order."""

    commutes = True

    def _compress(self, entries: Tensor) -> Tensor:
        slots, count = len(entries), self.output_length(len(entries))
        if self.training:
            return entries[torch.randperm(slots, device=entries.device)[:count].sort().values]
        middles = (2 * torch.arange(count, device=entries.device) + 1) * slots // (2 * count)
        return entries[middles]


class Pool(ByRatio):
    """Average neighbours, in windows as even as the slots allow: of 64 slots at ratio 20 four windows of 16."""

    commutes = True

    def _compress(self, entries: Tensor) -> Tensor:
        return F.adaptive_avg_pool1d(entries.t()[None], self.output_length(len(entries)))[0].t()


class Merge(ByRatio):
    """Merge what is most alike (ToMe, arXiv 2210.09461), as DyMU does in the tower (arXiv 2504.17040); no weights.

    In each round every other entry is matched with the likest of the rest, and the likest matches become their means.
    An entry weighs as many slots as it was made of; what remains keeps its order in the text.
    """

    def _compress(self, entries: Tensor) -> Tensor:
        count, sizes = self.output_length(len(entries)), entries.new_ones(len(entries), 1)
        while len(entries) > count:
            entries, sizes = _merged(entries, sizes, min(len(entries) - count, len(entries) // 2))
        return entries


def _merged(entries: Tensor, sizes: Tensor, fewer: int) -> tuple[Tensor, Tensor]:
    """Merge ``fewer`` of the entries in even places, ``[slots, width]``, into those in odd places; sizes likewise."""
    alike = F.normalize(entries.detach(), dim=-1)
    closest, partners = (alike[0::2] @ alike[1::2].t()).max(-1)
    gone = 2 * closest.argsort(descending=True, stable=True)[:fewer]
    totals = torch.cat([entries * sizes, sizes], dim=-1)
    totals = totals.index_add(0, 2 * partners[gone // 2] + 1, totals[gone])
    left = totals[torch.isin(torch.arange(len(entries), device=entries.device), gone, invert=True)]
    return left[:, :-1] / left[:, -1:], left[:, -1:]


class Conv(ByRatio):
    """Convolution with windows side by side; the last is filled up with copies of the last slot. Begins as an average.

    Such a convolution is one product of the windows' entries, ``[kept, ratio * width]``.
    """

    def __init__(self, ratio: int, width: int) -> None:
        super().__init__(ratio)
        self.weight = nn.Parameter(torch.eye(width).repeat(1, ratio) / ratio)  # [width, ratio * width]
        self.bias = nn.Parameter(torch.zeros(width))

    def _compress(self, entries: Tensor) -> Tensor:
        missing = -len(entries) % self.ratio
        filled = torch.cat([entries, entries[-1:].expand(missing, -1)])
        return F.linear(filled.reshape(self.output_length(len(entries)), -1), self.weight, self.bias)


class Resampler(Operator):
    """Attention from a few learnt queries to all entries of the run, one layer."""

    def __init__(self, queries: int, width: int, heads: int) -> None:
        super().__init__()
        self.queries = queries
        self.attention = ImageAdaptor(queries, width, heads, bias=False)

    def output_length(self, slots: int) -> int:
        return min(slots, self.queries)

    def _compress(self, entries: Tensor) -> Tensor:
        return self.attention(entries)  # type: ignore[no-any-return]


class TextOnly(Operator):
    """Drop the picture."""

    commutes = True

    def output_length(self, slots: int) -> int:
        return 0

    def _compress(self, entries: Tensor) -> Tensor:
        return entries[:0]


def build_operator(name: OperatorName, config: CompressorConfig, width: int, heads: int) -> Operator:
    """Build an operator over entries ``[slots, width]``, its attention with ``heads``."""
    build: dict[OperatorName, Callable[[], Operator]] = {
        "prune": lambda: Prune(config.prune_ratio),
        "pool": lambda: Pool(config.pool_ratio),
        "merge": lambda: Merge(config.merge_ratio),
        "conv": lambda: Conv(config.conv_ratio, width),
        "resampler": lambda: Resampler(config.queries, width, heads),
        "text": TextOnly,
    }
    return build[name]()


class Compressor(nn.Module):
    """One operator, or several and a gate that chooses one of them for a prompt.

    Args:
        state_width: of the target's state that the gate reads; ``None`` for a draft that reads none.

    Raises:
        ValueError: a gate without states to read.
    """

    def __init__(self, config: CompressorConfig, width: int, heads: int, state_width: int | None) -> None:
        super().__init__()
        if config.kind == "gate" and state_width is None:
            raise ValueError("a compressor's gate reads the target's states, and this draft reads none")
        self.names = config.branches if config.kind == "gate" else (config.kind,)
        self.operators = nn.ModuleDict({name: build_operator(name, config, width, heads) for name in self.names})
        self.temperature = config.temperature
        self.gate = None if config.kind != "gate" else nn.Linear(state_width or 0, len(self.names))

    def operator(self, name: OperatorName) -> Operator:
        """Return the operator of a name."""
        chosen = self.operators[name]
        assert isinstance(chosen, Operator)
        return chosen

    def choose(self, question: Tensor | None) -> dict[OperatorName, Tensor | None]:
        """Return the operators that a prompt's pictures go through, with the logarithm of their weight, if any.

        At inference that is one operator without a weight. In training a gate takes all, weighted by Gumbel-Softmax
        (arXiv 1611.01144). Added to the attention scores of an operator's entries, the logarithm makes them count
        that much, and all gradients flow.

        Args:
            question: the target's state of the prompt's last token, ``[state_width]``, which a gate needs.
        """
        if self.gate is None:
            return {self.names[0]: None}
        assert question is not None
        scores = self.gate(question.to(self.gate.weight.dtype))
        if not self.training:
            return {self.names[int(scores.argmax())]: None}
        noise = -torch.empty_like(scores).exponential_().log()
        weights = F.log_softmax((scores + noise) / self.temperature, dim=-1)
        return dict(zip(self.names, weights, strict=True))


def compressor_of_config(config: PretrainedConfig) -> Compressor | None:
    """Build the compressor that a draft's configuration asks for, if it does; a draft of states has a width of them.

    Raises:
        ValueError: see :class:`CompressorConfig` and :class:`Compressor`.
    """
    settings = getattr(config, "compressor", None)
    if settings is None:
        return None
    text, state = config.get_text_config(), getattr(config, "target_hidden_size", None)
    state_width = None if state is None else len(config.state_layers) * state
    return Compressor(CompressorConfig.of(settings), text.hidden_size, text.num_attention_heads, state_width)


def add_compressor(draft: PreTrainedModel, options: CompressorConfig, seed: int = 0) -> None:
    """Give a draft a new compressor, which has learnt nothing; ``seed`` is of its first weights."""
    draft.config.compressor = options.settings()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        draft.compressor = compressor_of_config(draft.config)
    draft.compressor.to(draft.device, draft.dtype)
