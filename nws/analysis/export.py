"""A small copy of a run: its configuration and the machine in half precision, to share."""

from pathlib import Path

from omegaconf import OmegaConf

from nws.errors import UserError
from nws.experiment.checkpoints import save_checkpoint
from nws.experiment.loading import LoadedRun
from nws.experiment.run import RunDirectory
from nws.files import check_folder, write_atomically

#: Of the checkpoint: what sampling and evaluating read.
KEPT = ("step", "total_steps", "finished", "best", "shape", "choices")


def export_run(run: LoadedRun, folder: Path) -> RunDirectory:
    """Write a small copy of a run to a new folder, a run directory with a checkpoint `best`.

    `load_run` chooses its checkpoint and weights. Parameters are in float16. No path of this
    machine is in it: the root of the data is as by default, and of your own images the file name
    alone stays.

    Raises:
        UserError: The folder is there already or cannot be written to, or a parameter is beyond
            float16.
    """
    folder = folder.expanduser().resolve()
    if folder.exists():
        raise UserError(f"{folder} is there already, nothing was changed; name a new folder")
    check_folder(folder)
    half = {name: each.half() for name, each in run.machine.state_dict().items()}
    if not all(bool(each.isfinite().all()) for each in half.values()):
        raise UserError(f"{run.directory.path}: a parameter is not finite in half precision")
    config = run.config.copy()
    OmegaConf.set_struct(config, False)
    if "root" in config.data:
        config.data.root = "${oc.env:NWS_DATA_ROOT,data}"
    if config.data.get("path") is not None:
        config.data.path = Path(str(config.data.path)).name
    text = OmegaConf.to_yaml(config)
    state = {key: run.state[key] for key in KEPT} | {"rows": [], "configuration": text}
    copy = RunDirectory(folder)
    save_checkpoint([copy.best], state | {"machine": {k: each.cpu() for k, each in half.items()}})
    write_atomically(copy.config, text.encode())
    return copy
