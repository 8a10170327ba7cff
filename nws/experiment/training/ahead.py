"""Batches of data in host memory, copied to the device one step before they are used."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Key = tuple[int, int]  # which batch: the stream of its shuffles, and the step


class RowsAhead:
    """Bytes of batches on the device, of which the next ones are on their way already.

    On CUDA each goes through pinned memory, on a stream of its own: it is copied while the step
    before computes, and the host waits for nothing. On a CPU there is nothing to copy.

    Args:
        device: Where batches are used.
        rows: Returns the bytes of a batch, (B, D), in host memory.
    """

    def __init__(self, device: torch.device, rows: Callable[[Key], Tensor]) -> None:
        self._device, self._rows = device, rows
        self._side = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._coming: dict[Key, Tensor] = {}

    def take(self, wanted: Sequence[Key], following: Sequence[Key]) -> list[Tensor]:
        """Return the wanted batches, (B, D) bytes on the device, and begin to copy the next ones.

        What was not announced is copied now.
        """
        found = {key: self._of(key) for key in wanted}
        if self._side is not None:
            main = torch.cuda.current_stream(self._device)
            main.wait_stream(self._side)
            for rows in found.values():
                rows.record_stream(main)  # its memory is not given away before main has used it
        self._coming = {key: found[key] if key in found else self._of(key) for key in following}
        return [found[key] for key in wanted]

    def _of(self, key: Key) -> Tensor:
        """Return a batch that was copied, or is being copied from now on."""
        if key in self._coming:
            return self._coming[key]
        rows = self._rows(key)
        if self._side is None:
            return rows.to(self._device)
        with torch.cuda.stream(self._side):
            return rows.pin_memory().to(self._device, non_blocking=True)
