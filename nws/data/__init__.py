"""Data sets of images. A source is a function that returns `RawImages`; `load_dataset` uses it."""

from nws.data.arrays import load_arrays, load_npz
from nws.data.binary import load_binarized_mnist, load_libsvm, load_silhouettes
from nws.data.dataset import Dataset, RawImages, Split
from nws.data.embedded import load_digits, load_three_by_three
from nws.data.folder import load_folder, load_torchvision
from nws.data.loading import BINARIZATIONS, load_dataset
from nws.data.mnist import load_fashion_mnist, load_mnist
from nws.data.tfd import load_tfd

__all__ = [
    "BINARIZATIONS", "Dataset", "RawImages", "Split", "load_arrays", "load_binarized_mnist",
    "load_dataset", "load_digits", "load_fashion_mnist", "load_folder", "load_libsvm",
    "load_mnist", "load_npz", "load_silhouettes", "load_tfd", "load_three_by_three",
    "load_torchvision",
]  # fmt: skip
