"""The group `data`: sources of images."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Gt, Le, Lt, MaxLen, MinLen
from pydantic import Field

from nws.experiment.options.schemas.schema import Choice, Count, Says, Schema, Text, WholeNumber

Sides = Annotated[list[Count], MinLen(2), MaxLen(2), Says("[H, W]")]
HeldOut = Annotated[float, Gt(0), Lt(0.5)]
HOW = """
  resample   training images drawn again at each use, valid and test drawn once for all runs
  static     all parts drawn once for all runs
  threshold  intensity > 0.5 is 1
  none       intensities in [0, 1], as soft targets"""


class SourceOptions(Schema):
    """What every data set takes."""

    name: Text = Field(description="what runs and messages call it", examples=["my_images"])
    root: Text = Field("data", description="the folder of downloads; this data set needs none")
    binarize: Literal["resample", "static", "threshold", "none"] = Field(
        "resample",
        description="How grey images become binary ones; binary images are left as they are." + HOW,
    )
    where: Literal["auto", "device", "host"] = Field(
        "auto",
        description="Where bytes are held: on the device, or in memory of the host (in the file,"
        " where it can be mapped); auto: on the device, unless they fill half of its free memory",
    )


class DigitsOptions(SourceOptions):
    """scikit-learn's digits."""

    target = "nws.data.load_digits"


class ThreeByThreeOptions(SourceOptions):
    """Columns and rows."""

    target = "nws.data.load_three_by_three"


class MnistOptions(SourceOptions):
    """MNIST."""

    target = "nws.data.load_mnist"


class FashionMnistOptions(SourceOptions):
    """Fashion-MNIST."""

    target = "nws.data.load_fashion_mnist"


class FolderOptions(SourceOptions):
    """A folder of images."""

    target = "nws.data.load_folder"
    path: Text = Field(description="your folder: data.path=FOLDER", examples=["FOLDER"])
    size: Count | Sides | None = Field(
        None,
        description="[H, W] or the side of a square, in pixels, that all images are brought to;"
        " null: as they are",
    )
    held_out: HeldOut = Field(
        0.1,
        description="without those folders: share of the images that become valid; as many become"
        " test",
    )


class NpzOptions(SourceOptions):
    """A file of arrays."""

    target = "nws.data.load_npz"
    path: Text = Field(description="your .npz or .npy file: data.path=FILE", examples=["FILE"])
    shape: Sides | None = Field(
        None,
        description="[H, W] of an image, in pixels; null: as the arrays say, else a square, else"
        " one row",
    )
    held_out: HeldOut = Field(
        0.1,
        description="of a .npy file: share of its images that become valid; as many become test",
    )


class TfdOptions(SourceOptions):
    """The Toronto Face Dataset."""

    target = "nws.data.load_tfd"
    fold: Annotated[WholeNumber, Field(ge=0), Le(4)] = Field(
        0, description="official fold, 0 to 4: which labelled images are train, valid and test"
    )
    split: Literal["unlabeled", "train", "both"] = Field(
        "unlabeled",
        description="The training images: unlabeled, train (the fold's labelled ones) or both. The"
        " model uses no labels, so the large unlabelled part is the one to learn from. With"
        " split=train, metric.batch=unlabeled gives the metric more data; with unlabeled, it is"
        " much the same as metric.batch=other.",
    )
    size: Literal[24, 48, 96] = Field(
        24, description="side of an image: 24 (reduced from 48, bicubic, antialiased), 48 or 96"
    )


ROOT = "${oc.env:NWS_DATA_ROOT,data}"


def _source(schema: type[Schema], name: str, about: str, root: str = "", **values: Any) -> Choice:
    notes = {"root": root} if root else {}
    return Choice(schema, about, notes=notes, name=name, root=ROOT, **values)


DATA: dict[str, Choice | str] = {
    "digits": _source(
        DigitsOptions,
        "digits",
        "scikit-learn's 8x8 digits: 1,297 train, 250 valid, 250 test; nothing to download.",
    ),
    "fashion_mnist": _source(
        FashionMnistOptions,
        "fashion_mnist",
        "Fashion-MNIST: 50,000 train, 10,000 valid, 10,000 test.",
        "the folder that holds, or will hold, FashionMNIST/raw",
    ),
    "folder": _source(
        FolderOptions,
        "folder",
        "Your own images in a folder: PNG or JPEG files, at any depth, read as grey. Its folders"
        " train, valid and test are the parts; without them the images are split at random.",
        path=None,
    ),
    "mnist": _source(
        MnistOptions,
        "mnist",
        "MNIST: 50,000 train, 10,000 valid, 10,000 test.",
        "the folder that holds, or will hold, MNIST/raw",
    ),
    "npz": _source(
        NpzOptions,
        "npz",
        "Your own images in one file. A .npz file has the arrays train, valid and test; a .npy file"
        " has one array, which is split at random. Arrays are (N, D) or (N, H, W): all of them 0"
        " and 1, all of them grey bytes 0..255, or all of them floats in [0, 1].",
        path=None,
    ),
    "tfd": _source(
        TfdOptions,
        "tfd",
        "Toronto Face Dataset (TFD), to be requested from its maker: 98,058 unlabelled faces, and"
        " 4,178 labelled ones in five official folds. These settings come nearest to the published"
        " runs (Varady et al. 2022), which reduce to 24x24 and take intensities as they are. The"
        " published figures compare only roughly. That code pools all faces and splits them at"
        " random, so that nearly all of its training images are unlabelled; this one keeps to the"
        " official folds. That code reduces without antialiasing.",
        "the folder of TFD/TFD_48x48.mat (size 96: _96x96)",
        binarize="none",
    ),
    "three_by_three": _source(
        ThreeByThreeOptions,
        "three_by_three",
        "Kirby's 3x3 images of whole columns or rows: binary already, p_D known exactly.",
    ),
}
