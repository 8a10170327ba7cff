"""What holds for every source: how images become binary, and that where bytes are held changes no
image.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from cases import seeded
from data_files import GREY, Source, write_sources

import nws.data as nd
from nws.data import Split, load_dataset, loading
from nws.data.dataset import CHUNK

CPU = torch.device("cpu")
BINARY = ("bits.npy", "three_by_three", "silhouettes", "libsvm")
MAPPED = ("grey.npy", "bits.npy", "idx")
SOURCES = (
    *BINARY, "grey.npy", "columns.npy", "shares.npy", "parts.npz", "packed.npz", "arrays", "idx",
    "idx.gz", "tfd", "folder", "digits",
)  # fmt: skip


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    made = write_sources(tmp_path_factory.mktemp("sources"))
    assert {*made} == {*SOURCES}
    return made


def splits(data: nd.Dataset) -> dict[str, Split]:
    parts = {"train": data.train, "valid": data.valid, "test": data.test}
    return parts | ({"unlabeled": data.unlabeled} if data.unlabeled is not None else {})


def is_map(images: torch.Tensor) -> bool:
    """Whether bytes are a map of a file, by the kernel's list of maps."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, *_, name = line.split(maxsplit=5)
        first, last = (int(each, 16) for each in place.split("-"))
        if first <= images.data_ptr() < last:
            return name.endswith((".npy", ".npz", "ubyte"))
    return False


@pytest.mark.parametrize("binarize", nd.BINARIZATIONS)
@pytest.mark.parametrize("name", SOURCES)
def test_a_data_set(sources: dict[str, Source], name: str, binarize: str) -> None:
    source, options = sources[name]
    state = torch.get_rng_state()
    device, host, auto = (
        load_dataset(source, binarize=binarize, where=where, **options)
        for where in ("device", "host", "auto")
    )
    assert torch.equal(state, torch.get_rng_state()), "the global generator is left alone"
    grey = splits(load_dataset(source, binarize="none", **options))
    for part, split in splits(device).items():
        check_binary(part, split, grey[part], binarize, name in BINARY)
        for other in (splits(host)[part], splits(auto)[part]):
            check_same(other, split)
        assert not is_map(split.bytes) and not is_map(splits(auto)[part].bytes)
        assert split.onto is None and split.order is None
    kept = binarize in ("resample", "none") or name in BINARY
    assert host.train.onto == CPU and is_map(host.train.bytes) == (name in MAPPED and kept)


def check_binary(part: str, split: Split, grey: Split, binarize: str, binary: bool) -> None:
    """A part is what `data.binarize` says of its intensities."""
    intensity = grey.batch()
    assert intensity.dtype == torch.float32 and 0 <= intensity.min() < intensity.max() <= 1
    one, other = split.batch(None, seeded(1)), split.batch(None, seeded(2))
    fresh = binarize == "resample" and part in ("train", "unlabeled") and not binary
    assert split.redraw == fresh and torch.equal(one, other) != fresh
    assert torch.equal(one, split.batch(None, seeded(1))), "repeats with the generator's state"
    if binary or binarize == "none":
        assert torch.equal(one, intensity) and split.maximum == grey.maximum
        return
    assert split.maximum == (grey.maximum if fresh else 1) and set(one.unique().tolist()) <= {0, 1}
    if binarize == "threshold":  # exactly one half is on the black side
        assert torch.equal(one, (intensity > 0.5).float())
    else:  # in standard errors of the number of white pixels
        error = (intensity * (1 - intensity)).sum().sqrt()
        assert ((one - intensity).sum() / error).abs() < 4.5
    if part in ("valid", "test"):
        assert split.source is not None and torch.equal(split.source.batch(), intensity)


def check_same(one: Split, other: Split) -> None:
    assert len(one) == len(other) and one.redraw == other.redraw
    assert torch.equal(one.rows(), other.rows())
    for indices in (None, torch.tensor([len(one) - 1, 0, len(one) - 1])):
        assert torch.equal(one.batch(indices, seeded(4)), other.batch(indices, seeded(4)))
    assert torch.equal(one.total(), other.rows().double().sum(0))
    assert one.redraw or torch.equal(one.first(2), one.batch()[:2])
    assert len(one.first(None)) == len(one.first(10**6)) == len(one)


def test_static_draws_are_those_of_resample_and_each_part_has_a_seed() -> None:
    static, fresh = (load_dataset(nd.load_digits, binarize=how) for how in ("static", "resample"))
    assert torch.equal(static.valid.bytes, fresh.valid.bytes)
    assert torch.equal(static.test.bytes, fresh.test.bytes)
    assert len(set(loading.DRAW_SEEDS.values())) == len(loading.DRAW_SEEDS) == 4  # none share noise
    parts = (static.train, static.valid, static.test)  # published figures are of these draws
    assert [int(part.bytes.sum()) for part in parts] == [25398, 4811, 4920]


def test_labels_follow_the_order_of_the_images() -> None:
    options = {"order": torch.tensor([2, 0]), "labels": {"train": torch.arange(3)}}
    raw = nd.RawImages(*[torch.eye(3).byte()] * 3, (1, 3), 1, **options)
    data = load_dataset(lambda: raw, name="mine")
    assert data.labels and data.labels["train"].tolist() == [2, 0]


def test_draws_have_the_intensity_as_their_mean_in_chunks_too() -> None:
    count = 2 * CHUNK + 5
    grey = torch.arange(count).to(torch.uint8)[:, None].expand(-1, 3).contiguous()
    images = nd.RawImages(grey, grey, grey, (1, 3))
    found = load_dataset(lambda: images, name="mine", binarize="static").train.rows()
    rng = torch.Generator().manual_seed(loading.DRAW_SEEDS["train"])
    white = torch.rand(count, 3, generator=rng) * 255 < grey  # as likely as it is bright
    fresh = Split(grey, 255, redraw=True).batch(None, seeded(loading.DRAW_SEEDS["train"]))
    assert torch.equal(found, white.to(torch.uint8)) and torch.equal(fresh, white.float())


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-24])  # the ends of what torch.rand can give
def test_black_and_white_are_certain(monkeypatch: pytest.MonkeyPatch, uniform: float) -> None:
    monkeypatch.setattr(torch, "rand", lambda shape, **_options: torch.full(shape, uniform))
    for maximum in (16, 255):
        edges = Split(torch.tensor([[0, maximum]], dtype=torch.uint8), maximum, redraw=True)
        assert edges.batch().tolist() == [[0.0, 1.0]]


def test_a_map_is_shuffled_by_an_order_and_its_file_stays(sources: dict[str, Source]) -> None:
    source, options = sources["grey.npy"]
    train = load_dataset(source, where="host", **options).train
    assert len(train) == 48 and len(train.bytes) == 60
    train.bytes.zero_()
    assert np.array_equal(np.load(options["path"]), GREY)


def test_on_the_device_bytes_are_a_copy() -> None:
    mine = GREY.copy()
    data = load_dataset(nd.load_arrays, train=mine, valid=mine, test=mine, binarize="none")
    mine[:] = 0
    assert torch.equal(data.train.bytes, torch.from_numpy(GREY).flatten(1))


def test_auto_is_the_host_where_the_device_is_small(
    sources: dict[str, Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, options = sources["grey.npy"]
    of_all = 60 * 12 + 2 * 6 * 12  # bytes of the file, and of copies of the two small parts
    for room, host in ((2 * of_all, False), (2 * of_all - 1, True)):
        monkeypatch.setattr(loading, "memory", lambda device, room=room: room)
        train = load_dataset(source, where="auto", **options).train
        assert (train.onto is not None) == is_map(train.bytes) == host
