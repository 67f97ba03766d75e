"""The chunked loss is the loss, in less memory; a step's mean is over its answer tokens, however they are dealt out."""

from __future__ import annotations

import math
import subprocess
import sys
import weakref
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from support.distilling import distillation_loss
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specllava.distill.config import LoopConfig, Objective
from specllava.distill.loop import fit
from specllava.distill.losses import IGNORE, chunked_cross_entropy, chunked_loss


class Allocations(TorchDispatchMode):
    """Bytes of all storages that operations make while it is active: the most at a time, and the largest."""

    def __init__(self):
        super().__init__()
        self.alive, self.now, self.peak, self.largest = set(), 0, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf.untyped_storage())
        return out

    def _count(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self.alive:
            return
        self.alive.add(key)
        self.now += size
        self.peak, self.largest = max(self.peak, self.now), max(self.largest, size)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key, size):
        self.alive.discard(key)
        self.now -= size


def setting(answers, hidden, vocabulary, seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    heads = torch.nn.Linear(hidden, vocabulary, dtype=dtype), torch.nn.Linear(2 * hidden, vocabulary, dtype=dtype)
    states = (
        torch.randn(answers, hidden, dtype=dtype, requires_grad=True),
        torch.randn(answers, 2 * hidden, dtype=dtype),
    )
    return states, heads, torch.randint(0, vocabulary, (answers,))


def whole(states, heads, wanted, weight, temperature):
    """The definition, all logits at once."""
    ours, theirs = heads[0](states[0]).float(), heads[1](states[1]).float().detach()
    ce = -F.log_softmax(ours, -1)[range(len(wanted)), wanted].mean()
    p, q = F.softmax(theirs / temperature, -1), F.softmax(ours / temperature, -1)
    kl = (p * (p.log() - q.log())).sum(-1).mean()
    return (1 - weight) * ce + weight * temperature**2 * kl


@pytest.mark.parametrize("seed", range(4))
def test_chunks_give_the_loss_and_the_gradients_of_the_whole(seed):
    answers, chunk = 1 + 7 * seed % 40, 1 + 5 * seed % 16
    weight, temperature = (0.0, 0.3, 1.0)[seed % 3], (1.0, 2.0, 0.7, 4.0)[seed % 4]
    states, heads, wanted = setting(answers, 6, 37, seed)
    expected = whole(states, heads, wanted, weight, temperature)
    leaves = (states[0], *heads[0].parameters())
    gradients = torch.autograd.grad(expected, leaves)
    loss, kl = chunked_loss(states[0], heads[0], states[1], heads[1], wanted, Objective(weight, temperature, chunk))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5, abs=1e-6)
    for ours, theirs in zip(torch.autograd.grad(loss, leaves), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    assert kl.item() == pytest.approx(whole(states, heads, wanted, 1.0, 1.0).item(), rel=1e-4, abs=1e-6)
    if weight == 0:
        alone = chunked_cross_entropy(states[0], heads[0], wanted, chunk)
        assert alone.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_target_gets_no_gradient():
    states, heads, wanted = setting(9, 4, 11)
    heads[1].requires_grad_(False)
    chunked_loss(states[0], heads[0], states[1], heads[1], wanted, Objective(chunk=4))[0].backward()
    assert heads[1].weight.grad is None
    assert states[0].grad is not None


def peaks(answers, chunk, vocabulary=8192):
    states, heads, wanted = setting(answers, 8, vocabulary)
    heads[1].requires_grad_(False)
    with Allocations() as seen:
        chunked_loss(states[0], heads[0], states[1], heads[1], wanted, Objective(0.5, 2.0, chunk))[0].backward()
    return seen


def test_memory_is_that_of_a_chunk_and_not_of_all_answers():
    vocabulary, chunk = 8192, 16
    piece = 4 * chunk * vocabulary  # bytes of a chunk's logits
    few, many = peaks(64, chunk), peaks(512, chunk)
    assert many.largest == piece  # no tensor holds the logits of more than a chunk
    assert many.peak < 13 * piece  # what its chain of log-softmaxes needs on the way back
    assert many.peak - few.peak < piece  # eight times the answers
    assert peaks(512, 512).peak > 5 * many.peak  # the measure sees what it should: all at once takes that much


def accumulated(tmp_path, batch, accumulation, rows=24):
    """Weights after learning the same rows in other portions; rows carry different numbers of answers."""
    source = torch.Generator().manual_seed(5)
    x = torch.randn(rows, 6, 4, generator=source)
    labels = torch.randint(0, 3, (rows, 6), generator=source)
    for row in range(rows):
        labels[row, : row % 5] = IGNORE
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 3)

    def batches(number):
        here = slice(number * batch, (number + 1) * batch)
        return {"x": x[here], "labels": labels[here]}

    def losses(module, batch):
        logits = module(batch["x"])
        return {"loss": distillation_loss(logits, torch.zeros_like(logits), batch["labels"], 0.5)[0]}

    def weigh(batch):
        return int((batch["labels"][:, 1:] != IGNORE).sum())

    loop = LoopConfig(
        steps=rows // batch // accumulation, learning_rate=0.05, warmup=1, accumulation=accumulation, clip=9.0
    )
    place = tmp_path / f"{batch} x {accumulation}"
    course = fit("test", model, losses, batches, loop, place, Accelerator(cpu=True), batch_weight=weigh)
    return model.weight.detach(), [point["loss"] for point in course.curve]


@pytest.mark.night
def test_freed_memory_goes_back_to_the_system():
    """In a process of its own: every tenth of many blocks is kept, so what lies between stays without it."""
    program = """
import psutil
from specllava.distill.loop import release_freed_memory
resident = psutil.Process().memory_info
blocks = [bytearray(100_000) for _ in range(5_000)]
kept = blocks[::10]
del blocks
before = resident().rss
release_freed_memory()
print(before - resident().rss)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0.8 * 0.9 * 5_000 * 100_000


def test_accumulation_means_a_larger_batch(tmp_path):
    reference, curve = accumulated(tmp_path, 12, 1)
    for batch, accumulation in ((6, 2), (3, 4), (4, 3), (1, 12)):
        weights, other = accumulated(tmp_path, batch, accumulation)
        torch.testing.assert_close(weights, reference, rtol=1e-5, atol=1e-7)
        assert other == pytest.approx(curve, rel=1e-5)


def test_a_running_mean_of_the_weights_is_what_the_run_ends_with(tmp_path):
    seen = []

    class Watch:
        def __call__(self, step, model, course):
            seen.append(model.weight.detach().clone())
            return False

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            pass

    def run(ema):
        seen.clear()
        torch.manual_seed(3)
        model = torch.nn.Linear(2, 1, bias=False)
        loop = LoopConfig(steps=6, learning_rate=0.1, warmup=0, ema=ema, validate_every=1)

        def losses(module, batch):
            return {"loss": module(batch["x"]).square().mean()}

        def batches(number):
            return {"x": torch.ones(1, 2) * (number + 1)}

        fit("t", model, losses, batches, loop, tmp_path / str(ema), Accelerator(cpu=True), Watch())
        return model.weight.detach(), list(seen)

    _, path = run(0.0)
    final, averages = run(0.9)
    mean = path[1]  # the first update copies
    for place, weights in enumerate(path[2:], start=2):
        mean = 0.9 * mean + 0.1 * weights
        torch.testing.assert_close(averages[place], mean)
    torch.testing.assert_close(final, mean)


def test_the_rate_rises_and_falls_to_nothing():
    loop = LoopConfig(steps=50, learning_rate=1.0, warmup=10)
    rates = [loop.rate(step) for step in range(51)]
    assert rates[:10] == pytest.approx([(n + 1) / 10 for n in range(10)])
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert math.isclose(rates[50], 0.0, abs_tol=1e-12)
