"""Machines of any graph: lateral layers, skip connections, masks, orders."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from cases import assert_close, by_autograd, row_weights, seeded
from torch import Tensor

from nws.analysis.evaluation import sums_of_dreams, sums_of_images
from nws.errors import UserError
from nws.learning import Rule, WakeSleep
from nws.learning.gradients import write_gradients
from nws.models import Gaussian, HelmholtzMachine, Poisson, exact_log_likelihood, log_likelihood
from nws.models.gibbs import GibbsChain
from nws.models.likelihood import all_values, summarise_p_star
from nws.models.masks import from_the_centre, local
from nws.models.sampling import ResamplingChain, generate, reconstruct, walk

SUMS = 1e-12  # float64
STANDARD_ERRORS = 4.5
SIZES = [4, 3, 2]
GRAPHS: dict[str, dict[str, Any]] = {
    "visible": {"generator": {"lateral": "visible"}},
    "hidden": {"generator": {"lateral": "hidden"}, "recognition": {"lateral": "hidden"}},
    "list": {"generator": {"lateral": [True, False, True]}, "skip": True}, "skip": {"skip": True},
    "own": {"generator": {"skip": True}, "recognition": {"mask": local}, "shape": (2, 2)},
    "all": {"generator": {"lateral": "all"}, "recognition": {"lateral": "all"}, "skip": True},
    "fields": {"generator": {"lateral": "visible"}, "mask": local, "shape": (2, 2)},
    "order": {"generator": {"lateral": "all"},
              "order": lambda sizes, at, _: torch.randperm(sizes[at], generator=seeded(at))},
    "bipolar": {"generator": {"lateral": "all"}, "skip": True, "units": "bipolar"},
    "gaussian": {"generator": {"lateral": "all"}, "visible": Gaussian(), "skip": True},
    "poisson": {"generator": {"lateral": "all"}, "visible": Poisson(), "skip": True},
}  # fmt: skip
graphs = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


@pytest.fixture(autouse=True)
def _blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of more than two units are drawn in several blocks."""
    monkeypatch.setattr("nws.models.lateral.BLOCK", 2)


def made(graph: dict[str, Any], sizes: list[int] = SIZES, scale: float = 1.5) -> HelmholtzMachine:
    return HelmholtzMachine(sizes, weight_scale=scale, rng=seeded(), **graph).double()


def slow_log_prob(machine: HelmholtzMachine, upward: bool, states: list[Tensor]) -> Tensor:
    """log p or log q of rows of states, unit by unit, with each unit's parents by hand."""
    network = machine.networks[upward]
    total = states[0].new_zeros(len(states[0]))
    for edge in network.edges:
        layer, family = edge.layer, machine.units[edge.child]
        values = family.decode(states[edge.child])
        parents = torch.cat([states[parent] for parent in edge.parents] or [values[:, :0]], dim=1)
        for unit in range(values.shape[1]):
            a = parents @ layer.weight[unit] + layer.bias[unit]
            y = values[:, unit]
            total = total + y * a - family.log_partition(a) + family.log_base(y)
    return total


@graphs
def test_a_trace_says_what_units_say_one_by_one(graph: dict[str, Any]) -> None:
    machine = made(graph)
    x = torch.rand(5, 4, generator=seeded(1), dtype=torch.float64)
    x = x if "visible" in graph and isinstance(graph["visible"], Gaussian) else x.round()
    for trace in (machine.wake(x, 3.0, seeded(2)), machine.dream(7, seeded(3))):
        again = machine.evaluate(trace.state_blocks, trace.samples)
        for network in machine.networks:
            slow = slow_log_prob(machine, network.upward, list(trace.state_blocks))
            for fast in (trace, again):
                assert (fast.layer_log_probs(network).sum(0) - slow).abs().max() < SUMS
            assert (network.log_prob(trace.state_blocks) - slow).abs().max() < SUMS


@pytest.mark.parametrize("graph", ["all", "order", "bipolar", "gaussian", "poisson"])
def test_a_block_is_drawn_as_unit_by_unit(graph: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, found = made(GRAPHS[graph], [50, 20, 10], scale=0.6), {}
    for block in (1, 7, 64):
        monkeypatch.setattr("nws.models.lateral.BLOCK", block)
        found[block] = machine.dream(30, seeded(3))
        assert_close(found[block].values, found[1].values)
        assert_close(found[block].generator_logits, found[1].generator_logits)


@pytest.mark.parametrize("graph", [GRAPHS[name] for name in ("all", "order", "bipolar", "fields")])
def test_draws_follow_p(graph: dict[str, Any]) -> None:
    machine, draws = made(graph), 40_000
    states = all_values(machine.units[-1], sum(SIZES)).double()
    blocks = machine.units[-1].encode(states).split(SIZES, dim=1)
    p = slow_log_prob(machine, False, list(blocks)).exp()
    assert abs(p.sum() - 1) < SUMS
    found = machine.dream(draws, seeded(4)).values
    codes = (found.long() * 2 ** torch.arange(sum(SIZES))).sum(1)
    order = (states.long() * 2 ** torch.arange(sum(SIZES))).sum(1)
    counts = torch.bincount(codes, minlength=len(p))[order].double() / draws
    error = (p * (1 - p) / draws).sqrt().clamp_min(1 / draws)
    assert ((counts - p) / error).abs().max() < STANDARD_ERRORS + 1  # of 512 states the worst
    # the control: p of another machine
    q = slow_log_prob(made(graph, scale=0.5), False, list(blocks)).exp()
    assert ((counts - q) / error).abs().max() > 3 * STANDARD_ERRORS


@pytest.mark.parametrize("graph", [g for g in GRAPHS.values() if "visible" not in g])
def test_likelihoods_by_enumeration_and_by_samples(graph: dict[str, Any]) -> None:
    machine = made(graph, scale=0.7)
    x = all_values(machine.units[0], 4).double()
    exact = exact_log_likelihood(machine, x)
    assert abs(exact.exp().sum() - 1) < SUMS
    found = log_likelihood(machine, x, 20_000, seeded(5))
    error = (1 / (found.ess * len(x))) ** 0.5
    assert abs(found.mean - exact.mean()) < STANDARD_ERRORS * error


@pytest.mark.parametrize("graph", [GRAPHS[name] for name in ("all", "order", "fields", "bipolar")])
def test_p_star_and_z_by_enumeration(graph: dict[str, Any]) -> None:
    machine, draws = made(graph, scale=0.7), 20_000
    states = all_values(machine.units[-1], sum(SIZES)).double()
    blocks = list(machine.units[-1].encode(states).split(SIZES, dim=1))
    log_p, log_q = (slow_log_prob(machine, upward, blocks) for upward in (False, True))
    x = all_values(machine.units[0], 4).double()
    which = (states[:, None, :4] == x).all(2).long().argmax(1)
    zeros = torch.zeros(len(x), dtype=torch.float64)
    roots = zeros.index_add(0, which, ((log_p + log_q) / 2).exp())  # of p~*
    p = zeros.index_add(0, which, log_p.exp())
    sums, dreams = sums_of_images(machine, x, draws, 0)[2], sums_of_dreams(machine, draws, 0)
    found = summarise_p_star(sums, draws, dreams, draws)
    z = roots.square().sum()
    assert z < 0.99  # the control: q is not the posterior
    assert abs(found.log_z - z.log()) < STANDARD_ERRORS * found.log_z_standard_error
    error = 2 * ((p / roots.square() - 1) / draws).sqrt()  # of 2 log of a mean of sqrt(w)
    wrong = 2 * (sums - math.log(draws) - roots.log())
    assert (wrong.abs() < STANDARD_ERRORS * error + 1e-6).all()


@graphs
def test_gradients_are_those_of_autograd(graph: dict[str, Any]) -> None:
    machine = made(graph)
    x = torch.rand(5, 4, generator=seeded(1), dtype=torch.float64)  # soft targets
    traces = machine.wake(x, 3, seeded(2)), machine.dream(7, seeded(3))
    terms = [(each, row_weights(len(each.values))) for each in traces]
    for network in machine.networks:
        write_gradients(network, terms)
        masks = {id(layer.weight): layer.mask for layer in network.layers}
        expected = by_autograd(network, terms)
        for parameter, gradient in zip(network.parameters(), expected, strict=True):
            mask = masks.get(id(parameter))
            assert_close(parameter.grad, gradient if mask is None else gradient * mask, SUMS)


def test_hidden_weights_stay_0_whatever_the_optimizer() -> None:
    machine = HelmholtzMachine(SIZES, **GRAPHS["all"], rng=seeded())
    learner = WakeSleep(machine, Rule("rws", samples=3), seeded())
    matrices = [each for each in machine.parameters() if each.ndim == 2 and each.numel()]
    optimizer = torch.optim.Muon(matrices, lr=0.1)  # it mixes the entries of a matrix
    learner.step(torch.ones(5, 4))
    optimizer.step()
    hidden = [(e.layer.weight, e.layer.mask) for net in machine.networks for e in net.edges]
    assert any((weight[mask == 0] != 0).any() for weight, mask in hidden if mask.numel())
    learner.after_step()
    assert all((weight[mask == 0] == 0).all() for weight, mask in hidden)


def test_drawn_masks_and_orders_are_saved_with_the_parameters() -> None:
    graph = GRAPHS["all"] | {
        "mask": lambda sizes, child, parent, _: (torch.rand(sizes[child], sizes[parent]) < 0.5) * 1,
        "order": lambda sizes, layer, _: torch.randperm(sizes[layer]),
    }
    trained, loaded = (made(graph, [30, 9]).generator.layers[0] for _ in range(2))
    assert not torch.equal(trained.mask, loaded.mask)  # the functions draw anew
    loaded.load_state_dict(trained.state_dict())
    assert torch.equal(loaded.mask, trained.mask) and torch.equal(loaded.order, trained.order)


def test_images_come_from_any_graph_or_an_error_says_why_not() -> None:
    machine = HelmholtzMachine(SIZES, **GRAPHS["all"], rng=seeded())
    x = torch.ones(3, 4)
    chain = ResamplingChain(machine, x, seeded())
    for images in (generate(machine, 3), reconstruct(machine, x), chain.step(), chain.x):
        assert images.shape == (3, 4) and ((images >= 0) & (images <= 1)).all()
    assert walk(machine, 2, 5, seeded()).shape == (2, 5, 4)
    with pytest.raises(UserError, match="resampling"):
        GibbsChain(machine, x)
    with pytest.raises(UserError, match="lateral"):
        ResamplingChain(machine, x, observed=torch.tensor([True, False, True, False]))


def test_reconstructed_pixels_do_not_look_at_the_image() -> None:
    """Pixels are drawn given h alone: a pixel that only repeats the one before it is still free."""
    machine = HelmholtzMachine([2, 1], generator={"lateral": "visible"}, rng=seeded())
    machine.generator.layers[0].weight.data.zero_()[1, 0] = 20.0
    machine.generator.layers[0].bias.data[1] = -10.0
    x = torch.ones(2_000, 2)
    off = (reconstruct(machine, x, seeded())[:, 1] < 0.5).float().mean()
    assert abs(off - 0.5) < STANDARD_ERRORS * 0.5 / len(x) ** 0.5  # as the first pixel was drawn
    assert (machine.wake(x).pixel_means[:, 1] > 0.99).all()  # the control


@pytest.mark.parametrize(("options", "message"), [
    ({"generator": {"lateral": [True]}}, "3 of true and false"),
    ({"generator": {"units": None}}, "must be one of lateral"),
    ({"mask": lambda *_: torch.ones(1, 1)}, "zeros and ones"),
    ({"mask": local, "shape": (4, 2)}, "needs images"),
    ({"generator": {"lateral": "all"}, "order": lambda *_: torch.zeros(4)}, "permutation"),
])  # fmt: skip
def test_a_graph_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises((UserError, TypeError), match=message):
        HelmholtzMachine(SIZES, **options)


def test_fields_and_orders() -> None:
    seen = local([16, 4, 3], child=0, parent=0, shape=(4, 4), width=3).view(4, 4, 4, 4)
    assert seen[0, 0].sum() == 4 and seen[1, 1].sum() == 9 and seen[1, 1, 2, 2] == 1
    up = local([16, 4, 3], child=1, parent=0, shape=(4, 4), width=3)
    assert torch.equal(local([16, 4, 3], child=0, parent=1, shape=(4, 4), width=3), up.T)
    assert (up.sum(0) > 0).float().mean() > 0.5  # the fields are spread over the image
    assert local([16, 4, 3], child=1, parent=2, shape=(4, 4)) is None
    alone = partial(local, [16, 4, 3], shape=(4, 4), width=3, lateral_only=True)
    assert torch.equal(alone(child=0, parent=0).view(4, 4, 4, 4), seen)
    assert all(alone(child=c, parent=p) is None for c, p in ((0, 1), (1, 0), (1, 1), (1, 2)))
    turn = from_the_centre([9, 2], 0, (3, 3))
    assert turn is not None and turn[0] == 4 and set(turn[-4:].tolist()) == {0, 2, 6, 8}
