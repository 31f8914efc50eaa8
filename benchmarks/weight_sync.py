"""New weights to an engine in another process, against a plain copy of their bytes plus vLLM's own loading.

    python benchmarks/weight_sync.py [--json FILE] [--rounds 10]

Every round times both, one after the other: `ours` is what a sync does (publish in the learner's process, an actor call, and
load in the engine's), the reference a copy of the same bytes in the learner's process plus the same engine loading tensors
that it already holds. The canary is left out of both. Printed: medians in seconds and
`ratio_vs_copy_and_load`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from functools import partial
from pathlib import Path
from typing import Any

import ray
import torch

from rapo_rllib.models.devices import resolved_dtype
from rapo_rllib.models.loading import load_causal_lm, resolve_model
from rapo_rllib.settings import EngineSettings, ModelSettings
from rapo_rllib.weights.packing import unpack_weights
from rapo_rllib.weights.publisher import Publication, publish

MODEL = "smollm2-135m-instruct"


@ray.remote(num_cpus=1)
class EngineActor:
    """A vLLM engine in a process of its own, as an env runner has it."""

    def __init__(self, dtype: str) -> None:
        from rapo_rllib.rollout.vllm.engine import VLLMEngine

        settings = EngineSettings(dtype=dtype, max_num_seqs=4, enforce_eager=True, kv_cache_gib=0.1)
        self.engine = VLLMEngine(resolve_model(MODEL), settings, max_model_len=64)
        self.held: dict[str, torch.Tensor] = {}

    def load(self, publication: Publication) -> int:
        """Load weights into the engine, as a sync does."""
        publication.load_into(self.engine.weights)
        return int(self.engine.policy_version)

    def hold(self, publication: Publication) -> None:
        """Keep a copy of the weights for ``load_held``."""
        self.held = unpack_weights(ray.get(publication.packed))

    def load_held(self) -> float:
        """Seconds of vLLM's own loading."""
        start = time.perf_counter()
        self.engine._engine.collective_rpc(partial(load_plainly, weights=self.held))
        return time.perf_counter() - start


def load_plainly(worker: Any, weights: dict[str, torch.Tensor]) -> None:
    """In an engine's worker: what vLLM does, without the notes that we take of it."""
    from vllm.config import set_current_vllm_config

    model = worker.model_runner.get_model()
    noting, model.load_weights = model.load_weights, worker._load
    with set_current_vllm_config(worker.vllm_config):
        worker.model_runner.reload_weights(weights_iterator=iter(weights.items()))
    model.load_weights = noting


def measure(rounds: int) -> dict[str, Any]:
    """Medians over ``rounds``, after two that warm up."""
    dtype = resolved_dtype("auto")
    model = load_causal_lm(ModelSettings(name_or_path=MODEL))
    tensors = {name: parameter.detach() for name, parameter in model.named_parameters()}
    copies = {name: torch.empty_like(tensor, dtype=getattr(torch, dtype)) for name, tensor in tensors.items()}
    actor = EngineActor.remote(dtype)
    ray.get(actor.hold.remote(publish(tensors, 0, getattr(torch, dtype))))
    times: dict[str, list[float]] = {"ours": [], "publish": [], "copy": [], "load": []}
    for version in range(1, rounds + 3):
        start = time.perf_counter()
        publication = publish(tensors, version, getattr(torch, dtype))
        times["publish"].append(time.perf_counter() - start)
        assert ray.get(actor.load.remote(publication)) == version
        times["ours"].append(time.perf_counter() - start)
        start = time.perf_counter()
        for name, tensor in tensors.items():
            copies[name].copy_(tensor)
        times["copy"].append(time.perf_counter() - start)
        times["load"].append(ray.get(actor.load_held.remote()))
    medians = {f"{name}_s": statistics.median(values[2:]) for name, values in times.items()}
    ratio = medians["ours_s"] / (medians["copy_s"] + medians["load_s"])
    megabytes = publication.num_bytes / 1e6
    return {"ratio_vs_copy_and_load": ratio, **medians, "megabytes": megabytes, "dtype": dtype, "rounds": rounds}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    found = measure(options.rounds)
    ray.shutdown()
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
