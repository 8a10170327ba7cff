"""Where bytes are held changes no image: on the device, in memory of the host, or in their file."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import seeded
from conftest import idx

from nws.data import Dataset, RawImages, dataset, load_dataset, load_digits, load_mnist, load_npz
from nws.data.dataset import BINARIZATIONS, CHUNK
from nws.data.where import fills_memory, free_memory
from nws.errors import UserError

CPU = torch.device("cpu")
Source = Callable[..., RawImages]
IMAGES = np.random.default_rng(0).integers(0, 256, (60, 4, 3), dtype=np.uint8)
PARTS = {"train": IMAGES[:40], "valid": IMAGES[40:50], "test": IMAGES[50:]}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, tuple[Source, dict[str, Any]]]:
    """A source and its options for each kind of file."""
    np.save(tmp_path / "alone.npy", IMAGES)
    np.save(tmp_path / "bits.npy", IMAGES > 99)
    np.save(tmp_path / "columns.npy", np.asfortranarray(IMAGES))
    np.save(tmp_path / "shares.npy", IMAGES / 255)
    np.savez(tmp_path / "parts.npz", **PARTS)
    np.savez_compressed(tmp_path / "packed.npz", **PARTS)
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    many = np.random.default_rng(1).integers(0, 256, (10_060, 2, 2), dtype=np.uint8)
    (raw / "train-images-idx3-ubyte").write_bytes(idx(many))
    (raw / "t10k-images-idx3-ubyte").write_bytes(idx(many[:7]))
    names = ("alone.npy", "bits.npy", "columns.npy", "shares.npy", "parts.npz", "packed.npz")
    made: dict[str, tuple[Source, dict[str, Any]]]
    made = {name: (load_npz, {"path": tmp_path / name}) for name in names}
    return made | {"idx": (load_mnist, {"root": tmp_path}), "digits": (load_digits, {})}


def is_map(images: torch.Tensor) -> bool:
    """Whether bytes are a map of a file, by the kernel's list of maps."""
    address = images.data_ptr()
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, *_, name = line.split(maxsplit=5)
        first, last = (int(each, 16) for each in place.split("-"))
        if first <= address < last:
            return name.endswith((".npy", ".npz", "ubyte"))
    return False


def assert_same_images(a: Dataset, b: Dataset) -> None:
    for part in ("train", "valid", "test"):
        one, other = getattr(a, part), getattr(b, part)
        assert len(one) == len(other) and one.redraw == other.redraw
        assert torch.equal(one.rows(), other.rows())
        assert torch.equal(one.batch(None, seeded(3)), other.batch(None, seeded(3)))
        some = torch.tensor([2, 0, 2])
        assert torch.equal(one.batch(some, seeded(4)), other.batch(some, seeded(4)))
        assert torch.equal(one.total(), other.rows().double().sum(0))
        assert (one.source is None) == (other.source is None)
        if one.source is not None:
            assert torch.equal(one.source.batch(), other.source.batch())


@pytest.mark.parametrize("binarize", BINARIZATIONS)
def test_images_do_not_depend_on_it(files: dict[str, Any], binarize: str) -> None:
    for source, options in files.values():
        held = {
            where: load_dataset(source, binarize=binarize, where=where, **options)
            for where in ("device", "host", "auto")
        }
        for where in ("host", "auto"):
            assert_same_images(held[where], held["device"])
        assert held["host"].train.onto == CPU and held["device"].train.onto is None
        assert held["auto"].train.onto is None and held["auto"].train.order is None


def test_what_stays_in_its_file(files: dict[str, Any]) -> None:
    """Bytes that are not packed; on the device nothing does, as a file may change."""
    mapped = {"alone.npy", "bits.npy", "parts.npz", "idx"}
    for name, (source, options) in files.items():
        train = load_dataset(source, where="host", **options).train
        assert is_map(train.bytes) == (name in mapped), name
        for where in ("device", "auto"):
            assert not is_map(load_dataset(source, where=where, **options).train.bytes), name
    source, options = files["alone.npy"]
    train = load_dataset(source, where="host", **options).train
    assert len(train) == 48 and len(train.bytes) == 60  # shuffled by an order, not by a copy


def test_writing_to_a_map_does_not_reach_the_file(files: dict[str, Any]) -> None:
    source, options = files["alone.npy"]
    load_dataset(source, where="host", **options).train.bytes.zero_()
    assert np.array_equal(np.load(options["path"]), IMAGES)


def test_packed_files_are_read(tmp_path: Path, files: dict[str, Any]) -> None:
    raw = tmp_path / "MNIST" / "raw"
    expected = load_dataset(load_mnist, root=tmp_path, where="device")
    for file in [*raw.iterdir()]:
        (raw / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert_same_images(load_dataset(load_mnist, root=tmp_path, where="host"), expected)


def test_auto_is_the_host_where_the_device_is_small(
    files: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, options = files["alone.npy"]
    bytes_of_all = 60 * 12 + 2 * 6 * 12  # the file, and copies of the two small parts
    for free, host in ((2 * bytes_of_all, False), (2 * bytes_of_all - 1, True)):
        monkeypatch.setattr("nws.data.where.free_memory", lambda device, free=free: free)
        train = load_dataset(source, where="auto", **options).train
        assert (train.onto is not None) == is_map(train.bytes) == host
    monkeypatch.setattr("nws.data.where.free_memory", lambda device: None)
    assert not fills_memory(2**60, CPU)  # nothing says how much there is


def test_the_free_memory_of_this_machine() -> None:
    free = free_memory(CPU)
    assert free is None or 2**20 < free < 2**50
    assert fills_memory(2**50, CPU) == (free is not None)


def test_draws_in_chunks_are_those_in_one() -> None:
    count = 2 * CHUNK + 5
    bytes_ = torch.arange(count, dtype=torch.uint8)[:, None].expand(-1, 3).contiguous()

    def source() -> RawImages:
        return RawImages(bytes_, bytes_, bytes_, (1, 3))

    found = load_dataset(source, binarize="static").train.rows()
    rng = torch.Generator().manual_seed(dataset.DRAW_SEEDS["train"])
    uniform = torch.rand(count, 3, generator=rng) * 255
    assert torch.equal(found, (uniform < bytes_).to(torch.uint8))


def test_a_source_of_ones_own_may_leave_bytes_in_a_file() -> None:
    seen = []

    def source(size: int, mapped: bool = False) -> RawImages:
        seen.append(mapped)
        images = torch.zeros(5, size, dtype=torch.uint8)
        return RawImages(images, images, images, (1, size), order=torch.tensor([4, 1]))

    for where in ("device", "host", "auto"):
        data = load_dataset(source, where=where, size=2)
        assert len(data.train) == 2 and len(data.valid) == 5
    assert seen == [False, True, True]
    with pytest.raises(UserError, match="has no option mapped; its options are .*where, size$"):
        load_dataset(source, size=2, mapped=True)
    with pytest.raises(UserError, match="data.where must be one of device, host, auto, got 'disk'"):
        load_dataset(source, size=2, where="disk")


def test_first_images() -> None:
    valid = load_dataset(load_digits).valid
    assert torch.equal(valid.first(7), valid.batch()[:7])
    assert torch.equal(valid.first(None), valid.batch())
    assert len(valid.first(10**6)) == len(valid)
