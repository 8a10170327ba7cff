"""The images of a run as a page shows them: small PNGs in the text of the page."""

import base64
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from nws.analysis.runs import LOG_LIKELIHOOD, Run
from nws.experiment.storage.directory import RunDirectory

T = TypeVar("T")

WIDTH = 640  # pixels; wider images are made smaller
STEP = re.compile(r"(.+)_step_(\d+)$")


@dataclass(frozen=True)
class Frame:
    """One image of a run."""

    kind: str  # generated, reconstructed, or the name of the file
    step: int | None  # of training; None for what sample.py drew
    caption: str
    uri: str  # data:image/png;base64,...


def frames(run: Run, most: int) -> list[Frame]:
    """Read the PNGs of a run, at most so many of each kind: the first, the last, and between.

    Files that are no images are left out.
    """
    kinds: dict[str, list[tuple[int | None, Path]]] = {}
    for path in sorted(RunDirectory(run.path).images.glob("*.png")):
        match = STEP.fullmatch(path.stem)
        kind, step = (match[1], int(match[2])) if match else (path.stem, None)
        kinds.setdefault(kind, []).append((step, path))
    found = []
    for kind, files in kinds.items():
        files.sort(key=lambda file: file[0] or 0)
        for step, path in spread(files, most):
            if uri := data_uri(path):
                found.append(Frame(kind, step, caption(run, step), uri))
    return found


def spread(items: Sequence[T], most: int) -> list[T]:
    """At most so many of some items: the first, the last, and others at even distances.

    Example:
        >>> spread([0, 1, 2, 3, 4, 5, 6], 3)
        [0, 3, 6]
        >>> spread([0, 1], 1)
        [1]
    """
    if len(items) <= most:
        return list(items)
    if most < 2:
        return list(items[len(items) - most :])
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def caption(run: Run, step: int | None) -> str:
    """The step of an image, its epoch, and the validation log-likelihood there, if known."""
    if step is None:
        return ""
    text = f"step {step:,}"
    row = run.metrics[run.metrics["step"] == step]
    if len(row):
        text += f", epoch {row['epoch'].iloc[0]:g}"
        value = row[LOG_LIKELIHOOD].iloc[0] if LOG_LIKELIHOOD in row else np.nan
        text += f", {value:.2f} nats" if np.isfinite(value) else ""
    return text


def data_uri(path: Path) -> str | None:
    """An image file as the address of itself: a PNG of at most 64 grey levels or colours.

    None where the file is no image.
    """
    try:
        with Image.open(path) as picture:
            image = picture.convert("RGB")
    except (OSError, UnidentifiedImageError):
        return None
    pixels = np.asarray(image)
    if (pixels == pixels[..., :1]).all():
        image = image.convert("L")
    if image.width > WIDTH:
        height = max(1, round(image.height * WIDTH / image.width))
        image = image.resize((WIDTH, height), Image.Resampling.BOX)
    image = image.quantize(64, dither=Image.Dither.NONE)
    buffer = io.BytesIO()
    image.save(buffer, format="png", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
