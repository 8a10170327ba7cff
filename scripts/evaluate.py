"""Log-likelihoods of runs on held-out images: `python scripts/evaluate.py RUN...`."""

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from omegaconf.errors import OmegaConfBaseException
from tqdm import tqdm

from nws.analysis.evaluation import Evaluation, Request, evaluate, find_runs, table
from nws.errors import UserError
from nws.experiment.run import pick_device
from nws.models.likelihood import Z_SAMPLES

UserErrors = (UserError, OmegaConfBaseException)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Importance-sampled log-likelihoods of runs, in nats per data point; added to evaluation.json of each. "
        "Stopped on the way, the same command goes on."
    )
    parser.add_argument(
        "runs",
        metavar="RUN",
        nargs="+",
        help="a run directory, or a sweep's: all the runs below it",
    )
    parser.add_argument(
        "--samples", type=int, default=1000, help="importance samples a data point (default 1000)"
    )
    parser.add_argument("--split", choices=["test", "valid"], default="test")
    parser.add_argument(
        "--data-points", type=int, help="only the first so many images (default: all)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the samples, the same for every run (default 0)"
    )
    parser.add_argument(
        "--checkpoint", choices=["best", "last"], default="best", help="default: best"
    )
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda (default auto)")
    parser.add_argument(
        "--batch",
        type=int,
        help="data points at once (default: by a bound on memory, see the table)",
    )
    parser.add_argument(
        "--p-star",
        action=argparse.BooleanOptionalAction,
        help="also log p* and log Z of the bidirectional machine (default: for the algorithms bihm and nbihm)",
    )
    parser.add_argument(
        "--z-samples", type=int, default=Z_SAMPLES, help=f"dreams for log Z (default {Z_SAMPLES})"
    )
    parser.add_argument(
        "--again", action="store_true", help="also compute what evaluation.json holds already"
    )
    arguments = vars(parser.parse_args())
    given, again, device = (
        arguments.pop("runs"),
        arguments.pop("again"),
        pick_device(arguments.pop("device")),
    )
    request = Request(**arguments)

    runs: list[Path] = []
    done: list[Evaluation] = []
    failures: list[tuple[object, Exception]] = []
    for path in given:
        try:
            runs += [run for run in find_runs(path) if run not in runs]
        except UserErrors as error:
            failures.append((path, error))
    for number, run in enumerate(runs, 1):
        bar = tqdm(
            desc=run.name if len(runs) == 1 else f"{run.name}, {number} of {len(runs)}", unit=" samples", unit_scale=True,
            leave=False, disable=not sys.stdout.isatty(), file=sys.stdout, dynamic_ncols=True,
        )  # fmt: skip

        def show(count: int, total: int, bar: "tqdm[int]" = bar) -> None:
            if bar.total is None:  # where an earlier evaluation stopped is no speed of this one
                bar.total, bar.initial, bar.n = total, count, count
            bar.update(count - bar.n)

        try:
            with bar:
                done.append(evaluate(run, request, device, again, show))
        except UserErrors as error:
            failures.append((run, error))
    if done:
        report(request, done)
    if len(failures) == 1 and not done:
        raise failures[0][1]
    if failures:
        lines = [f"  {path}: {error}" for path, error in failures]
        sys.exit(
            "\n".join(
                [
                    f"error: {len(failures)} of {len(done) + len(failures)} could not be evaluated",
                    *lines,
                ]
            )
        )


def report(request: Request, done: list[Evaluation]) -> None:
    """The table, what it means, and the last run's directory alone."""
    print(table(done))
    print(
        f"nats per data point, mean ± standard error over the data points; importance samples, seed {request.seed}, "
        f"{request.checkpoint} checkpoint; batch: data points at once"
    )
    for evaluation in done:
        if evaluation.unresolved:
            print(
                f"{evaluation.path}: log Z is too small for {evaluation.row['z_samples']} dreams, so it is likely too low and "
                "log p* too high, beyond the errors shown; take more with --z-samples"
            )
    held = sum(evaluation.held for evaluation in done)
    if held:
        print(f"{held} of {len(done)} stood in evaluation.json already; --again computes anew")
    if held < len(done):
        print(
            f"written to {'evaluation.json of each run' if len(done) > 1 else done[0].path / 'evaluation.json'}"
        )
    print(done[-1].path)


class Stopped(BaseException):
    """SIGINT or SIGTERM came."""


@contextmanager
def stopping() -> Iterator[None]:
    """Turn SIGINT and SIGTERM into `Stopped`, whose argument is the signal's number."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped(number)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    try:
        with stopping():
            main()
    except UserErrors as error:
        sys.exit(f"error: {error}")
    except Stopped as stop:
        print(
            f"stopped by signal {stop.args[0]}; what is computed is kept, and the same command goes on",
            file=sys.stderr,
        )
        sys.exit(128 + stop.args[0])
