"""What an engine runs: a language model or an EAGLE head. Both turn a batch of tokens into states and logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from transformers import LlamaModel, PreTrainedModel

from specllava.engine.cpu import PackedWeights
from specllava.engine.kv_cache import KVCache
from specllava.engine.llama_layers import Rotation, call, hooked, run_layer, run_norm
from specllava.models.drafts.eagle import DraftInputs, FeatureDraft
from specllava.models.families import family_of, find_family
from specllava.models.language_model import GROWING_ROPES, input_device
from specllava.prompt import Label, Prompt, merge_features, prompt_labels
from specllava.tree import DraftTree

Mask = Tensor | dict[str, Tensor] | None  # added to attention scores; by layer type where these differ


class Reduction(Protocol):
    """Summary of logits ``[rows, vocab]`` in a few float32 numbers ``[rows, width]``, which the host needs of a pass.

    It runs inside a captured pass, so it does not wait for the device. Equal reductions do the same operations.
    """

    @property
    def width(self) -> int: ...

    def __call__(self, logits: Tensor) -> Tensor: ...

    def __hash__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Tokens to append to a KV cache, a slot each: a chain, a level or a tree.

    Args:
        visible: ``[tokens, cached + tokens]``: slots that each token attends to; ``None``: all up to its own.
        positions: of each token in the text of the cache, without the engine's offset; ``None``: one after the other.
        last: score only that many tokens from the end; ``None``: all.
        states: hidden states before each token, ``[tokens, width]``, for an EAGLE head.
        drafted: these states are the draft's own, not the target's.
    """

    tokens: Sequence[int]
    visible: npt.NDArray[np.bool_] | None = None
    positions: Sequence[int] | None = None
    last: int | None = None
    states: Tensor | None = None
    drafted: bool = False

    @classmethod
    def of_tree(cls, tree: DraftTree, cached: int) -> Batch:
        """Build the pass that verifies a tree: nodes attend to the ``cached`` slots and to their ancestors."""
        if len(tree) == 1:
            return cls(tree.tokens)
        visible = np.ones((len(tree), cached + len(tree)), dtype=np.bool_)
        visible[:, cached:] = tree.ancestor_mask()
        return cls(tree.tokens, visible, [cached + depth for depth in tree.depths()])


def causal_mask(count: int, cached: int) -> npt.NDArray[np.bool_]:
    """Return the mask ``[count, cached + count]`` of tokens that see all cached slots and those up to their own."""
    return np.tri(count, cached + count, cached, dtype=np.bool_)


class PassInputs(NamedTuple):
    """Inputs of a pass on the device.

    Args:
        ids: ``[rows]``.
        positions: of each row with the engine's offset, as a slice where they are consecutive.
        mask: ``[1, 1, rows, window]``, 0 where a slot is visible; ``None`` for a row that sees all.
        states: that an EAGLE head fuses with the embeddings, ``[rows, width]``.
        drafted: these states are the draft's own, not the target's.
    """

    ids: Tensor
    positions: slice | Tensor
    mask: Mask
    states: Tensor | None = None
    drafted: bool = False


class LanguageModel:
    """Decoder and head of a target, or of a draft that reads tokens.

    A plain Llama is run layer by layer in fewer operations; any other decoder is called with a tree's mask.

    Args:
        capacity: positions to prepare rotations for.
        state_layers: hidden states to return, numbered as in transformers (0: embeddings, -1: the last, normed).
        packed: weights of a plain Llama's linear layers, and of any model's head.
    """

    drafted_states = (False,)  # values of ``drafted`` that passes come with

    def __init__(
        self,
        model: PreTrainedModel,
        capacity: int,
        state_layers: tuple[int, ...] = (),
        packed: PackedWeights | None = None,
    ) -> None:
        self.model, self.state_layers, self._packed = model, state_layers, packed
        self._linear = packed or call
        self.decoder, self.head = model.get_decoder(), model.get_output_embeddings()
        self.device, self.dtype, self.config = input_device(model), model.dtype, model.config.get_text_config()
        self.vocabulary, self.logits_dtype = self.config.vocab_size, model.dtype
        self.family = find_family(model.config)
        self._position_rows = 1 if self.family is None else self.family.position_rows
        self._rotations = _rotations(self.decoder, capacity, self.dtype)
        self._skipped = _modules_around(model, self.decoder)
        self.wrapped = False  # a module has a hook or a forward of its own, which a replayed pass would skip

    def begin(self) -> None:
        """Look at the model once more before an answer: its weights may have changed, or somebody has set a hook.

        Raises:
            ValueError: a hook that passes would not run, on a module around the decoder; one line that names it.
        """
        if module := next((module for module in self._skipped if hooked(module)), None):
            raise ValueError(
                f"{type(module).__name__} has a hook or a forward of its own, which decoding would skip: put it on the"
                " decoder, a layer or the head, or remove it"
            )
        self.wrapped = any(map(hooked, (*self.decoder.modules(), self.head)))
        if self._packed is not None:
            self._packed.refresh()

    def __call__(self, inputs: PassInputs, cache: KVCache) -> tuple[Tensor, Tensor | None]:
        """Run a pass; return normed states ``[rows, hidden]``, and those of ``state_layers``, ``[rows, width]``."""
        ids = inputs.ids[None]
        if type(self.decoder) is LlamaModel and not hooked(self.decoder):
            last, hidden = self._run_layers(ids, inputs, cache)
        else:
            output = self.decoder(
                input_ids=ids,
                attention_mask=inputs.mask,
                position_ids=self._position_ids(inputs.positions),
                past_key_values=cache,
                use_cache=True,
                output_hidden_states=bool(self.state_layers),
            )
            last, hidden = output.last_hidden_state, output.hidden_states
        return last[0], self.join_states(hidden)

    def logits(self, states: Tensor) -> Tensor:
        """Score next tokens ``[rows, vocab]``, on the device of the inputs; the head may be on another."""
        return self._linear(self.head, states).to(self.device)

    def join_states(self, hidden: Sequence[Tensor] | None) -> Tensor | None:
        """Join the states of ``state_layers``, ``[tokens, layers * hidden]``."""
        if not self.state_layers or hidden is None:
            return None
        return torch.cat([hidden[layer][0].to(self.device) for layer in self.state_layers], dim=-1)

    def _position_ids(self, positions: slice | Tensor) -> Tensor:
        """Return position ids ``[1, tokens]``, or ``[3, 1, tokens]`` for a family with three rows of positions."""
        if isinstance(positions, slice):
            positions = torch.arange(positions.start, positions.stop, device=self.device)
        ids = positions[None]
        return ids if self._position_rows == 1 else ids.expand(self._position_rows, 1, -1)

    def _run_layers(self, ids: Tensor, inputs: PassInputs, cache: KVCache) -> tuple[Tensor, list[Tensor]]:
        """Run a Llama's embedding, layers and norm: ``[1, tokens, hidden]``, and the states before each layer.

        On a CPU, the decoder's own bookkeeping and rotations are a good part of a pass of a draft of one layer.
        """
        states = self.decoder.embed_tokens(ids)
        if self._rotations is None:
            rotation = Rotation.of(*self.decoder.rotary_emb(states, position_ids=self._position_ids(inputs.positions)))
        else:
            rotation = Rotation(*self._rotations[:, :, inputs.positions])
        gathered = []
        for layer in self.decoder.layers:
            if self.state_layers:
                gathered.append(states)
            states = run_layer(layer, states, inputs.mask, rotation, cache, self._linear)
        final = run_norm(self.decoder.norm, states)
        return final, [*gathered, final]


class EagleHead:
    """A draft that reads hidden states: token embeddings fused with states in, states of its own out.

    Its text begins with token 1; see :class:`FeatureDraft`.

    Args:
        capacity: positions to prepare rotations for.
    """

    drafted_states = (False, True)
    state_layers = ()
    wrapped = False

    def __init__(self, model: FeatureDraft, capacity: int) -> None:
        self.model, self.config = model, model.config
        self.device, self.dtype = model.device, model.dtype
        self.vocabulary = model.config.vocab_size
        self.logits_dtype = model.dtype if model.config.own_head else model.shared.dtype
        self.image = torch.zeros(model.config.hidden_size, dtype=self.dtype, device=self.device)  # ViSpec's, or zeros
        self._table: Tensor | None = None  # of rotations; positions that pictures shift have no upper bound
        if model.config.mrope_section is None:
            with torch.inference_mode():
                self._table = torch.stack(model.rotations(torch.arange(capacity, device=self.device)[None]))

    def static_states(self, rows: int) -> dict[bool, Tensor]:
        """Allocate the states that a pass reads, ``[rows, width]``: by ``drafted`` the target's or the draft's own."""
        own = self.config.hidden_size
        target = len(self.config.state_layers) * int(self.config.target_hidden_size or own)
        return {
            False: torch.zeros((rows, target), dtype=self.model.shared.dtype, device=self.device),
            True: torch.zeros((rows, own), dtype=self.dtype, device=self.device),
        }

    def __call__(self, inputs: PassInputs, cache: KVCache) -> tuple[Tensor, Tensor]:
        """Run a pass: the draft's states ``[rows, hidden]``, twice, since later levels read them."""
        embeds = self.model.embed(inputs.ids)
        assert inputs.states is not None, "an EAGLE head reads states"
        fused = self.model.inputs(embeds, inputs.states, guessed=inputs.drafted, image=self.image)
        states: Tensor = self.model(fused[None], self._rotations(inputs.positions), inputs.mask, cache)[0]
        return states, states

    def logits(self, states: Tensor) -> Tensor:
        """Score next tokens ``[rows, vocab]``."""
        return self.model.logits(states)

    def prompt_rotations(self, entries: DraftInputs, start: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of a prompt's entries from ``start`` on."""
        if entries.rows is None:
            return self._rotations(torch.tensor(entries.positions[start:], device=self.device))
        return self.model.rotations(entries.rows[:, None, start:-1])

    def _rotations(self, positions: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines ``[1, rows, head_dim]`` of positions that are the same in all rows."""
        if self._table is not None:
            cosines, sines = self._table[:, :, positions]
            return cosines, sines
        if isinstance(positions, slice):
            positions = torch.arange(positions.start, positions.stop, device=self.device)
        return self.model.rotations(positions[None])


Decoder = LanguageModel | EagleHead


def unpaddable(model: PreTrainedModel) -> str | None:
    """Return why passes of a model cannot have fixed shapes; ``None`` if they can."""
    if isinstance(model, FeatureDraft):
        decoder, ends = model, (model.shared.embeddings, model.shared.head)
    else:
        decoder, ends = model.get_decoder(), (model.get_input_embeddings(), model.get_output_embeddings())
        if type(decoder) is not LlamaModel:
            return f"its decoder is a {type(decoder).__name__}"
    modules = [*decoder.modules(), *ends]
    if any(hasattr(module, "_hf_hook") for module in modules):
        return "accelerate moves its states between devices"
    if decoder.rotary_emb.rope_type in GROWING_ROPES:
        return f"its rotary embeddings are of type {decoder.rotary_emb.rope_type}"
    plain = {torch.Tensor, torch.nn.Parameter}
    if any(type(weight) not in plain or not weight.is_floating_point() for m in modules for weight in m.parameters()):
        return "its weights are quantised"
    return None


def prompt_entries(
    draft: FeatureDraft, target: PreTrainedModel, prompt: Prompt, states: Tensor
) -> tuple[DraftInputs, list[Label]]:
    """Return the entries of a prompt whose next token is unknown yet, and the label of each.

    Args:
        states: the target's, of all its tokens, ``[length, layers * hidden]``.
    """
    ids = prompt.input_ids[0]
    embeds = merge_features(target, prompt.input_ids, prompt.features)[0]
    entries = draft.entries(ids[1:], embeds[1:], states[:-1], question=states[-1])
    if draft.config.mrope_section is not None:
        entries = replace(entries, rows=_position_rows(target, prompt))
    labels = prompt_labels(target, ids.tolist(), prompt.features, prompt.image_keys)
    return entries, entry_labels(entries, labels)


def entry_labels(entries: DraftInputs, labels: Sequence[Label]) -> list[Label]:
    """Return the label of each entry: the text after the entry before it, up to its own position.

    So the first covers two tokens, and what follows a dropped picture depends on that picture. What an entry makes of a
    picture depends on the gate's choice too. A picture without a key equals none, as in the cache.

    Args:
        labels: of each token of the text: itself, or its picture's key.
    """
    own: list[Label] = []
    begin = 0
    for position in entries.positions:
        end = position + 2
        covered = labels[begin:end] or labels[end - 1 : end]
        begin = max(begin, end)
        words = all(isinstance(one, int) for one in covered)
        if None in covered or (words and len(covered) == 1):
            own.append(None if None in covered else covered[0])
        else:
            text = " ".join(f"{len(list(same))} x {one}" for one, same in groupby(covered))
            own.append(text if words or entries.choice is None else f"{text} {entries.choice}")
    return own


def _position_rows(target: PreTrainedModel, prompt: Prompt) -> Tensor:
    """Return the positions that the target gives a prompt's tokens in time, height and width, ``[3, length]``."""
    given = family_of(target.config).prefill_positions(target, prompt.input_ids, prompt.features)
    if given is None:
        return torch.arange(prompt.length, device=prompt.input_ids.device).expand(3, -1)
    return given.reshape(-1, prompt.length).expand(3, -1)


def _modules_around(model: nn.Module, decoder: nn.Module) -> list[nn.Module]:
    """Return the modules that contain the decoder, whose own ``forward`` passes do not call."""
    name = next(name for name, module in model.named_modules() if module is decoder)
    steps = name.split(".") if name else []
    return [model.get_submodule(".".join(steps[:count])) for count in range(len(steps))]


@torch.inference_mode()
def _rotations(decoder: PreTrainedModel, capacity: int, dtype: torch.dtype) -> Tensor | None:
    """Compute a :class:`Rotation` by position, ``[3, 1, capacity, head_dim]``; ``None`` where it depends on more."""
    if not isinstance(decoder, LlamaModel) or decoder.rotary_emb.rope_type in GROWING_ROPES:
        return None
    device = decoder.embed_tokens.weight.device
    if device.type == "meta":  # accelerate brings the weights when they are used
        return None
    positions = torch.arange(capacity, device=device)[None]
    like = torch.empty(0, dtype=dtype, device=device)
    return torch.stack(Rotation.of(*decoder.rotary_emb(like, position_ids=positions)))
