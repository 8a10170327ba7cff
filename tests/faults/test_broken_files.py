"""Files from elsewhere that are broken: each ends in a `UserError`, or loads where it is harmless.

The files are made here from good ones, a few hundred in all. With `--faults-long` there are
thousands, from a seed that is printed.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import struct
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from conftest import ROOT, Command
from faults import corpus
from omegaconf import DictConfig, OmegaConf
from PIL import Image
from scipy.io import savemat

from nws.analysis.evaluation import read_rows
from nws.analysis.runs import read_run
from nws.analysis.supervised.search import _kept, score
from nws.data import load_dataset, load_folder, load_mnist, load_npz, mnist, tfd
from nws.data.labels import fashion_mnist_labels
from nws.errors import UserError
from nws.experiment.directory import RunDirectory, open_run
from nws.experiment.loading import load_run
from nws.experiment.provenance import Provenance, read_provenance
from nws.experiment.resume import Start
from nws.experiment.signals import StopSignals
from nws.programs.train import build_trainer

GREY = np.random.default_rng(0).integers(0, 256, (12, 9), dtype=np.uint8)


@dataclass
class Trial:
    """Reads broken files, and counts how that ended."""

    long: bool
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)

    def read(self, name: str, action: Callable[[], object]) -> bool:
        """Whether an action ended well; False after a `UserError`. Anything else fails the test."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                action()
        except UserError as error:
            message = str(error)
            assert "weights_only" not in message and "Traceback" not in message, (name, message)
            self.counts["refused"] += 1
            return False
        except Exception as error:
            raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error
        self.counts["harmless"] += 1
        return True

    def read_bytes(self, file: Path, few: int, action: Callable[[], object]) -> None:
        """Read many broken versions of a file, and in the end the good one."""
        good = file.read_bytes()
        for name, content in corpus.broken_bytes(good, 20 * few if self.long else few, self.rng):
            file.write_bytes(content)
            self.read(f"{file.name}, {name}", action)
        file.write_bytes(good)
        assert self.read(file.name, action), "the control: the good file"


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about a disk that loses power."""
    monkeypatch.setattr("os.fsync", lambda number: None)


@pytest.fixture
def trial(request: pytest.FixtureRequest) -> Iterator[Trial]:
    long = bool(request.config.getoption("--faults-long"))
    seed = random.SystemRandom().randrange(10**6) if long else 0
    made = Trial(long, random.Random(seed))
    yield made
    print(f"\n{request.node.name}: {dict(made.counts)} with seed {seed}", file=sys.stderr)
    assert made.counts["refused"] > 3


# --- data -----------------------------------------------------------------------------------------


def test_npz_and_npy(trial: Trial, tmp_path: Path) -> None:
    parts = {"train": GREY, "valid": GREY[:3], "test": GREY[3:6]}
    for save, name in ((np.savez, "a.npz"), (np.savez_compressed, "b.npz")):
        save(tmp_path / name, **parts)
        file = tmp_path / name
        trial.read_bytes(file, 40, lambda file=file: load_dataset(load_npz, path=file))
    np.save(tmp_path / "c.npy", GREY)
    file = tmp_path / "c.npy"
    trial.read_bytes(file, 40, lambda: load_dataset(load_npz, path=file))


def header(shape: str, dtype: str = "'|u1'", order: str = "False") -> bytes:
    """The header of a .npy file."""
    text = f"{{'descr': {dtype}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    text = text.ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("(10000000000000, 1000)") + bytes(90), "promises 10,000,000,000,000,000 bytes"),
        (header("(10, 9)", "'|O'") + bytes(90), "Python objects"),
        (header("(-1, 9)") + bytes(90), "promises -9 bytes"),
        (header("('a', 9)") + bytes(90), "reading failed"),
        (header("(10, 9)", "[('a', '<u4')]") + bytes(360), "got dtype"),
        (header("(10, 9)", "'nosuch'") + bytes(90), "reading failed"),
        (header("(10, 9)", order="3") + bytes(90), "reading failed"),
        (header("()") + bytes(1), r"got shape \(\)"),
        (b"\x93NUMPY\x09\x09" + bytes(100), "reading failed"),
    ],
)
def test_headers_of_npy(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "my.npy"
    file.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_npz(file)


def test_odd_members_of_npz(tmp_path: Path) -> None:
    import zipfile

    def load(name: str, content: bytes, message: str, edit: bytes = b"", **options: Any) -> None:
        file = tmp_path / "my.npz"
        with zipfile.ZipFile(file, "w", **options) as archive:
            for part in ("train", "valid", "test"):
                archive.writestr(f"{part}{name}", content)
        if edit:  # of the directory, and of the members' own headers
            text = bytearray(file.read_bytes())
            for start, place in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
                at = text.find(start)
                while at >= 0:
                    text[at + place : at + place + len(edit)] = edit
                    at = text.find(start, at + 1)
            file.write_bytes(text)
        with pytest.raises(UserError, match=message):
            load_npz(file)

    np.save(buffer := io.BytesIO(), GREY)
    good = buffer.getvalue()
    load(".npy", b"no array at all", "reading failed")
    load("", b"no array at all", "reading failed")
    load(".npy", good, "is encrypted", edit=b"\x01\x00")
    load(".npy", good, "reading failed", edit=b"\x00\x00\x63\x00")  # a method that is unknown
    bomb = header("(1000000, 1000)") + bytes(100)
    load(".npy", bomb, "promises 1,000,000,000 bytes", compression=zipfile.ZIP_DEFLATED)


def idx(images: np.ndarray) -> bytes:
    return struct.pack(">4I", 2051, *images.shape) + images.tobytes()


def test_idx(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mnist, "VALID_IMAGES", 4)
    folder = tmp_path / "MNIST" / "raw"
    folder.mkdir(parents=True)
    images = GREY.reshape(12, 3, 3)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    test = folder / "t10k-images-idx3-ubyte"
    test.write_bytes(idx(images[:5]))

    def load() -> object:
        return load_dataset(load_mnist, root=tmp_path)

    trial.read_bytes(test, 40, load)
    promises = struct.pack(">4I", 2051, 2**32 - 1, 2**32 - 1, 2**32 - 1)
    test.write_bytes(promises + bytes(45))
    assert not trial.read("terabytes", load)
    test.unlink()
    packed = folder / "t10k-images-idx3-ubyte.gz"
    for content in (promises + bytes(45), idx(images[:5]) + bytes(10**7)):
        packed.write_bytes(gzip.compress(content))
        assert not trial.read("a bomb", load)
    packed.write_bytes(gzip.compress(idx(images[:5])))
    trial.read_bytes(packed, 40, load)


def test_labels(trial: Trial, tmp_path: Path) -> None:
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    content = struct.pack(">2I", 2049, 20) + bytes(range(20))
    (folder / "train-labels-idx1-ubyte").write_bytes(content)
    packed = folder / "t10k-labels-idx1-ubyte.gz"
    packed.write_bytes(gzip.compress(content))
    trial.read_bytes(packed, 30, lambda: fashion_mnist_labels(tmp_path))


def test_mat(trial: Trial, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "TFD").mkdir()
    file = tmp_path / "TFD" / "TFD_48x48.mat"
    monkeypatch.setattr(tfd, "_check_official", lambda file: None)
    rng = np.random.default_rng(0)
    faces = rng.integers(0, 256, (8, 48, 48), dtype=np.uint8)
    folds = np.repeat(np.arange(8, dtype=np.uint8)[:, None] % 4, 5, axis=1)
    for packed in (False, True):
        savemat(file, {"images": faces, "folds": folds}, do_compression=packed)
        trial.read_bytes(file, 30, lambda: tfd.load_tfd(tmp_path))


def test_images_in_folders(trial: Trial, tmp_path: Path) -> None:
    for number in range(4):
        Image.fromarray(GREY[number].reshape(3, 3)).save(tmp_path / f"{number}.png")
    Image.fromarray(GREY[5].reshape(3, 3)).save(tmp_path / "5.jpg")
    for name in ("0.png", "5.jpg"):
        trial.read_bytes(tmp_path / name, 40, lambda: load_dataset(load_folder, path=tmp_path))
    bomb = bytearray((tmp_path / "0.png").read_bytes())
    bomb[16:24] = struct.pack(">2I", 2**30, 2**30)
    (tmp_path / "0.png").write_bytes(bomb)
    assert not trial.read("a bomb", lambda: load_folder(tmp_path))


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a natural rule with Adam, an average, and an evaluation."""
    folder = tmp_path_factory.mktemp("good") / "run"
    import hydra

    from nws.analysis.evaluation import Request, evaluate
    from nws.experiment.configuration import CONF
    from nws.experiment.panels import start_record

    overrides = [
        "model.layers=[4,3]", "trainer.batch_size=300", "trainer.epochs=2", "logger=none",
        "trainer.evaluate_every=1", "trainer.images_every=100", "trainer.evaluation_samples=2",
        "trainer.evaluation_points=4", "algorithm=nrws", "metric=fisher", "optimizer=adam",
        "average=exponential", "device=cpu",
    ]  # fmt: skip
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", overrides)
    OmegaConf.set_struct(config, False)
    run = RunDirectory(folder)
    trainer = build_trainer(Start(run, config), {})
    run.claim(config, {}, again=False)
    origin = {"command": ["train"], "overrides": overrides, "experiment": None}
    start_record(trainer, origin, resumed=False)
    trainer.fit()
    evaluate(folder, Request(samples=2, data_points=3), torch.device("cpu"))
    return folder


@pytest.fixture
def run(good: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(good, tmp_path / "run"))


@cache
def read_config(file: Path) -> DictConfig:
    return cast(DictConfig, OmegaConf.load(file))


def go_on(path: Path) -> None:
    """Go on with a run for one epoch, as `resume=RUN trainer.epochs=3` does."""
    from nws.experiment.checkpoints import load_checkpoint

    run, config = RunDirectory(path), read_config(path / ".hydra" / "config.yaml").copy()
    state = load_checkpoint(run.last, resume=True)
    OmegaConf.set_struct(config, False)
    config.trainer.epochs = 2.25  # a step more
    trainer = build_trainer(Start(run, config, state), {})
    with torch.no_grad():
        trainer._train_until_due(StopSignals())  # the evaluation and the files are as ever


def keep_metrics(path: Path) -> Callable[[], None]:
    """An action that goes on with a run whose metrics.csv is as it was."""
    metrics = (path / "metrics.csv").read_bytes()

    def action() -> None:
        (path / "metrics.csv").write_bytes(metrics)
        go_on(path)

    return action


def test_checkpoints_of_other_bytes(trial: Trial, run: Path) -> None:
    """No byte can change without a `UserError`, unless it is none of the contents."""
    file = run / "checkpoints" / "best.pt"
    content, before = file.read_bytes(), load_run(run, device="cpu").machine.state_dict()
    for name, broken in corpus.broken_bytes(content, 1000 if trial.long else 60, trial.rng):
        file.write_bytes(broken)
        if trial.read(name, lambda: load_run(run, device="cpu")):
            after = load_run(run, device="cpu").machine.state_dict()
            assert all(after[key].equal(before[key]) for key in before), name


def test_checkpoints_of_other_values(trial: Trial, run: Path) -> None:
    file = run / "checkpoints" / "last.pt"
    state = torch.load(file, weights_only=True)
    action, count = keep_metrics(run), 400 if trial.long else 20
    versions = [(f"version {each}", state | {"version": each}) for each in (99, -1, "1", 1.5)]
    for name, broken in [
        *corpus.broken_values(state, count, trial.rng),
        *corpus.broken_tensors(state, trial.rng, 20 if trial.long else 2),
        *[(f"version {name}", each) for name, each in versions],
    ]:
        torch.save(broken, file)
        trial.read(name, action)
    torch.save(state, file)
    assert trial.read("good", action)
    for key in ("machine", "step", "optimizer", "scheduler", "metrics", "rng", "sums", "count"):
        torch.save({name: each for name, each in state.items() if name != key}, file)
        with pytest.raises(UserError, match=f"the key {key} is missing.*best.pt beside it is good"):
            action()


def test_an_old_checkpoint_without_a_version_loads(run: Path) -> None:
    for name in ("last.pt", "best.pt"):
        file = run / "checkpoints" / name
        state = torch.load(file, weights_only=True)
        for key in ("version", "waited", "back_offs", "finished"):
            del state[key]
        torch.save(state, file)
    load_run(run, device="cpu")
    go_on(run)


def test_exported_machines(trial: Trial, run: Path, tmp_path: Path) -> None:
    from nws.experiment.export import export_run

    export_run(load_run(run, device="cpu"), tmp_path / "small")
    file = tmp_path / "small" / "checkpoints" / "best.pt"
    state = torch.load(file, weights_only=True)
    for name, broken in [
        *corpus.broken_values(state, 200 if trial.long else 40, trial.rng),
        *corpus.broken_tensors(state, trial.rng, None if trial.long else 3),
    ]:
        torch.save(broken, file)
        trial.read(name, lambda: load_run(tmp_path / "small", device="cpu").shape)


def broken_json(trial: Trial, file: Path, action: Callable[[], object]) -> None:
    good, value = file.read_bytes(), json.loads(file.read_text())
    for name, broken in corpus.broken_values(value, 400 if trial.long else 60, trial.rng):
        file.write_text(json.dumps(broken))
        trial.read(f"{file.name}, {name}", action)
    file.write_text("[" * 100_000)
    trial.read("deep", action)
    file.write_bytes(good)
    trial.read_bytes(file, 20, action)


def test_evaluation(trial: Trial, run: Path) -> None:
    from nws.analysis.comparison import Comparison
    from nws.analysis.report.scores import EARLY  # noqa: F401

    compared = Comparison("t", "c", run, "s", "exact/kl", False, 2, None, [])

    def action() -> None:
        rows = read_rows(run)
        compared.row(run)
        assert all(isinstance(row.get("samples", 1), int) for row in rows)

    broken_json(trial, run / "evaluation.json", action)


def test_provenance(trial: Trial, run: Path) -> None:
    """It is never in the way: a record of other types counts as none."""

    def action() -> None:
        record = read_provenance(run)
        made = read_run(run)
        _ = (made.state, made.steps, made.ms_per_step)
        given = {"command": ["train"], "version": "0", "overrides": [], "experiment": None}
        Provenance(run, given | {k: v for k, v in record.items() if k == "host"}, step=3).summary()

    file = run / "provenance.json"
    good = file.read_bytes()

    def fresh() -> None:
        content = file.read_bytes()
        try:
            action()
        finally:
            file.write_bytes(content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nws.experiment.provenance.code_of_this_process", lambda: None)
        broken_json(trial, file, fresh)
    assert file.read_bytes() == good
    trial.counts["refused"] += 4  # nothing is refused here


def test_metrics_and_configuration(trial: Trial, run: Path) -> None:
    trial.read_bytes(run / "metrics.csv", 40, lambda: read_run(run).best)
    trial.read_bytes(run / ".hydra" / "config.yaml", 20, lambda: open_run(run))


def test_kept_runs_of_comparisons(trial: Trial, tmp_path: Path) -> None:
    rows = [
        {"epoch": each, "seconds": 0.5, "valid_loss": 0.1, "valid_error": 0.2} for each in range(3)
    ]
    file = tmp_path / "kept.json"
    file.write_text(json.dumps({"settings": {"seed": 1}, "epochs": 2, "rows": rows}))
    broken_json(trial, file, lambda: score(_kept(file)))


# --- the command line -----------------------------------------------------------------------------


def test_what_a_user_sees(command: Command, run: Path) -> None:
    """One line, which says what to do; and no file is lost."""
    best, last = run / "checkpoints" / "best.pt", run / "checkpoints" / "last.pt"
    content = best.read_bytes()
    best.write_bytes(content[:-100])
    message = command("scripts/sample.py", str(run)).message()
    assert (
        message.count("\n") == 1 and "best.pt is not a checkpoint of nws or is damaged" in message
    )
    assert "last.pt beside it is good (step 8," in message and "--checkpoint last" in message
    assert f"cp {last} {best}" in message
    assert command("scripts/sample.py", str(run), "--checkpoint", "last").code == 0
    best.write_bytes(content)
    state = torch.load(last, weights_only=True)
    state["optimizer"]["state"][0]["exp_avg"] = torch.zeros(7)
    torch.save(state, last)
    message = command("train.py", f"resume={run}", "trainer.epochs=3").message()
    assert "last.pt does not fit this run: going on from it failed" in message
    assert "best.pt beside it is good" in message and message.count("\n") == 1
    state["machine"]["generator.layers.0.bias"][:3] = float("nan")
    torch.save(state, best)
    for program in ("sample", "evaluate"):
        message = command(f"scripts/{program}.py", str(run)).message()
        assert "3 of 64 numbers of generator.layers.0.bias are not finite" in message
    message = command("scripts/export.py", str(run), "small").message()
    assert "not finite" in message and not Path("small").exists()


def test_the_corpus_is_made_here() -> None:
    """The repository has no broken files."""
    assert {path.suffix for path in (ROOT / "tests" / "faults").iterdir() if path.is_file()} == {
        ".py"
    }
