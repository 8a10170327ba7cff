"""Tables of runs: a line for each, by what differs, and the means over their seeds."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pandas as pd

from nws.analysis import keys as naming
from nws.analysis.runs import Run, folder_names, frame, read_runs
from nws.analysis.tables import show, with_error
from nws.errors import UserError, explained
from nws.experiment.config import flatten, override_key
from nws.experiment.invocation import command_line

#: the columns that say what became of a run
OUTCOME = ("state", "best valid, nats", "ms/step", "epochs", "seconds")
#: what provenance.json says of a run's making
ORIGIN = ("version", "git", "torch", "device", "host", "layers", "parameters")


def runs_table(runs: Sequence[Run], keys: Sequence[str]) -> pd.DataFrame:
    """A line for each run: where it is, what differs, its state, best value and costs; as texts."""
    numbers = frame(runs)
    # trainer.epochs is not the epochs that are done
    named = {name: key for key, name in naming.short_names(keys).items() if name in OUTCOME}
    table = naming.columns_of(runs, keys).rename(columns=named)
    table.insert(0, "run", folder_names(runs))
    table["state"] = numbers["state"]
    table["best valid, nats"] = list(map(with_error, numbers["best"], numbers["error"]))
    table["ms/step"] = numbers["ms"].map("{:,.2f}".format)
    table["epochs"] = numbers["epochs"].map("{:.4g}".format)
    table["seconds"] = numbers["seconds"].map("{:,.1f}".format)
    return table.replace("nan", "")


def side_by_side(runs: Sequence[Run]) -> pd.DataFrame:
    """A column for each run: every key in which they differ, what they were made with, the end."""
    origins = [flatten({name: run.provenance.get(name) for name in ORIGIN}) for run in runs]
    pairs = zip(runs, origins, strict=True)
    every = [replace(run, config=run.config | origin) for run, origin in pairs]
    return runs_table(every, naming.all_differences(every)).set_index("run").T.reset_index(names="")


def means_table(
    runs: Sequence[Run], values: Sequence[float], keys: Sequence[str], name: str
) -> pd.DataFrame | None:
    """Means and sample standard deviations over runs that share all but the seed, as texts.

    A run has one of the `values`, nats, whose `name` the column has. Left out are those that are
    not finite, or of a run that did not finish. None where no group has several seeds.
    """
    table = naming.columns_of(runs, naming.but_seed(keys))
    heads = list(table)
    numbers = pd.Series(values, dtype=float).replace([float("inf"), -float("inf")], float("nan"))
    apart = [run.state not in ("finished", "unknown") for run in runs]
    numbers[apart] = float("nan")
    seeds = [run.config.get("seed") for run in runs]  # each counts once
    numbers[table.assign(seed=seeds, there=numbers.notna()).duplicated()] = float("nan")
    groups = numbers.groupby([table[head] for head in heads] or [0] * len(runs), sort=False)
    found = groups.agg(["count", "mean", "std"]).reset_index(drop=not heads)
    found = found[found["count"] > 0]
    if (found["count"] < 2).all():
        return None
    shown = found[[*heads, "count"]].rename(columns={"count": "seeds"}).astype(str)
    texts = list(map(with_error, found["mean"], found["std"]))
    without = f" ({sum(apart)} of {len(runs)} runs left out: not finished)" * any(apart)
    return shown.assign(**{f"{name}: mean ± deviation over seeds{without}": texts})


def print_sweep(directory: Path, choices: str | None = None) -> None:
    """Print the end of a sweep: its runs, the means over seeds, and the best run's directory.

    `choices` is a folder of the user's own, from --config-dir.
    """
    try:
        runs, wrong = read_runs([directory])
    except UserError:  # no job came to a run that can be read
        return
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    keys, numbers = naming.differing_keys(runs), frame(runs)
    print()
    show(runs_table(runs, keys))
    averages = means_table(runs, list(numbers["best"]), keys, "best valid, nats")
    if averages is not None:
        print()
        show(averages)
    if numbers["best"].isna().all() or any(k.startswith(("data.", "trainer.eval")) for k in keys):
        return
    place = int(numbers["best"].idxmax())
    name = f" {naming.label(runs[place], keys)}:" if keys else ""
    value = with_error(numbers["best"][place], numbers["error"][place])
    print(f"\nbest of {len(runs)} run{'s' * (len(runs) > 1)}:{name} {value} nats")
    if (overrides := runs[place].provenance.get("overrides")) is not None:
        kept = [] if choices is None else ["--config-dir", choices]
        kept += [text for text in overrides if override_key(text) not in ("resume", "hydra")]
        print(f"repeat it with\n  {command_line('train', *kept)}")
    print(runs[place].path)


def in_order(runs: Sequence[Run], where: str | None, sort: str | None) -> list[Run]:
    """The runs that a query of pandas chooses, sorted by a column; those without a value last."""
    table = with_short_names(frame(runs))
    if where:
        way = "--help has the names; keys with a dot are in backticks"
        what = "a query of pandas, such as 'algorithm == \"nrws\" and lr < 0.1'"
        with explained(f"--where takes {what}, got {where!r}", way):
            if not pd.api.types.is_bool_dtype(found := table.eval(where, engine="python")):
                raise ValueError("it is neither true nor false")
            table = table[found]
        if table.empty:
            raise UserError(f"none of {len(runs)} runs has {where}")
    if sort and sort != "run":  # they come in this order, 2 before 10
        column = table[naming.find_key(sort, table)]
        column = column if pd.api.types.is_numeric_dtype(column) else column.astype(str)
        upward = column.name not in ("best", "last")
        table = table.loc[column.sort_values(ascending=upward, kind="stable").index]
    return [runs[place] for place in table.index]


def with_short_names(table: pd.DataFrame) -> pd.DataFrame:
    """A table with lists as texts, and with a column for each short name of one key alone."""
    texts = table.apply(lambda c: c.map(lambda v: naming.value_text(str(c.name), v)))
    table = table.where(~table.map(lambda v: isinstance(v, str | list)), texts)
    keys, short = list(table), {}
    for name in {part for key in keys for part in key.split(".")} - {*keys}:
        with suppress(UserError):  # of a name that several keys have
            short[name] = table[naming.find_key(name, keys)]
    return table.assign(**short)
