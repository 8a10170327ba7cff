"""Checkpoints: a dictionary of tensors and plain values, written atomically, read without code."""

import io
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nws.errors import UserError
from nws.files import write_atomically


def save_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint completely or not at all; `UserError` where the disk is full."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint onto the CPU; `UserError` where there is none or it is damaged."""
    if not path.is_file():
        raise UserError(
            f"expected a checkpoint at {path}, found none;"
            " is the run directory right, and has it run to its first evaluation?"
        )
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).split("\n")[0]
        raise UserError(f"{path} is not a checkpoint of nws or is damaged: {reason}") from error
    if not isinstance(state, dict) or "machine" not in state:
        raise UserError(
            f"{path} is not a checkpoint of nws:"
            " expected a dictionary with the parameters under 'machine'"
        )
    return state


def load_parameters(module: nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Copy a checkpoint's parameters into a module; `path` is for the message.

    Raises `UserError`, with the first difference, where they are of another architecture.
    """
    here = {name: tuple(parameter.shape) for name, parameter in module.state_dict().items()}
    there = {name: tuple(parameter.shape) for name, parameter in state.items()}
    if here != there:
        name = next(name for name in [*here, *there] if here.get(name) != there.get(name))
        raise UserError(
            f"{path} is of another architecture: {name} is {there.get(name, 'missing')} there and"
            f" {here.get(name, 'missing')} in the configuration;"
            " give the layers (model, data) that it was trained with"
        )
    module.load_state_dict(state)
