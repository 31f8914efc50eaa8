"""One vLLM engine in other processes, checked against a Hugging Face forward pass; a program, since modes are set per process.

    python engine_processes.py MODEL_FOLDER '{"tensor_parallel_size": 2}'

With ``"lora": true`` the second weights are the first ones with adapters, and only those are loaded.

Prints the largest differences as JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

PROMPTS = ([3, 4, 5, 6], [7, 8, 9], [10, 11, 12, 13, 14, 15])
TEMPERATURE = 0.7


def differences(folder: str, settings: dict[str, Any]) -> dict[str, float]:
    """Largest |engine - forward pass| of logprobs and entropies, with the first weights and with others."""
    import torch
    from transformers import AutoModelForCausalLM

    from rapo_rllib.learner.adapters import Adapters
    from rapo_rllib.rollout.vllm.engine import VLLMEngine
    from rapo_rllib.settings import EngineSettings, LoraSettings, ModelSettings

    options = {"dtype": "float32", "max_num_seqs": 4, "enforce_eager": True, "kv_cache_gib": 0.05}
    lora = LoraSettings(rank=4) if settings.pop("lora", False) else None
    trained = ModelSettings(folder, lora=lora)
    engine = VLLMEngine(folder, EngineSettings(**{**options, **settings}), max_model_len=64, trained=trained)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = {f"first/{name}": value for name, value in compared(engine, model).items()}
    sent = model.state_dict() if lora is None else Adapters(model, lora).tensors()
    with torch.no_grad():
        for tensor in {id(tensor): tensor for tensor in sent.values()}.values():
            tensor.mul_(1.1).add_(0.05 if lora else 0.0)
    found["one_more"] = one_more(engine)
    stale = compared(engine, model)
    engine.weights.load(sent, version=1)
    found |= {f"second/{name}": value for name, value in compared(engine, model).items()}
    scores = engine.score([list(PROMPTS[0])])[0]
    engine.close()
    found["second/score"] = max(abs(a - b) for a, b in zip(scores, forward(model, PROMPTS[0], 1, 1.0)[0], strict=True))
    return {**found, "stale/logprobs": stale["logprobs"], "in_process": float(engine.weights._in_process)}


def compared(engine: Any, model: Any) -> dict[str, float]:
    """Largest differences over three sampled continuations."""
    from rapo_rllib.rollout.engine import GenerationRequest

    for index, prompt in enumerate(PROMPTS):
        engine.submit(GenerationRequest(str(index), prompt, max_tokens=16, temperature=TEMPERATURE))
    done = []
    while engine.num_unfinished:
        done += engine.poll()
    worst = {"logprobs": 0.0, "entropies": 0.0}
    for completion in done:
        prompt = PROMPTS[int(completion.request_id)]
        logprobs, entropies = forward(model, [*prompt, *completion.token_ids], len(prompt), TEMPERATURE)
        for name, ours, theirs in (("logprobs", completion.logprobs, logprobs), ("entropies", completion.entropies, entropies)):
            worst[name] = max([worst[name], *(abs(a - b) for a, b in zip(ours, theirs, strict=True))])
    return worst


def one_more(engine: Any) -> float:
    """0 if a request goes on by one token, the same as without a stop, behind its final stop string; the core runs ahead."""
    from rapo_rllib.rollout.engine import GenerationRequest

    def greedy(name: str, **options: Any) -> Any:
        engine.submit(GenerationRequest(name, PROMPTS[0], max_tokens=16, temperature=0.0, **options))
        done: list[Any] = []
        while engine.num_unfinished:
            done += engine.poll()
        return done[0]

    free = list(greedy("free").token_ids)
    stop, place = next((text, i) for i, token in enumerate(free) if (text := engine._tokenizer.decode([token]).strip()))
    stopped = greedy("stopped", stop=(stop,), final_stop=stop)
    return float(not (stopped.token_ids == free[: place + 2] and stopped.finish == "stop" and stopped.text.endswith(stop)))


def forward(model: Any, tokens: Any, start: int, temperature: float) -> tuple[list[float], list[float]]:
    """Logprobs and entropies of ``tokens[start:]`` under ``softmax(logits / temperature)``."""
    import torch

    with torch.no_grad():
        logits = model(torch.tensor([list(tokens)])).logits[0, start - 1 : -1].double() / temperature
    log_p = torch.log_softmax(logits, -1)
    chosen = log_p.gather(-1, torch.tensor(tokens[start:])[:, None])[:, 0]
    return chosen.tolist(), (-(log_p.exp() * log_p).sum(-1)).tolist()


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(differences(sys.argv[1], json.loads(sys.argv[2]))))
