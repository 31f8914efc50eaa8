"""Weights that change under running requests of a real engine, checked token by token; also a program.

    python swapped_weights.py MODEL_FOLDER '{"tensor_parallel_size": 2}'

Prints what ``swapped`` found as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine_processes import forward

LONG = [3 + index % 27 for index in range(40)]  # more than a block of the prefix cache
PROMPTS = (LONG, [7, 8, 9], [10, 11, 12, 13, 14, 15])
TEMPERATURE = 0.7
TOKENS = 24


@dataclass
class Swapped:
    """What became of requests under which the weights changed twice."""

    versions: list[list[int]]  # of each request's tokens
    worst: dict[str, float]  # largest |engine - forward pass of the token's own version|, of logprobs and entropies
    apart: float  # mean |logprob of the token's own version - of the version before or after|: what a wrong version would show
    scores: float  # largest |engine - forward pass| of a sequence that was scored beside the requests
    again: float  # largest |engine - forward pass| of a request of the newest version whose prompt older ones had in the cache


def make_engine(folder: str, trained: Any = None, **settings: Any) -> Any:
    """One whose requests go on when weights change."""
    from rapo_rllib.rollout.vllm.engine import VLLMEngine
    from rapo_rllib.settings import EngineSettings

    options = {"dtype": "float32", "max_num_seqs": 4, "enforce_eager": True, "kv_cache_gib": 0.05, **settings}
    return VLLMEngine(folder, EngineSettings(**options), max_model_len=128, trained=trained)


def polls(count: int) -> Callable[[Any], list[Any]]:
    """So many steps of an engine whose core takes one where it is asked."""
    return lambda engine: [completion for _ in range(count) for completion in engine.poll()]


def three_versions(folder: str, lora: Any = None) -> list[tuple[Any, dict[str, Any]]]:
    """The model on disk, and two that differ from it more and more, each with what an engine is given: weights, or adapters."""
    import torch
    from transformers import AutoModelForCausalLM

    from rapo_rllib.learner.adapters import Adapters

    models = [AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval() for _ in range(3)]
    given = [dict(model.named_parameters()) if lora is None else Adapters(model, lora).tensors() for model in models]
    with torch.no_grad():
        for version, tensors in enumerate(given):
            for tensor in tensors.values():
                tensor.mul_(1 + 0.1 * version).add_(0.02 * version)
    return list(zip(models, given, strict=True))


def compared_by_version(models: Sequence[Any], done: list[Any]) -> tuple[dict[str, float], list[float]]:
    """Every token against the version that sampled it, and how far another version is from that."""
    worst, apart = {"logprobs": 0.0, "entropies": 0.0}, []
    for completion in done:
        prompt = PROMPTS[int(completion.request_id)]
        by_version = [forward(model, [*prompt, *completion.token_ids], len(prompt), TEMPERATURE) for model in models]
        for token, version in enumerate(completion.versions):
            ours = (completion.logprobs[token], completion.entropies[token])
            theirs = [values[token] for values in by_version[version]]
            for name, one, other in zip(worst, ours, theirs, strict=True):
                worst[name] = max(worst[name], abs(one - other))
            apart.append(abs(theirs[0] - by_version[version - 1 if version else 1][0][token]))
    return worst, apart


def swapped(folder: str, engine: Any, some: Callable[[Any], list[Any]], lora: Any = None) -> Swapped:
    """Generate with three versions of the weights, one after the other; ``some`` lets the engine write part of it."""
    from rapo_rllib.rollout.engine import GenerationRequest

    models, given = zip(*three_versions(folder, lora), strict=True)

    def load(version: int) -> list[float]:
        engine.weights.load(given[version], version)
        scores: list[float] = engine.score([list(PROMPTS[0])])[0]
        return scores

    load(0)
    for index, prompt in enumerate(PROMPTS):
        engine.submit(GenerationRequest(str(index), prompt, max_tokens=TOKENS, temperature=TEMPERATURE, seed=index))
    done, scored = some(engine), []
    for version in (1, 2):
        scored.append((load(version), forward(models[version], PROMPTS[0], 1, 1.0)[0]))
        done += some(engine) if version == 1 else []
    while engine.num_unfinished:
        done += engine.poll()
    worst, apart = compared_by_version(models, done)
    engine.submit(GenerationRequest("behind", LONG, max_tokens=4, temperature=TEMPERATURE))
    behind: list[Any] = []
    while engine.num_unfinished:
        behind += engine.poll()
    expected = forward(models[2], [*LONG, *behind[0].token_ids], len(LONG), TEMPERATURE)[0]
    return Swapped(
        versions=[list(completion.versions) for completion in sorted(done, key=lambda c: c.request_id)],
        worst=worst,
        apart=sum(apart) / len(apart),
        scores=max(abs(a - b) for ours, theirs in scored for a, b in zip(ours, theirs, strict=True)),
        again=max(abs(a - b) for a, b in zip(behind[0].logprobs, expected, strict=True)),
    )


def main() -> None:
    """Of a core that may be in a process of its own: what it writes until the first results come is a matter of time."""
    engine = make_engine(sys.argv[1], **json.loads(sys.argv[2]))
    found = swapped(sys.argv[1], engine, polls(4))
    engine.close()
    sys.stdout.write("\n" + json.dumps(asdict(found)))


if __name__ == "__main__":
    main()
