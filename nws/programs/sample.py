"""Draw images from a run: `python scripts/sample.py RUN [generate | inpaint | ...]`."""

import argparse
from pathlib import Path
from typing import Any

from nws.errors import UserError, number, positive_int
from nws.files import check_writable
from nws.programs.options import machine_options, open_machine

IMAGES = {"split": "test", "image": None}
CHAIN = {"chain": None, "samples": None}
#: The options of each WHAT that not all of them take, and their defaults.
OPTIONS: dict[str, dict[str, Any]] = {
    "generate": {"count": 64, "steps": 0, **CHAIN},
    "reconstruct": {"count": 32, **IMAGES},
    "inpaint": {"count": 24, **IMAGES, "mask": "bottom", "steps": 50, **CHAIN},
    "denoise": {"count": 24, **IMAGES, "noise": None, "samples": None},
    "chain": {"count": 16, "steps": 50, **CHAIN},
    "walk": {"count": 8, "steps": 16},
}
TAKEN_BY_SOME = {name for options in OPTIONS.values() for name in options}
DESCRIPTION = """Draw images from a run, finished or not.

generate     images drawn from the generator; --steps refines them by a Markov chain
reconstruct  held-out images above their reconstructions, from q to the states and back by p
inpaint      held-out images, what is left of them, the rest filled in by a Markov chain
denoise      held-out images, the same with turned pixels, and the means of p given these
chain        an animated GIF of a Markov chain from generated images, one step a frame
walk         a walk in the deepest layer: from a draw, a random unit flips in each step
"""


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[machine_options()],
    )  # fmt: skip
    add = parser.add_argument
    add("run", metavar="RUN", help="a run directory, as training prints it; or pretrained/digits")
    add("what", nargs="?", choices=list(OPTIONS), default="generate", help="default: generate")
    add("--count", type=int, help="images, or walks (default: 8 walks, 16 to 64 images)")
    add("--steps", type=int, help="of the chain (default 50) or of the walk (default 16)")
    kinds = "gibbs: exact for p*, the default for runs of bihm and nbihm; resampling: for p"
    add("--chain", choices=["gibbs", "resampling"], help=kinds)
    add("--samples", type=int, help="of resampling and of denoise (default 50)")
    taken = "what inpaint takes away: left, right, top, bottom (default), or a PNG, white there"
    add("--mask", help=taken)
    turned = "share of the pixels that denoise turns (default 0.1; 0 for images of your own)"
    add("--noise", type=float, help=turned)
    own = "for reconstruct, inpaint, denoise: images of your own, made grey and of the run's size"
    add("--image", type=Path, nargs="+", metavar="FILE", help=own)
    add("--split", choices=["test", "valid"], help="of the held-out images (default: test)")
    add("--seed", type=int, default=0, help="of the draws (default 0)")
    add("--columns", type=int, help="of the grid (default: as square as can be)")
    written = "file to write (default: RUN/images/, named after WHAT, the seed and these options)"
    add("--output", type=Path, help=written)
    given = parser.parse_args()
    fill_in(given)
    return given


def fill_in(given: argparse.Namespace) -> None:
    """Fill in the defaults of WHAT; refuse what it does not take, and numbers out of range."""
    own = OPTIONS[given.what]
    if given.what == "generate" and not given.steps and (given.chain or given.samples):
        raise UserError("--chain and --samples are for steps of a chain: give --steps")
    if given.image and (given.count or given.split):
        raise UserError("--count and --split are for held-out images, not for those of --image")
    for name in TAKEN_BY_SOME:
        if getattr(given, name) is None:
            setattr(given, name, own.get(name))
        elif name not in own:
            takers = ", ".join(what for what, options in OPTIONS.items() if name in options)
            raise UserError(f"--{name} is for {takers}; {given.what} does not take it")
    for name in ("count", "steps", "samples", "columns"):
        if getattr(given, name) is not None:
            positive_int(f"--{name}", getattr(given, name), int(own.get(name) != 0))
    positive_int("--seed", given.seed, minimum=0, maximum=2**63 - 1)
    if given.noise is not None:
        number("--noise", given.noise, least=0, most=1)


def file_name(given: argparse.Namespace) -> str:
    """The name of the file, with the options that differ from their defaults."""
    usual = {"checkpoint": "best", "weights": "plain", "columns": None, **OPTIONS[given.what]}
    parts = [given.what]
    for name, default in usual.items():
        if (value := getattr(given, name)) != default:
            text = "_".join(map(str, value if isinstance(value, list) else [value]))
            parts += [name, text.replace("/", "_")[-100:]]
    return f"{'_'.join(parts)}_seed_{given.seed}{'.gif' if given.what == 'chain' else '.png'}"


def run() -> None:
    given = read_arguments()
    from nws.analysis.drawing import Drawing
    from nws.experiment import pictures

    loaded = open_machine(given.run, given)
    usual = loaded.directory.images / file_name(given)
    path = given.output or usual
    check_writable(path)
    if path.suffix.lower() != usual.suffix:
        raise UserError(f"--output must name a {usual.suffix} file for {given.what}, got {path}")
    frames, caption = Drawing(given, loaded).draw()
    if given.what == "chain":
        pictures.save_gif(frames, path, caption)
    else:
        pictures.save_png(frames[0], path, caption)
    print(f"{caption}\n{path}\n{loaded.directory.path}")
