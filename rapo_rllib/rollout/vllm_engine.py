"""The vLLM engine of one env runner, driven by our own loop. DESIGN section 4.

Together with ``vllm_entropy`` and ``vllm_worker`` the only code that imports vLLM.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rapo_rllib.errors import EngineError, WeightSyncError
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.settings import EngineSettings

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

logger = logging.getLogger(__name__)

# They warn at every call of what is meant here: the learner beside the engine sets the threads of PyTorch, weights are loaded
# by name, modules without any receive none, and prompts are tokens already.
_CHATTY_LOGGERS = (
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.model_loader.reload.layerwise",
    "vllm.v1.engine.input_processor",
)


def _set_environment(settings: EngineSettings) -> None:
    """vLLM reads these when it is imported; what the user has set stays."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if settings.tensor_parallel_size == 1:
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")


class VLLMEngine:
    """``Engine`` on vLLM's ``LLMEngine``: continuous batching, prefix cache, exact entropies, confirmed weights."""

    def __init__(self, model_path: str, settings: EngineSettings, *, max_model_len: int, seed: int = 0) -> None:
        _set_environment(settings)
        import torch
        from vllm import EngineArgs, LLMEngine

        arguments: dict[str, Any] = {
            "model": model_path,
            "dtype": settings.dtype,
            "max_num_seqs": settings.max_num_seqs,
            "max_model_len": settings.max_model_len or max_model_len,
            "gpu_memory_utilization": settings.gpu_memory_utilization,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "enforce_eager": settings.enforce_eager,
            "enable_prefix_caching": True,
            "logprobs_mode": "processed_logprobs",  # of the distribution sampled from, temperature included
            "logits_processors": ["rapo_rllib.rollout.vllm_entropy:EntropyRecorder"],
            "worker_extension_cls": "rapo_rllib.rollout.vllm_worker.PolicyWorker",
            "generation_config": "vllm",  # a model's own sampling defaults would change the distribution
            "seed": seed,
            "disable_log_stats": True,
        }
        if not torch.cuda.is_available():
            # vLLM's CPU default of 128 leaves most of a short prompt outside the prefix cache, which holds full blocks only
            arguments["block_size"] = 32
            arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * 2**30)
        try:
            self._engine = LLMEngine.from_engine_args(EngineArgs(**{**arguments, **settings.extra}))
        except Exception as error:
            raise EngineError(f"vLLM could not start with model {model_path!r}: {error}") from error
        for name in _CHATTY_LOGGERS:  # now: starting an engine sets all levels anew
            logging.getLogger(name).setLevel(logging.ERROR)
        self._tokenizer = self._engine.get_tokenizer()
        self.policy_version = 0
        self._scored = 0

    @property
    def num_unfinished(self) -> int:
        """Requests that are queued or running."""
        return self._engine.get_num_unfinished_requests()

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request; it joins the running batch."""
        prompt = {"prompt_token_ids": list(request.token_ids)}
        self._engine.add_request(request.request_id, prompt, _sampling_params(request))

    def poll(self) -> list[Completion]:
        """One engine step; returns the requests that finished in it."""
        try:
            finished = [output for output in self._engine.step() if output.finished]
            return [self._completion(output, *recorded) for output, recorded in self._with_entropies(finished)]
        except Exception as error:
            raise EngineError(f"vLLM failed in a step with {self.num_unfinished} requests: {error}") from error

    def _with_entropies(self, outputs: list[RequestOutput]) -> list[tuple[RequestOutput, tuple[dict[int, float]]]]:
        if not outputs:
            return []
        recorded = self._engine.collective_rpc("take_entropies", args=([o.request_id for o in outputs],))[0]
        return [(output, (entropies,)) for output, entropies in zip(outputs, recorded, strict=True)]

    def _completion(self, output: RequestOutput, recorded: dict[int, float]) -> Completion:
        generated = output.outputs[0]
        token_ids = list(generated.token_ids)
        logprobs = [step[token].logprob for token, step in zip(token_ids, generated.logprobs or [], strict=True)]
        if recorded and not all(position in recorded for position in range(len(token_ids))):
            raise EngineError(f"{len(recorded)} entropies for the {len(token_ids)} tokens of request {output.request_id}")
        finish = str(generated.finish_reason)
        if finish == "stop" and generated.stop_reason is None:
            finish = "eos"
        whole = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        spill = whole[len(generated.text) :] if finish == "stop" and whole.startswith(generated.text) else ""
        entropies = [recorded.get(position, 0.0) for position in range(len(token_ids))]
        return Completion(output.request_id, token_ids, logprobs, entropies, generated.text, spill, finish, self.policy_version)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests, and what was recorded of them."""
        self._engine.abort_request(list(request_ids))
        self._engine.collective_rpc("take_entropies", args=(list(request_ids),))

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Replace the policy's weights (checkpoint name -> tensor) and forget every cached prefix."""
        for missing in self._engine.collective_rpc("load_policy_weights", args=(dict(weights),)):
            if missing:
                shown = ", ".join(missing[:3])
                raise WeightSyncError(
                    f"weight version {version}: {len(missing)} parameters of the engine received nothing ({shown}, ...)"
                )
        self._engine.reset_prefix_cache()
        self.policy_version = version

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Teacher-forced logprob of every token but the first of each sequence, nats, at temperature 1."""
        from vllm import SamplingParams

        if self.num_unfinished:
            raise EngineError(f"score() needs an idle engine, but {self.num_unfinished} requests are running")
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        names = []
        for sequence in sequences:
            self._scored += 1
            names.append(f"score-{self._scored}")
            self._engine.add_request(names[-1], {"prompt_token_ids": list(sequence)}, params)
        results: dict[str, list[float]] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    results[output.request_id] = _prompt_logprobs(output)
        return [results[name] for name in names]

    def close(self) -> None:
        """Free the engine's memory and processes."""
        self._engine.engine_core.shutdown()


def _sampling_params(request: GenerationRequest) -> SamplingParams:
    from vllm import SamplingParams

    from rapo_rllib.rollout.vllm_entropy import EXTRA_ARG

    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        stop=list(request.stop),
        include_stop_str_in_output=True,
        logprobs=0,  # the sampled token's only
        extra_args={EXTRA_ARG: request.request_id} if request.record_entropy else None,
    )


def _prompt_logprobs(output: RequestOutput) -> list[float]:
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return [step[token].logprob for token, step in pairs]
