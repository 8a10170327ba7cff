"""Draw the small worlds of information geometry."""

import argparse
from pathlib import Path

from nws.experiment.boundary import errors_for_people
from nws.files import check_folder, write_atomically
from nws.worlds.figures.render import WORLDS, facts, find_worlds, render, shown


def read_arguments() -> argparse.Namespace:
    listed = "\n".join(f"{name:20} {title}" for name, title in WORLDS.items())
    parser = argparse.ArgumentParser(
        description=f"Compute and draw small worlds of information geometry.\n\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="a world of this list, or all")
    parser.add_argument(
        "--output", type=Path, default=Path("worlds"), metavar="DIR",
        help="folder of the figures, one PNG file for each world (default: worlds)",
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    arguments = read_arguments()
    check_folder(arguments.output)
    for name in find_worlds(arguments.name):
        print(f"{name}: {WORLDS[name]}")
        for fact, value in facts(name).items():
            print(f"  {fact}: {shown(value)}")
        path = arguments.output / f"{name}.png"
        write_atomically(path, render(name))
        print(path)


def run() -> None:
    """The program: one message for a user's error."""
    with errors_for_people():
        main()
