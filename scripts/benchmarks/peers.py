"""The same updates as an RWS step of nws, as others take them: plain torch, and Pyro.

`benchmark.py peers` times them. Binary units alone.
"""

import argparse
import copy
import statistics
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.solvers import Row, interleaved
from benchmarks.steps import RATE, full_step, make_learner
from nws.learning import Rule, WakeSleep
from nws.models import HelmholtzMachine

Draw = Callable[[Tensor], Tensor]  # probabilities to bits


class TorchMachine(nn.Module):
    """A Helmholtz machine as one would write it with autograd, with the weights of ours."""

    def __init__(self, machine: HelmholtzMachine) -> None:
        super().__init__()
        top = list(machine.generator.parameters())[-1]  # the biases of the deepest layer
        pairs = list(pairwise(machine.sizes))
        self.p = nn.ModuleList(nn.Linear(above, below) for below, above in pairs)
        self.q = nn.ModuleList(nn.Linear(below, above) for below, above in pairs)
        self.top = nn.Parameter(top.detach().clone())
        self.to(top.device, top.dtype)
        for mine, theirs in ((self.p, machine.generator), (self.q, machine.recognition)):
            for linear, layer in zip(mine, theirs.layers, strict=False):
                linear.load_state_dict(layer.state_dict())

    def loss(
        self, x: Tensor, samples: int, dream_share: float, draw: Draw = torch.bernoulli
    ) -> Tensor:
        """The loss of reweighted wake-sleep of bits x (B, n_0), with K samples of each.

        p learns by importance weights, q to a share from dreams (0: there are none) and else from
        wake samples. `draw` makes bits of their probabilities.
        """
        h, log_q = x, x.new_zeros(())
        states = [x.repeat_interleave(samples, 0)]
        for layer in self.q:
            logits = layer(h)
            if h is x:  # once for each data point, not for each sample
                logits = logits.repeat_interleave(samples, 0)
            h = draw(torch.sigmoid(logits.detach()))
            log_q = log_q + log_prob(logits, h)
            states.append(h)
        log_p = log_prob(self.top.expand_as(h), h)
        for layer, below, above in zip(self.p, states, states[1:], strict=False):
            log_p = log_p + log_prob(layer(above), below)
        log_p, log_q = log_p.view(-1, samples), log_q.view(-1, samples)
        weights = torch.softmax((log_p - log_q).detach(), 1)
        loss = -(weights * log_p).sum(1).mean()
        loss = loss - (1 - dream_share) * ((weights - 1 / samples) * log_q).sum(1).mean()
        if dream_share:
            loss = loss - dream_share * self.log_prob_of_dreams(len(x) * samples, draw).mean()
        return loss

    def log_prob_of_dreams(self, rows: int, draw: Draw) -> Tensor:
        """log q(h | x) of draws (x, h) from p, (rows,)."""
        with torch.no_grad():
            states = [draw(torch.sigmoid(self.top).expand(rows, -1))]
            for layer in reversed(self.p):
                states.insert(0, draw(torch.sigmoid(layer(states[0]))))
        total = self.top.new_zeros(())
        for layer, below, above in zip(self.q, states, states[1:], strict=False):
            total = total + log_prob(layer(below), above)
        return total


def log_prob(logits: Tensor, bits: Tensor) -> Tensor:
    """log p of each row of bits, in float32 where logits are not."""
    logits, bits = (
        each.to(torch.promote_types(each.dtype, torch.float32)) for each in (logits, bits)
    )
    return -F.binary_cross_entropy_with_logits(logits, bits, reduction="none").sum(-1)


def torch_step(
    machine: HelmholtzMachine, x: Tensor, rule: Rule, precision: str
) -> Callable[[], object]:
    """A step of plain torch with fused Adam, as nws has it; in bfloat16 by autocast."""
    peer = TorchMachine(machine)
    optimizer = torch.optim.Adam(peer.parameters(), lr=RATE, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        with casts(x, precision):
            loss = peer.loss(x, rule.samples, rule.recognition_dream)
        loss.backward()
        optimizer.step()

    return step


def casts(x: Tensor, precision: str) -> torch.autocast:
    """Lines whose products are in bfloat16, where that is the precision."""
    return torch.autocast(x.device.type, torch.bfloat16, precision == "bfloat16")


def pyro_step(
    machine: HelmholtzMachine, x: Tensor, samples: int, precision: str
) -> Callable[[], object] | None:
    """A step of Pyro's ReweightedWakeSleep with fused Adam; None where Pyro is not installed.

    Its importance weights are of the whole batch, not of each data point: the same work as the
    others', for another update.
    """
    try:
        pyro, dist, infer = map(import_module, ("pyro", "pyro.distributions", "pyro.infer"))
        optim = import_module("pyro.optim")
    except ImportError:
        return None
    peer = TorchMachine(machine)

    def sample(name: str, logits: Tensor, bits: Tensor | None = None) -> Tensor:
        return pyro.sample(name, dist.Bernoulli(logits=logits).to_event(1), obs=bits)

    def model(observations: dict[str, Any]) -> None:
        pyro.module(f"peer in {precision}", peer)
        with pyro.plate("data", len(x)):
            h = sample(f"h{len(peer.p)}", peer.top.expand(len(x), -1))
            for number, layer in list(enumerate(peer.p))[:0:-1]:
                h = sample(f"h{number}", layer(h))
            sample("x", peer.p[0](h), observations["x"])

    def guide(observations: dict[str, Any]) -> None:
        pyro.module(f"peer in {precision}", peer)
        with pyro.plate("data", len(x)):
            h = observations["x"]
            for number, layer in enumerate(peer.q, 1):
                h = sample(f"h{number}", layer(h))

    pyro.clear_param_store()
    pyro.enable_validation(False)  # which would take time
    objective = infer.ReweightedWakeSleep(samples, insomnia=0.5, max_plate_nesting=1)
    svi = infer.SVI(model, guide, optim.Adam({"lr": RATE, "fused": True}), objective)
    return casts(x, precision)(partial(svi.step, observations={"x": x}))


def benchmark_peers(arguments: argparse.Namespace) -> list[Row]:
    """Steps with Adam of nws, plain torch and Pyro, with dreams (rws) and without (wake)."""
    tasks: dict[tuple[str, str, str], Callable[[], object]] = {}
    for precision in arguments.precisions:
        learner, x = make_learner(arguments, "rws", precision=precision)
        machine, samples = learner.machine, learner.rule.samples
        wake = Rule("wake", samples, recognition_wake=1.0, recognition_dream=0.0)
        for rule in (learner.rule, wake):
            copied = copy.deepcopy(machine)
            ours = WakeSleep(copied, rule, learner.rng, precision=learner.precision)
            tasks["nws", rule.name, precision] = full_step(ours, x, "adam")
            tasks["torch", rule.name, precision] = torch_step(machine, x, rule, precision)
        pyro = pyro_step(machine, x, samples, precision)
        if pyro is not None:
            tasks["pyro", "rws", precision] = pyro
    times = interleaved(tasks, arguments.repeats, torch.device(arguments.device))
    median = {task: statistics.median(values) for task, values in times.items()}
    rows = []
    for (peer, update, precision), values in times.items():
        ms = statistics.median(values)
        rows.append({
            "peer": peer, "update": update, "precision": precision, "ms": ms,
            "ms_quartiles": statistics.quantiles(values, n=4)[::2],
            "ratio_to_nws": ms / median["nws", update, precision],
        })  # fmt: skip
    return rows
