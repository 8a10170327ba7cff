"""A run as a user meets it: the command line, the files that it leaves, what it says meanwhile."""

import json
import os
import re
import select
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import conftest
import pytest
import yaml
from conftest import CONF, FINISHED, ROOT, SMALL, TWO_STEPS, Command, checkpoint, metrics, names
from PIL import Image

from nws.experiment import provenance
from nws.experiment.provenance import read_code, read_provenance


def test_a_run_leaves_what_the_documents_say(train: Command, tmp_path: Path) -> None:
    outcome = train("callbacks.images.every=2")
    run = outcome.run
    assert outcome.code == 0 and outcome.err == "" and run.parent == tmp_path / "outputs/digits_rws"
    files = sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.is_file())
    pictures = [f"images/{name}_step_0000012.png" for name in ("generated", "reconstructed")]
    diff = [name for name in ("provenance.diff",) if name in files]  # of a tree with changes
    assert files == sorted(
        [".hydra/config.yaml", ".lock", "checkpoints/best.pt", "checkpoints/last.pt", *diff,
         *pictures, "metrics.csv", "provenance.json", "train.log"]
    )  # fmt: skip
    with Image.open(run / pictures[0]) as picture:
        assert picture.width > 400 and picture.height > 400
    rows = metrics(run, start=True)
    assert [row["step"] for row in rows] == ["0", "6", "12"]
    assert {
        "epoch", "valid/log_likelihood", "valid/standard_error", "train/ess", "learning_rate",
        "train/log_likelihood", "train/dream_loss",
    } <= rows[0].keys()  # fmt: skip
    assert rows[0]["train/ess"] == "" and float(rows[1]["train/ess"]) > 1
    best = max(float(row["valid/log_likelihood"]) for row in rows[1:])
    assert checkpoint(run)["best"] == best == checkpoint(run, "best.pt")["best"]
    config = yaml.safe_load((run / ".hydra" / "config.yaml").read_text())
    assert config["name"] == "digits_rws" and config["data"]["root"] == str(tmp_path / "data")
    record = read_provenance(run)
    assert (record["state"], record["steps"], record["overrides"]) == (
        "finished", 12, [*SMALL, "callbacks.images.every=2"],
    )  # fmt: skip
    assert record["best"] == best and record["command"][:2] == ["python", str(ROOT / "train.py")]
    assert "step      12" in (run / "train.log").read_text()
    lines = outcome.out.splitlines()  # which is no terminal
    labels = ("algorithm", "metric", "optimizer", "data", "layers", "device", "steps", "directory")
    assert lines[0].startswith("digits_rws (nws ")
    assert [line.split()[0] for line in lines[1:9]] == list(labels)
    assert [line.split()[3] for line in lines[9:12]] == ["0", "6", "12"]
    assert lines[12] == "finished" and "next:" in lines
    commands = [shlex.split(line) for line in lines[lines.index("next:") + 1 : -1]]
    place = os.path.relpath(run)
    assert all(Path(words[1]).is_file() and words[2] == place for words in commands)
    assert lines[-1] == str(run)


def on_a_terminal(*arguments: str) -> str:
    """What train.py writes to a pseudo-terminal of 100 columns."""
    child, screen = os.forkpty()
    if child == 0:
        os.environ.update(COLUMNS="100", TERM="xterm", PYTHONPATH=str(ROOT))
        os.execv(sys.executable, [sys.executable, str(ROOT / "train.py"), *SMALL, *arguments])
    text = b""
    while select.select([screen], [], [], 100)[0]:
        try:
            text += os.read(screen, 65536)
        except OSError:  # its end
            break
    assert os.waitpid(child, 0)[1] == 0, text.decode()
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.decode())


@pytest.mark.slow
def test_a_bar_below_lines_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """progress=false silences the bar alone."""
    monkeypatch.chdir(tmp_path)
    for progress in ("true", "false"):
        shown = on_a_terminal("trainer.epochs=9", f"progress={progress}")
        assert "digits_rws (nws " in shown and "finished\r\n" in shown and "next:" in shown
        assert ("epoch 9.00 of 9" in shown) == (progress == "true")


def test_the_seed_fixes_a_run_and_overrides_change_it(train: Command, finished: Path) -> None:
    conftest.assert_same_run(finished, train("hydra.run.dir=again", *FINISHED).run)
    assert metrics(finished) != metrics(train("seed=1", *FINISHED).run)
    odd = train(
        "data.name=2026", "optimizer=momentum", "+optimizer.weight_decay=0.5", "~optimizer.fused",
        "++trainer.epochs=1", "trainer.batch_size=2e2", "hydra.job_logging.root.level=INFO",
    )  # fmt: skip
    assert odd.code == 0 and odd.run.parent.name == "2026_rws"  # Hydra makes it a number
    (group,) = checkpoint(odd.run)["optimizer"]["param_groups"]
    assert (group["weight_decay"], group["momentum"]) == (0.5, 0.9) and not group["fused"]
    assert checkpoint(odd.run)["step"] == 6


def test_choices_of_ones_own(command: Command, tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "quick.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /optimizer: sgd\ntrainer:\n  epochs: 1\n"
    )
    rest = [each for each in SMALL if "epochs" not in each]
    own = ("--config-dir", str(tmp_path / "mine"), "experiment=quick")
    run = command("train.py", *own, *rest, "hydra.run.dir=run").run
    assert "SGD" in (run / ".hydra/config.yaml").read_text() and checkpoint(run)["step"] == 6
    assert command("train.py", "resume=run", "trainer.epochs=2").code == 0
    assert checkpoint(run)["step"] == 12


#: Every choice of every group, in eight runs; then optimizers of torch, and options of no preset.
GROUPS = (
    "algorithm", "model", "average", "scheduler", "optimizer", "metric", "solver", "damping",
)  # fmt: skip
OPTIONS = (
    "metric.max_kl=0.1", "model.units=bipolar", "data.binarize=static", "trainer.epochs=0.001",
    "debug=short", "trainer.precision=tf32", "model/visible=gaussian",
    "model/visible=poisson model.visible.scale=0.0625",
)  # fmt: skip
LARGE = ("visible/gaussian", "visible/poisson", "published", "deep")
TORCH = ("Adadelta", "RMSprop optimizer.lr=0.001", "Rprop", "RAdam", "Muon")


@pytest.mark.parametrize("number", range(8 + len(TORCH)))
def test_every_choice_trains(command: Command, number: int) -> None:
    words = OPTIONS[number % 8].split()
    for group in GROUPS:
        choices = [each for each in names(group) if each not in LARGE]
        assert len(choices) <= 8
        words.append(f"{group}={choices[number % 8 % len(choices)]}")
    if number >= 8:
        plain = ("~optimizer.betas", "~optimizer.fused", "optimizer=adam")
        words += [*plain, *f"optimizer._target_=torch.optim.{TORCH[number - 8]}".split()]
    outcome = command("train.py", *TWO_STEPS, "trainer.batch_size=50", *words)
    idle = "WARNING: no part of this run takes "  # of a rule without a metric, say
    said = outcome.err.count(idle) + ("ScheduleFree, rate" in outcome.out)  # which falls twice
    assert outcome.code == 0 and outcome.err.count("\n") == said, outcome.err
    assert idle in outcome.err or "algorithm=n" in " ".join(words)
    assert (rows := metrics(outcome.run)) and all(row["valid/log_likelihood"] for row in rows)
    as_they_are = "binarize: none" in (outcome.run / ".hydra" / "config.yaml").read_text()
    assert as_they_are == words[0].startswith("model/visible=")


def test_help(command: Command) -> None:
    shown = command("train.py", "--help")
    assert shown.code == 0 and shown.out.startswith(f"usage: python {ROOT / 'train.py'} [-m]")
    assert (CONF / "config.yaml").read_text().strip() in shown.out and "benchmark/sbn" in shown.out
    assert f"\n  optimizer=         {', '.join(names('optimizer'))}\n" in shown.out
    metric = command("train.py", "--help", "metric").out
    for choice in names("metric"):
        assert (CONF / "metric" / f"{choice}.yaml").read_text().strip() in metric
    Path("own/metric").mkdir(parents=True)
    Path("own/metric/mine.yaml").write_text("_target_: my_ideas.Mine")
    own = command("train.py", "--help", "metric", "--config-dir", "own").out
    assert own.startswith(metric.strip()) and own.endswith("metric=mine\n_target_: my_ideas.Mine\n")
    assert "--help takes the groups " in command("train.py", "--help", "metrics").message()
    printed = command("train.py", "--cfg", "job", "seed=7")
    assert "\nseed: 7\n" in printed.out and not Path("outputs").exists()


def test_its_code_is_kept(train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean tree has a commit alone; the diff of another, with its new files, makes it again."""
    tree = tmp_path / "tree"

    def git(*arguments: str, **more: Any) -> bytes:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e@e", "-C", tree, *arguments]
        read_code.cache_clear()
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, **more).stdout

    assert read_code(tmp_path) is None
    tree.mkdir()
    git("init", "-q")
    (tree / "code.py").write_text("x = 1\n")
    git("add", ".")
    git("commit", "-qm", "one")
    commit = git("rev-parse", "HEAD").decode().strip()
    assert read_code(tree) == (commit, b"")
    (tree / "code.py").write_text("x = 2\n")
    (tree / "new.py").write_text("y = 3\n")
    status = git("status", "--short")
    code = read_code(tree)
    assert code is not None and code[0] == commit and git("status", "--short") == status
    git("stash", "-qu")
    git("apply", input=code[1])
    assert (tree / "code.py").read_text() == "x = 2\n" and (tree / "new.py").exists()
    monkeypatch.setattr(provenance, "read_code", lambda: code)
    run = train("hydra.run.dir=run", "trainer.epochs=0.5").run
    facts = read_provenance(run)["git"]
    assert facts == {"commit": commit, "changed": True, "diff": "provenance.diff"}
    monkeypatch.setattr(provenance, "read_code", lambda: ("f" * 40, b"other"))
    resumed = train("resume=run", "trainer.epochs=1")
    assert resumed.code == 0 and ", fffffff with changes)" in resumed.out + resumed.err
    (entry,) = read_provenance(run)["resumed"]
    assert entry["step"] == 3 and entry["git"]["commit"] == "f" * 40 and entry["git"]["changed"]
    assert (run / entry["git"]["diff"]).read_bytes() == b"other"
    assert (run / "provenance.diff").read_bytes() == code[1]  # that of the start


def test_a_damaged_record_is_never_in_the_way(command: Command, finished: Path) -> None:
    for number, text in enumerate(("", "[" * 10**5, '{"resumed": 3}')):
        (finished / "provenance.json").write_text(text)
        outcome = command("train.py", "resume=run", f"trainer.epochs={2.2 + number / 5}")
        assert outcome.code == 0, outcome.err
        assert read_provenance(finished)["state"] == "finished"


def test_a_killed_run_reads_as_killed_on_the_host_that_had_it_last(tmp_path: Path) -> None:
    here, gone = {"host": socket.gethostname()}, {"state": "running", "pid": 2**30}
    away = {"host": "elsewhere"}
    for record, state in (
        (here | {"resumed": []}, "killed"),
        (away | {"resumed": [here]}, "killed"),
        (here | {"resumed": [away]}, "running"),
    ):
        (tmp_path / "provenance.json").write_text(json.dumps(record | gone))
        assert read_provenance(tmp_path)["state"] == state, record


@pytest.mark.parametrize(("words", "said"), [
    ("model/visible=gaussian data.binarize=static", "the images are 0 and 1, not values of Gau"),
    ("model/visible=poisson", "no whole counts; take model.visible.scale=0.0625"),
    ("algorithm=bihm algorithm.dreams=3", "no part of this run takes algorithm.dreams=3"),
    ("model/visible=gaussian", ""), ("data.binarize=none", ""),
    ("algorithm=bihm algorithm.dreams=null", ""), ("algorithm=rws algorithm.dreams=3", ""),
    ("algorithm=nbihm algorithm.dreams=3", ""),
])  # fmt: skip
def test_what_fits_badly_is_said_once(command: Command, words: str, said: str) -> None:
    outcome = command("train.py", *TWO_STEPS, *words.split())
    assert outcome.code == 0 and len(outcome.warnings) == bool(said), outcome.err
    assert said in "".join(outcome.warnings)
