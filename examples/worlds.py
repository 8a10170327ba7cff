"""Compute and draw small worlds of information geometry: `python examples/worlds.py NAME|all`."""

import argparse
from importlib import import_module
from pathlib import Path

from small_worlds.drawing import as_png, styled

from nws.errors import UserError
from nws.experiment.boundary import errors_for_people
from nws.files import check_folder, write_atomically

#: the worlds in the order of the documentation; each is a module of small_worlds/
WORLDS = {
    "two_bits": "stochastic relaxation on two bits",
    "gaussian_relaxation": "stochastic relaxation by Gaussians",
    "relaxation": "stochastic relaxation with formulas and from samples",
    "rosenbrock": "Rosenbrock's function as least squares, and units of measure",
    "divergences": "distances of functions, and Bregman divergences",
    "online": "online maximum likelihood, and mirror descent",
    "unit_balls": "steepest descent in Mahalanobis metrics",
    "sampled": "the metric of a module from sampled outputs",
    "univariate_gaussian": "the geometry of the univariate Gaussian",
    "riemannian": "steps along geodesics and straight lines",
    "empirical_fisher": "true and empirical Fisher matrix",
    "autoencoder": "an autoencoder of one hidden unit",
}


def facts(name: str) -> dict[str, float]:
    """The numbers of a world."""
    found: dict[str, float] = import_module(f"small_worlds.{name}").facts()
    return found


def render(name: str) -> bytes:
    """The figure of a world, a PNG file."""
    with styled():
        return as_png(import_module(f"small_worlds.{name}").draw())


def shown(value: float) -> str:
    """A number as the pages and the program show it: three digits; rounding errors are 0."""
    if abs(value) < 1e-9:
        return "0"
    return f"{value:,.0f}" if value % 1 == 0 or abs(value) >= 1000 else f"{value:.3g}"


def read_arguments() -> argparse.Namespace:
    listed = "\n".join(f"{name:20} {title}" for name, title in WORLDS.items())
    parser = argparse.ArgumentParser(
        description=f"Compute and draw small worlds of information geometry.\n\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", metavar="NAME", nargs="+", help="worlds of this list, or all")
    parser.add_argument(
        "--output", type=Path, default=Path("worlds"), metavar="DIR",
        help="folder of the figures, one PNG file for each world (default: worlds)",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    names = list(WORLDS) if "all" in arguments.names else arguments.names
    unknown = [name for name in names if name not in WORLDS]
    if unknown:
        raise UserError(f"a world must be one of {', '.join(WORLDS)}, or all, got {unknown[0]!r}")
    check_folder(arguments.output)
    for name in names:
        print(f"{name}: {WORLDS[name]}")
        for fact, value in facts(name).items():
            print(f"  {fact}: {shown(value)}")
        path = arguments.output / f"{name}.png"
        write_atomically(path, render(name))
        print(path)


if __name__ == "__main__":
    with errors_for_people():
        main()
