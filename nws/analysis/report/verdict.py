"""The verdict of a report: which method is best, by how much, how sure, and at what price."""

import math
from collections.abc import Sequence

import numpy as np

from nws.analysis.curves import Band, count, group_runs, interpolate, with_column
from nws.analysis.report.scores import LEVEL, Difference, Measure, Score, difference, measure
from nws.analysis.runs import LOG_LIKELIHOOD, Run, differing_keys

MAX_NAMES = 5  # methods that a sentence names one by one
MACHINE = ("host", "device", "processor", "threads", "torch")  # what times depend on


def verdict(runs: Sequence[Run]) -> list[str]:
    """Compare the methods among runs, in sentences; of one method say how good it is."""
    kept = [run for run in runs if run.state != "diverged" and run.best]
    sentences = _about_states(runs)
    if not kept:
        return sentences
    groups = group_runs(kept)
    data = [key for key in differing_keys(kept) if key.startswith("data.")]
    if data:
        names = ", ".join(data)
        return [*sentences, f"No verdict: the runs are of different data ({names} differ)."]
    found = measure(groups)
    if found is None:
        reason = "they were validated with different numbers of samples or images"
        return [*sentences, f"No verdict: {reason}; evaluate all of them with the same options."]
    ranked = sorted(found.scores, key=lambda score: -score.mean)
    sentences = [_best(ranked[0], found, groups), *_against(ranked), *sentences]
    return [*sentences, *_price(groups, ranked)]


def _about_states(runs: Sequence[Run]) -> list[str]:
    """A sentence on the runs that did not come to their end."""
    counts = {state: sum(run.state == state for run in runs) for state in _states(runs)}
    parts = [f"{number} {state}" for state, number in counts.items() if state != "finished"]
    early = sum(not run.best for run in runs if run.state != "diverged")
    parts += [f"{early} without an evaluation yet"] * bool(early)
    if not parts:
        return []
    lost = counts.get("diverged") and len(runs) > 1
    left_out = "; those that diverged are in no mean" * bool(lost)
    return [f"Not all runs are finished: {', '.join(parts)}, of {len(runs)}{left_out}."]


def _states(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(run.state for run in runs))


def number(score: Score) -> str:
    """A score in words: -243.0 ± 0.1 nats."""
    error = "" if math.isnan(score.error) else f" ± {score.error:.2f}"
    return f"{score.mean:.2f}{error} nats"


def _best(best: Score, found: Measure, groups: dict[str, list[Run]]) -> str:
    if len(groups) == 1:
        over = "seeds" if best.over_seeds else "images"
        noise = f"{'mean ' * best.over_seeds}± standard error over {over}"
        runs = count(groups[best.method])
        return f"{best.method}, {runs}: {number(best)} ({noise}), {found.words}."
    over = f"{len(best.values)} seeds" if best.over_seeds else "images, one seed"
    first = f"Best of {len(groups)} configurations: {best.method} with {number(best)}"
    return f"{first} (mean ± standard error over {over}), {found.words}."


def _against(ranked: Sequence[Score]) -> list[str]:
    """Sentences on the distance of the best from the next, and on all within the noise."""
    if len(ranked) < 2:
        return []
    best, rest = ranked[0], ranked[1:]
    level = LEVEL / len(rest)
    found = {score.method: difference(best, score) for score in rest}
    second = rest[0]
    sentences = [_distance(second, found[second.method], level)]
    if len(rest) > 1:
        near = [score for score in rest if not found[score.method].p < level]
        if near:
            names = "; ".join(score.method for score in near[:MAX_NAMES])
            more = f" and {len(near) - MAX_NAMES} others" * (len(near) > MAX_NAMES)
            sentences.append(f"Within the noise of the best: {names}{more}.")
        else:
            last = rest[-1]
            distance = f"{found[last.method].value:.2f} nats behind"
            sentences.append(f"All others are beyond the noise; last is {last.method}, {distance}.")
    if not all(each.over_seeds for each in found.values()):
        sentences.append(
            "Where a method has one seed, the errors are those over images. How far seeds differ "
            "is unknown then. All methods share the images, so small differences may still be real."
        )
    return sentences


def _distance(second: Score, found: Difference, level: float) -> str:
    test = "Welch's t-test" if found.over_seeds else "errors over images"
    chance = "p < 0.001" if found.p < 0.001 else f"p = {found.p:.2g}"
    if math.isnan(found.p):
        sure = "how sure this is is unknown, as there is no standard error"
    else:
        beyond = "beyond the noise" if found.p < level else "within the noise"
        sure = f"{beyond} ({test}: {chance}, limit {level:.2g})"
    error = "" if math.isnan(found.error) else f" ± {found.error:.2f}"
    ahead = f"It is {found.value:.2f}{error} nats ahead of {second.method} ({number(second)})"
    return f"{ahead}: {sure}."


def _price(groups: dict[str, list[Run]], ranked: Sequence[Score]) -> list[str]:
    """Sentences on the seconds of training, where all runs had the same machine."""
    if len(groups) < 2:
        return []
    machines = {tuple(run.provenance.get(key) for key in MACHINE) for run in groups_runs(groups)}
    if len(machines) > 1 or None in next(iter(machines)):
        known = "differ" if len(machines) > 1 else "are unknown"
        return [f"Seconds are not compared, as the machines {known}."]
    seconds = {name: float(np.mean([run.last["seconds"] for run in runs]))
               for name, runs in groups.items()}  # fmt: skip
    best, second = ranked[0].method, ranked[1].method
    ratio = seconds[best] / seconds[second] if seconds[second] else math.nan
    times = f" ({ratio:.2g} times as long)" if math.isfinite(ratio) else ""
    text = (
        f"Training took {seconds[best]:.1f} s for {best} and {seconds[second]:.1f} s for {second}"
    )
    return [f"{text}{times}, without evaluation.", *_by_the_clock(groups, best)]


def groups_runs(groups: dict[str, list[Run]]) -> list[Run]:
    """All runs of groups."""
    return [run for runs in groups.values() for run in runs]


def _by_the_clock(groups: dict[str, list[Run]], best: str) -> list[str]:
    """Who was ahead on validation images when the first method came to its end."""
    bands = {name: _by_seconds(runs) for name, runs in groups.items()}
    if any(len(band.x) < 2 for band in bands.values()):
        return []
    first = min(bands, key=lambda name: bands[name].x[-1])
    now = bands[first].x[-1]
    if any(band.x[0] > now for band in bands.values()):
        return []
    values = {name: float(np.interp(now, band.x, band.mean)) for name, band in bands.items()}
    leader = max(values, key=lambda name: values[name])
    start = f"After {now:.1f} s, when {first} ended"
    ahead = f"{leader} led on validation images with {values[leader]:.2f} nats"
    if leader == best:
        others = {name: value for name, value in values.items() if name != best}
        next_one = max(others, key=lambda name: others[name])
        return [f"{start}, {ahead}; next was {next_one} with {others[next_one]:.2f}."]
    return [f"{start}, {ahead}; {best} was at {values[best]:.2f}."]


def _by_seconds(runs: Sequence[Run]) -> Band:
    return interpolate(with_column(runs, LOG_LIKELIHOOD), "seconds", LOG_LIKELIHOOD)
