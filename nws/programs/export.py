"""A small copy of a run, to share and to sample from: `nws export RUN FOLDER`."""

import argparse
from pathlib import Path

from nws.errors import UserError
from nws.experiment.invocation import command_line
from nws.files import check_folder, write_atomically
from nws.programs.options import machine_options, open_machine

#: Of the checkpoint: what sampling and evaluating read.
KEPT = ("step", "total_steps", "finished", "best", "shape", "choices")


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Write a small copy of a run: its configuration, and its machine in half "
        "precision. Sampling and evaluating take the folder as they take a run; no training goes "
        "on from it.",
        parents=[machine_options()],
    )
    add = parser.add_argument
    add("run", metavar="RUN", help="a run directory, as training prints it")
    add("folder", metavar="FOLDER", type=Path, help="a new folder")
    return parser.parse_args()


def run() -> None:
    """The program. A copy has no path of this machine: of your own images the name alone stays."""
    given = read_arguments()
    from omegaconf import OmegaConf

    from nws.experiment.checkpoints import save_checkpoint
    from nws.experiment.config import DATA_ROOT
    from nws.experiment.run import RunDirectory

    loaded, copy = open_machine(given.run, given), RunDirectory(given.folder.expanduser().resolve())
    if copy.path.exists():
        raise UserError(f"{copy.path} is there already, nothing was changed; name a new folder")
    check_folder(copy.path)
    half = dict(loaded.machine.cpu().half().state_dict())  # whole numbers stay
    if not all(bool(each.isfinite().all()) for each in half.values()):
        raise UserError(f"{loaded.directory.path}: a parameter is not finite in half precision")
    config = loaded.config.copy()
    if "root" in config.data:
        config.data.root = DATA_ROOT
    if config.data.get("path") is not None:
        config.data.path = Path(str(config.data.path)).name
    text = OmegaConf.to_yaml(config)
    state = {key: loaded.state[key] for key in KEPT} | {"rows": [], "configuration": text}
    save_checkpoint([copy.best], state | {"machine": half})
    write_atomically(copy.config, text.encode())
    print(f"{copy.best.stat().st_size:,} bytes; the machine is in half precision")
    print(f"look at it with\n  {command_line('sample', copy.path)}")
    print(copy.path)
