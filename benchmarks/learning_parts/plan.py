"""The experiment on the chains, decided on before its first run that counts; ``benchmarks/learning_plan.md`` says why."""

from __future__ import annotations

from dataclasses import dataclass

from learning_parts.methods import ABLATIONS, CREDIT, MAIN, NOISE, PILOT, RATED, SAME_RATE, STALE

CALLS = (2, 3, 4)  # calculations of a chain: an experiment of its own each
PRIMARY = 3  # where noise, ablations and learning rates are looked at
POLICIES = 3  # base policies that pass the gates
SEEDS = 21  # of questions and chance; seed s begins with base policy s modulo POLICIES
STALE_SEEDS = 5
TIMED_SEEDS = (0, 1, 2)  # of which seconds are taken, in runs of their own, one at a time on an idle machine
TOKENS = 40_000  # generated in training, per run
RATES = (0.75e-4, 1.5e-4, 3e-4, 6e-4, 1.2e-3)
LATER_RATES = {"grpo": (2.4e-3,)}  # tried after the study, to see whether its rate was too low; not chosen from
RATE_SEEDS = (1000, 1001, 1002)  # are reported nowhere else
PILOT_SEEDS = (1000, 1001, 1002)  # are reported nowhere else
PILOT_CALLS = (3, 4)
PILOT_RATE = 6e-4  # that was chosen for RAPO, LUFFY and whole trajectories; GRPO's is twice as much
TARGET = 0.5  # held-out accuracy whose cost is reported
EQUIVALENT = 0.03  # a difference within this is none
WORD_ARMS = ("grpo", "rapo", "rapo_hidden")
WORD_MENDS = ("own",)  # of what is learned from a retrieved step, that which is tried with a language model
WORD_SEEDS = 12
WORD_POLICIES = 3
WORD_TOKENS = 30_000
WORD_RATES = (5e-6, 1e-5, 2e-5)
WORD_RATED = ("grpo", "rapo")
WORD_RATE_SEEDS = (1000,)
WORD_GATES = {"careful": (0.7, 1.0), "goes_on_1": (0.01, 0.05), "reads_1": (0.85, 1.0), "takes_over_1": (0.0, 0.15)}
GATES = {"careful": (0.9, 1.0), "goes_on_1": (0.01, 0.06), "reads_1": (0.85, 1.0), "takes_over_1": (0.0, 0.15)}


@dataclass(frozen=True)
class Planned:
    """One run."""

    arm: str
    seed: int
    calls: int


def runs() -> list[Planned]:
    """All that count, in the order in which they are done: the primary question first, seed by seed."""
    found = [Planned(arm, seed, calls) for calls in (PRIMARY, 2, 4) for seed in range(SEEDS) for arm in MAIN]
    others = [arm for arm in (*NOISE.values(), *ABLATIONS) if arm not in MAIN]
    found += [Planned(arm, seed, PRIMARY) for seed in range(SEEDS) for arm in others]
    found += [Planned(SAME_RATE, seed, 2) for seed in range(SEEDS)]
    found += [Planned(arm, seed, PRIMARY) for seed in range(SEEDS) for arm, seeds in CREDIT.items() if seed < seeds]
    return found + [Planned(arm, seed, PRIMARY) for seed in range(STALE_SEEDS) for arm in STALE]


def pilot_runs() -> list[Planned]:
    """The runs that options are chosen by, what is to be studied."""
    return [Planned(arm, seed, calls) for seed in PILOT_SEEDS for calls in PILOT_CALLS for arm in PILOT]


def timed_runs() -> list[Planned]:
    """The runs that seconds are taken of: other work beside the runs that count would be in theirs."""
    return [Planned(arm, seed, PRIMARY) for seed in TIMED_SEEDS for arm in MAIN]


def rate_runs() -> list[tuple[Planned, float]]:
    """The runs that learning rates are chosen by."""
    rates = {arm: (*RATES, *LATER_RATES.get(arm, ())) for arm in RATED}
    return [(Planned(arm, seed, PRIMARY), rate) for arm in RATED for rate in rates[arm] for seed in RATE_SEEDS]
