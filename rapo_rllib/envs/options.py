"""``env_config`` as typed, checked options: every environment declares its keys as a frozen dataclass."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from rapo_rllib.envs.dataset_files import is_file_name
from rapo_rllib.protocol.steps import Answers
from rapo_rllib.rewards import RewardOptions, check_scorer, with_reward_preset
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.settings.knobs import Knobs, build, knob
from rapo_rllib.validation import nearest_key, require

SPLITS = ("train", "test")
Options = TypeVar("Options")


def check_split(split: str) -> None:
    """Raise ``ValueError`` unless ``split`` is one of ``SPLITS``."""
    if split not in SPLITS:
        raise ValueError(f"split = {split!r}: must be one of {', '.join(SPLITS)}")


def check_known(where: str, name: str, known: Collection[str], package: str) -> None:
    """Raise ``ValueError`` unless ``name``, the value of the key ``where``, is one of the names that a package knows."""
    if name not in known:
        raise ValueError(f"{where} = {name!r}: {package} has none of this name; {nearest_key(name, known)}")


def read_options(cls: type[Options], values: Mapping[str, Any], where: str = "env_config.") -> Options:
    """Build ``cls`` from a user's dictionary; nested dataclasses from nested dictionaries, tuples from lists.

    Raises:
        ValueError: an unknown key, named with the nearest valid one; or what ``cls`` itself refuses.
    """
    return build(cls, with_reward_preset(values), where)


def installed(module: str, env: str, package: str, extra: str) -> ModuleType:
    """Import a package that one environment needs. Raises ``ValueError``, saying what to install, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"env = {env!r} needs the package {package}: pip install 'rapo_rllib[{extra}]' ({error})") from error


@dataclass(frozen=True)
class ToolEnvOptions(Knobs):
    """Keys of ``env_config`` that every tool environment understands."""

    where: ClassVar[str] = "env_config."

    tools: tuple[Any, ...] = knob(
        ("python",), "names or import paths; or {name: ..., options: {...}}", rule="a list of tool names, for example [python]"
    )
    max_tool_calls: int = knob(3, "one call more ends the episode", at_least=0, hidden=True)
    scorer: Any = knob("math", "math, qa (token F1), qa_em, auto (by the question's source), judge, or package.module:function")
    read_answer: Answers = knob("tagged", "tagged: in <answer>; boxed: in the last box; any: either, or after usual phrases")
    require_boxed: bool = knob(True, "a well-formed answer holds one \\boxed{...}")
    reward: RewardOptions = knob(RewardOptions, "a mapping of weights, or the name of a preset")
    protocol: ProtocolSettings = knob(ProtocolSettings, "its tags are read here", hidden=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scorer(self.scorer)
        whole_text = self.protocol.format == "native" and self.reward.format_check == "whole_text"
        rule = "with protocol.format = 'native' there are no tags to check: must be 'final_step'"
        require(not whole_text, "reward.format_check", self.reward.format_check, rule)


@dataclass(frozen=True)
class CountOptions(Knobs):
    """The ``env_config`` keys of environments that generate their questions."""

    num_train: int = knob(10_000, "training questions", at_least=1)
    num_test: int = knob(500, "test questions, none of which is a training question", at_least=1)

    def count(self, split: str) -> int:
        """Return the number of questions of a split. Raises ``ValueError`` if there is no such split."""
        check_split(split)
        return self.num_train if split == "train" else self.num_test


@dataclass(frozen=True)
class SeedOptions(CountOptions):
    """The ``env_config`` keys of environments that draw their questions from a seed."""

    seed: int = knob(0, "other seeds, other questions; no question is in both splits of any seed", at_least=0)


@dataclass(frozen=True)
class DatasetOptions(Knobs):
    """The ``env_config`` keys of environments that ask the questions of a data set."""

    # a benchmark's name with a local copy (math500=./test.jsonl) reads the copy with the benchmark's field names
    dataset: str = knob(
        "", ".jsonl[.gz], .json, .parquet or .csv file, a folder, a Hugging Face id, or a benchmark's name (math500)"
    )
    dataset_config: str | None = knob(None, "configuration of a Hugging Face data set, for example 'main'")
    test_dataset: str | tuple[str, ...] | None = knob(
        None, "source of the test questions, or a list of sources; None: `dataset`, unless that is a file"
    )
    test_split: str = knob("test", "test split of a Hugging Face data set or folder; the training split is `train`")
    limit_train: int | None = knob(None, "use only the first so many training questions; None: all", at_least=1)
    limit_test: int | None = knob(None, "use only the first so many test questions of each data set; None: all", at_least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.dataset), "dataset", self.dataset, "name a data file or a Hugging Face id")

    def of_split(self, split: str) -> tuple[str, str, int | None]:
        """Return the key that names the data of ``split``, the split's name in that data, and the most questions to ask.

        Raises:
            ValueError: there is no such split, or no test questions are named.
        """
        check_split(split)
        if split == "test" and self.test_dataset is None and is_file_name(self.dataset):
            rule = f"{self.dataset} is one file, so it has no test split: name a file of test questions"
            require(False, "test_dataset", None, rule)
        if split == "train":
            return "env_config.dataset", split, self.limit_train
        key = "dataset" if self.test_dataset is None else "test_dataset"
        return f"env_config.{key}", self.test_split, self.limit_test
