"""The natural gradient of any module, as an optimizer of torch.

The direction is (1 + alpha) (C + alpha I)^{-1} g, as everywhere in nws: a large alpha gives the
plain gradient g of the mean loss. C is the Fisher matrix or another `ModelCurvature`.
Sources: Amari 1998; Martens 2010 (truncated conjugate gradient, damping by the reduction ratio);
Pascanu & Bengio 2014 (steps of constant Kullback-Leibler divergence, metric on other data).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from nws.errors import Diverged, UserError, number, one_of
from nws.natural.damping import Damping
from nws.natural.modules.curvature import Inputs, Linearized, ModelCurvature
from nws.natural.modules.families import OutputFamily
from nws.natural.modules.sampled import Sampled
from nws.natural.operators import UnitFisher
from nws.natural.preconditioners import Unpreconditioned
from nws.natural.solvers import ConjugateGradient, Solver
from nws.natural.solvers.solver import IterativeSolver, move

LIMIT = 500  # iterations of the usual solver at most
#: Relative residual at which it stops: the relative error is at most some two or three times it.
RESIDUAL = 0.04


class NaturalGradient(torch.optim.Optimizer):
    """Natural gradient descent on -log p(y | x), the mean over a batch, for any module.

    The matrix is never formed. `step` computes loss, gradient, direction and step; nothing has to
    be called before it. Modules that mix examples or are random (batch normalisation, dropout) must
    be in evaluation mode.

    Args:
        model: The module.
        family: Of its outputs: `BernoulliLogits()`, `CategoricalLogits()` or `GaussianMean()`.
        params: The parameters to train, or groups of them with rates of their own; by default all
            of the model. Those that require no gradient stay as they are.
        lr: Step along the direction.
        damping: alpha: a number, a `Damping` with a schedule, or a `LevenbergMarquardt`.
        metric: "fisher"; "empirical", the second moment of the examples' gradients;
            "covariance", the same less their mean (TONGA); or "sampled", an unbiased estimate of
            the Fisher matrix, with options as `Sampled(...)`.
        solver: Any of nws.natural.solvers; by default conjugate gradient to a relative error of at
            most about 0.1 (in the norm of C + alpha I), measured by the residual in each step.
        kl: Nats, or None. With a number each step has half a squared length of lr^2 kl in the
            metric, which is its Kullback-Leibler divergence to second order.

    Examples:
        >>> from nws.natural import CategoricalLogits, NaturalGradient
        >>> rng = torch.manual_seed(0)
        >>> images, labels = torch.randn(64, 10), torch.arange(64) % 3
        >>> model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 3))
        >>> optimizer = NaturalGradient(model, CategoricalLogits(), lr=0.5, damping=0.1)
        >>> losses = [float(optimizer.step(images, labels)) for _ in range(20)]
        >>> losses[-1] < losses[0] / 2
        True
    """

    def __init__(
        self, model: nn.Module, family: OutputFamily, params: Iterable[Any] | None = None,
        lr: float = 1.0, damping: float | Damping = 0.1,
        metric: str | Sampled = "fisher", solver: Solver | None = None, kl: float | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(model, nn.Module) or not isinstance(family, OutputFamily):
            raise UserError("expected a module and the family of its outputs, CategoricalLogits()")
        params = model.parameters() if params is None else params
        super().__init__(params, {"lr": number("lr", lr, above=0)})
        self.kl = None if kl is None else number("kl", kl, above=0)
        self.model, self.family = model, family
        if not isinstance(metric, Sampled):
            one_of("metric", metric, ("fisher", "empirical", "covariance", "sampled"))
        self.metric = Sampled() if metric == "sampled" else metric
        own = self._parameters()
        if not own or not {id(each) for each in own} <= {id(each) for each in model.parameters()}:
            raise UserError("params must be parameters of the model that require a gradient")
        self.damping = (damping if isinstance(damping, Damping) else Damping(damping)).to(own[0])
        plain = Unpreconditioned()
        solver = solver or ConjugateGradient(LIMIT, tolerance=RESIDUAL, preconditioner=plain)
        if not isinstance(solver, Solver):
            raise UserError(f"solver must be an object such as Woodbury(), got {solver!r}")
        self.solver = solver
        self._step = 0

    def __getstate__(self) -> dict[str, Any]:
        """For copy.deepcopy; torch's own leaves out what is ours, this one a scheduler's `step`."""
        return {name: value for name, value in vars(self).items() if name != "step"}

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"] if p.requires_grad]

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, inputs: Inputs, targets: Tensor | None = None, metric_inputs: Inputs | None = None,
        metric_targets: Tensor | None = None,
    ) -> Tensor | None:  # fmt: skip
        """Take one step.

        Args:
            inputs: Of the model, (n, ...); a tuple of tensors for a model of several inputs.
            targets: Those of the family. Without them the gradient is what `.grad` holds, for a
                loss of your own.
            metric_inputs: Inputs that the metric is taken at: another batch, or unlabelled data; by
                default `inputs`.
            metric_targets: Their targets, which the Fisher matrix does without.

        Returns:
            The mean loss before the step in nats; None where no targets were given.

        Raises:
            UserError: For targets that do not fit, modules in training mode that must not be, or a
                step that is not finite, which is not taken.
        """
        _check_modes(self.model)
        self.damping.start_step(self._step)
        measures = self.damping.measures(self._step)
        own = Linearized(self.model, self._parameters(), inputs)
        loss, gradient = self._gradient(own, targets, measures)
        linear, labels = own, metric_targets
        if metric_inputs is not None:
            linear = Linearized(self.model, own.parameters, metric_inputs)
        elif metric_targets is None:
            labels = targets
        curvature = (
            self.metric.update(linear, self.family) if isinstance(self.metric, Sampled)
            else ModelCurvature(linear, self.family, self.metric, labels)
        )  # fmt: skip
        delta = self._delta(curvature, gradient)
        predicted = -(gradient * delta).sum()
        if measures:
            predicted -= curvature.quadratic(delta.view(curvature.shape)) / 2
        own.release()
        linear.release()
        if not delta.isfinite().all():
            raise Diverged("the step is not finite: look at inputs, targets and lr")
        torch._foreach_add_(own.parameters, own.parts(delta[0]))
        torch.clear_autocast_cache()  # of the weights before the step
        if measures and loss is not None and targets is not None:
            outputs = self.model(*own.inputs).to(own.parameters[0])
            after = self.family.loss(outputs, targets).mean()
            self.damping.compare(float(loss - after), float(predicted))
        self._step += 1
        return loss

    def _gradient(
        self, own: Linearized, targets: Tensor | None, measures: bool
    ) -> tuple[Tensor | None, Tensor]:
        """The mean loss and its gradient (1, d), or what `.grad` holds."""
        if targets is not None:
            losses = self.family.loss(own.outputs.to(own.parameters[0]), targets)
            errors = self.family.errors(own.outputs, targets)
            return losses.mean(), own.pull(errors / -len(errors))[None]
        found = [each.grad for each in own.parameters]
        if all(each is None for each in found):
            raise UserError("step needs targets, or a gradient in .grad: call backward() before it")
        if measures:
            raise UserError("this damping measures the family's loss: step needs targets")
        return None, own.flatten(found)[None]

    def _delta(self, curvature: ModelCurvature | UnitFisher, gradient: Tensor) -> Tensor:
        """The step (1, d)."""
        self.solver.factor(curvature, self.damping.alpha)
        found = self.solver.solve(gradient.view(curvature.shape)) * (1 + self.damping.alpha)
        direction = found.view_as(gradient)
        if self.kl is not None:
            length = curvature.quadratic(found).sqrt()  # 0: no such step is finite
            direction *= (2 * self.kl) ** 0.5 / length.where(found.any(), 1.0)
        groups = self.param_groups
        sizes = [sum(p.numel() for p in each["params"] if p.requires_grad) for each in groups]
        parts = zip(direction.split(sizes, dim=1), groups, strict=True)
        return torch.cat([part * -group["lr"] for part, group in parts], dim=1)

    def report(self) -> dict[str, float]:
        """Damping, and the iterations of the last solve where there were some (synchronises)."""
        own = {}
        if isinstance(self.solver, IterativeSolver):
            own["iterations"] = self.solver.used_iterations
        return self.damping.report() | own

    def state_dict(self) -> dict[str, Any]:
        """Everything that later steps depend on."""
        state = super().state_dict()
        state["natural"] = {
            "step": self._step,
            "damping": self.damping.state_dict(),
            "solver": self.solver.state_dict(),
            "metric": self.metric.state if isinstance(self.metric, Sampled) else {},
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        if "natural" not in state_dict:
            raise UserError("this state is of another optimizer than NaturalGradient")
        super().load_state_dict(state_dict)
        own = move(state_dict["natural"], self.damping.alpha)
        self._step = own["step"]
        self.damping.load_state_dict(own["damping"])
        self.solver.load_state_dict(own["solver"])
        if isinstance(self.metric, Sampled):
            self.metric.state = own["metric"]


def _check_modes(model: nn.Module) -> None:
    """Raise `UserError` for modules that mix the examples of a batch, or draw random numbers."""
    for name, module in model.named_modules():
        mixes = isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)
        share = module.p if isinstance(module, _DropoutNd) else getattr(module, "dropout", 0.0)
        draws = isinstance(module, nn.RReLU) or (isinstance(share, float) and share > 0)
        random = module.training and draws
        if mixes or random:
            what = "mixes the examples of a batch" if mixes else "is random"
            why = f"{what}, so that the model has no Fisher matrix of its own"
            part = f"{name or 'the model'} ({type(module).__name__})"
            raise UserError(f"{part} {why}: call .eval() on it, or leave it out")
