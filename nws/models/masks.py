"""Which parents a unit sees, and in which order units see each other.

A mask is a function of the layer sizes n_0 .. n_L, two layers and the image shape:

    mask(sizes, child, parent, shape) -> (n_child, n_parent) of 0 and 1, or None for all parents

An order is one of the sizes, a layer and the image shape: a permutation (n_i,) of its units.
In a run, what such a function draws from torch follows from the seed.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nws.errors import UserError, one_of, positive_int

Mask = Callable[[Sequence[int], int, int, Sequence[int]], Tensor | None]
Order = Callable[[Sequence[int], int, Sequence[int]], Tensor | None]


def local(
    sizes: Sequence[int], child: int, parent: int, shape: Sequence[int], width: int = 7,
    lateral_only: bool = False,
) -> Tensor | None:  # fmt: skip
    """Receptive fields of width x width pixels, between the image and any layer, itself too.

    The fields of a layer's units have their centres on a grid over the image. Units of two hidden
    layers see all of each other.

    Args:
        sizes: n_0 .. n_L.
        child: The layer that sees.
        parent: The layer that is seen.
        shape: H and W of the image.
        width: Pixels of a field's side, at least 1; odd, as a field has a pixel as its centre.
        lateral_only: Whether only pixels have fields, for the pixels that they see.

    Examples:
        >>> local([16, 4], child=1, parent=0, shape=(4, 4), width=1).sum(1)
        tensor([1., 1., 1., 1.])
    """
    if positive_int("model.mask.width", width) % 2 == 0:
        raise UserError(f"model.mask.width must be odd, got {width}")
    one_of("model.mask.lateral_only", lateral_only, (True, False))
    if (child and parent) or (lateral_only and child != parent):
        return None
    if len(shape) != 2 or shape[0] * shape[1] != sizes[0]:
        raise UserError(f"nws.models.masks.local needs images (H, W), got data of {list(shape)}")
    pixels = torch.cartesian_prod(*(torch.arange(side) for side in shape))
    centres = [pixels if layer == 0 else _grid(sizes[layer], shape) for layer in (child, parent)]
    apart = (centres[0][:, None] - centres[1]).abs().amax(2)  # (n_child, n_parent)
    return (2 * apart < width).to(torch.float32)


def _grid(count: int, shape: Sequence[int]) -> Tensor:
    """Centres (count, 2) of so many fields, in rows over an image, in pixels."""
    height, width = shape
    across = min(count, max(1, round((count * width / height) ** 0.5)))
    place, down = torch.arange(count), -(-count // across)
    cells = torch.stack([(place // across + 0.5) / down, (place % across + 0.5) / across], dim=1)
    return (cells * torch.tensor([height, width])).long()


def from_the_centre(sizes: Sequence[int], layer: int, shape: Sequence[int]) -> Tensor | None:
    """The pixels by their distance from the centre of the image; other layers as they come.

    Examples:
        >>> from_the_centre([9, 2], 0, (3, 3))[0]
        tensor(4)
    """
    if layer or len(shape) != 2:
        return None
    rows, columns = (torch.arange(side) - (side - 1) / 2 for side in shape)
    distance = rows.square()[:, None] + columns.square()
    return distance.flatten().argsort(stable=True)


def lateral_layers(lateral: str | Sequence[bool], layers: int, upward: bool) -> set[int]:
    """The layers that see themselves, of those that a network explains."""
    option = f"model.{'recognition' if upward else 'generator'}.lateral"
    kinds = {"none": range(0), "visible": range(1), "hidden": range(1, layers)}
    if upward:
        del kinds["visible"]
    explained = range(upward, layers)
    if isinstance(lateral, str):
        one_of(option, lateral, (*kinds, "all"))
        return set(kinds.get(lateral, explained))
    right = isinstance(lateral, list | tuple) and len(lateral) == len(explained)
    if not right or not all(isinstance(each, bool) for each in lateral):
        each = f"{len(explained)} of true and false, one a layer from {explained[0]} up"
        raise UserError(f"{option} must be {', '.join(kinds)}, all or {each}, got {lateral!r}")
    return {layer for layer, sees in zip(explained, lateral, strict=True) if sees}


def check_functions(**options: object) -> None:
    """Raise `UserError` for a mask or an order that is no function."""
    for name, each in options.items():
        if each is not None and not callable(each):
            expected = "a function of nws.models.masks or your own, with _partial_: true"
            raise UserError(f"model.{name} must be {expected}, got {each!r}")


def find_order(
    order: Order | None, sizes: Sequence[int], layer: int, shape: Sequence[int]
) -> Tensor | None:
    """The order of a layer's units; None for 0 .. n_i - 1."""
    if order is None or (found := order(sizes, layer, shape)) is None:
        return None
    turn, units = torch.as_tensor(found), sizes[layer]
    if not torch.equal(turn.sort()[0].double(), torch.arange(units).double()):
        raise UserError(f"model.order must be a permutation of layer {layer}'s {units} units")
    return turn.long()


def find_mask(
    mask: Mask | None, sizes: Sequence[int], child: int, parents: Sequence[int],
    shape: Sequence[int], order: Tensor | None,
) -> Tensor | None:  # fmt: skip
    """Which of its parents each unit of a layer sees, (n_child, parents); None for all."""
    blocks, masked = [], False
    for parent in parents:
        expected = sizes[child], sizes[parent]
        given = None if mask is None else mask(sizes, child, parent, shape)
        block = torch.ones(expected)
        if given is not None:
            block = torch.as_tensor(given).to(block)
        if block.shape != expected or not ((block == 0) | (block == 1)).all():
            what = f"{expected} zeros and ones for layer {child} that sees layer {parent}"
            got = f"{tuple(block.shape)} numbers from {block.min()} to {block.max()}"
            raise UserError(f"model.mask must give {what}, got {got}")
        masked |= given is not None or parent == child
        if parent == child:
            rank = torch.arange(sizes[child]) if order is None else order.argsort()
            block = block * (rank < rank[:, None])
        blocks.append(block)
    return torch.cat(blocks, dim=1) if masked else None
