"""TEMPORARY: old names until the merge; to be deleted."""

from typing import Any

import nws.data as data
from nws.data import Dataset, Split

__all__ = ["Dataset", "Split", "load_dataset"]


def load_dataset(name: str, **options: Any) -> Dataset:
    return data.load_dataset(getattr(data, f"load_{name}"), name=name, **options)
