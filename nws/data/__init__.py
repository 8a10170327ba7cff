"""Data sets of images. A source is a function that returns `RawImages`; `load_dataset` uses it."""

from nws.data.dataset import BINARIZATIONS, Dataset, RawImages, Split, load_dataset
from nws.data.embedded import load_digits, load_three_by_three
from nws.data.folder import load_folder
from nws.data.mnist import load_fashion_mnist, load_mnist
from nws.data.npz import load_npz
from nws.data.tfd import TFD_MD5, load_tfd

__all__ = [
    "BINARIZATIONS", "TFD_MD5", "Dataset", "RawImages", "Split", "load_dataset", "load_digits",
    "load_fashion_mnist", "load_folder", "load_mnist", "load_npz", "load_tfd",
    "load_three_by_three",
]  # fmt: skip
