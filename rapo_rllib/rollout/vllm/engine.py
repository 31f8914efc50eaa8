"""The vLLM engine of one env runner, driven by our own loop.

vLLM is imported when an engine is made, not with this module.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rapo_rllib.errors import EngineError, RequestError
from rapo_rllib.rollout.engine import Completion, GenerationRequest
from rapo_rllib.rollout.vllm.last_token import sample_one_more
from rapo_rllib.rollout.vllm.weights import EngineWeights
from rapo_rllib.settings import EngineSettings, ModelSettings

if TYPE_CHECKING:
    from vllm import RequestOutput, SamplingParams

    from rapo_rllib.rollout.vllm.late_values import TokenRecord

logger = logging.getLogger(__name__)


def _set_environment() -> None:
    """Set the variables that vLLM reads on import; the user's values stay, except for the process in which its core runs."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # vLLM warns of things that are intended here
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")  # the recorder attaches to the first one's sampler
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # vLLM's core runs in this process, whose loop steps it


CPU_BLOCK = 32  # tokens; with vLLM's 128 most of a short prompt stays out of the prefix cache, which holds full blocks only
FIRST = -1  # priority of scoring requests; requests of trajectories have 0


class VLLMEngine:
    """``Engine`` on vLLM's ``LLMEngine``: continuous batching, prefix cache, exact entropies, confirmed weights."""

    def __init__(
        self,
        model_path: str,
        settings: EngineSettings,
        *,
        max_model_len: int,
        seed: int = 0,
        weight_transfer: str | None = None,  # backend of vLLM's own weight transfer: nccl or ipc
        trained: ModelSettings | None = None,  # how the learner trains the model: with LoRA, adapters are loaded, not weights
    ) -> None:
        _set_environment()
        from vllm import EngineArgs, LLMEngine
        from vllm.platforms import current_platform

        arguments = engine_arguments(
            model_path,
            settings,
            max_model_len=max_model_len,
            seed=seed,
            weight_transfer=weight_transfer,
            on_cpu=current_platform.is_cpu(),
        )
        gc.freeze()  # else vLLM's garbage collections scan all that was imported, for seconds; vLLM unfreezes when it ends
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # vLLM's own use of torch
                self._engine = LLMEngine.from_engine_args(EngineArgs(**arguments))
        except Exception as error:
            gc.unfreeze()
            raise EngineError(f"vLLM could not start with model {model_path!r}: {error}") from error
        self._engine.collective_rpc("start_recording")
        if trained is not None and trained.lora is not None:
            self._engine.collective_rpc("merge_adapters", args=(trained.lora.scaling, trained.dtype))
        in_process = settings.tensor_parallel_size == 1
        self.weights = EngineWeights(self._engine, in_process)
        self._tokenizer = self._engine.get_tokenizer()
        self._finished_beside: list[RequestOutput] = []  # requests that finished while sequences were scored
        self._scored = 0

    @property
    def policy_version(self) -> int:
        """The version of the weights that generate."""
        return self.weights.version

    @property
    def num_unfinished(self) -> int:
        """Requests that are queued or running."""
        return self._engine.get_num_unfinished_requests()

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request, which joins the running batch. Raises ``RequestError`` if vLLM refuses its input."""
        from vllm.exceptions import VLLMClientError

        self.weights.check()
        prompt = {"prompt_token_ids": list(request.token_ids)}
        try:
            internal_id = self._engine.add_request(request.request_id, prompt, _sampling_params(request))
            if request.final_stop is not None:
                sample_one_more(self._engine, internal_id, request.final_stop, request.max_tokens)
        except (VLLMClientError, ValueError) as error:
            raise RequestError(f"vLLM refused a request of {len(request.token_ids)} tokens: {error}") from error
        except Exception as error:
            raise EngineError(f"vLLM could not take request {request.request_id}: {error}") from error

    def poll(self) -> list[Completion]:
        """Run one engine step; returns the requests that finished in it."""
        try:
            beside, self._finished_beside = self._finished_beside, []
            finished = [*beside, *(output for output in self._engine.step() if output.finished)]
            return [self._completion(output, record) for output, record in self._with_records(finished)]
        except Exception as error:
            raise EngineError(f"vLLM failed in a step with {self.num_unfinished} requests: {error}") from error

    def _with_records(self, outputs: list[RequestOutput]) -> list[tuple[RequestOutput, dict[int, TokenRecord]]]:
        if not outputs:
            return []
        names, lengths = [o.request_id for o in outputs], [_recorded_length(o) for o in outputs]
        records = self._engine.collective_rpc("take_records", args=(names, lengths))[0]
        return list(zip(outputs, records, strict=True))

    def _completion(self, output: RequestOutput, record: dict[int, TokenRecord]) -> Completion:
        generated = output.outputs[0]
        token_ids = list(generated.token_ids)
        versions = None
        if generated.logprobs is None:
            entropies, logprobs, versions = _recorded_values(record, len(token_ids), output.request_id)
        else:
            logprobs = [step[token].logprob for token, step in zip(token_ids, generated.logprobs, strict=True)]
            entropies = [0.0] * len(token_ids)
        finish = str(generated.finish_reason)
        if finish == "stop" and not isinstance(generated.stop_reason, str):
            finish = "eos"
        whole = self._tokenizer.decode(token_ids, skip_special_tokens=True)
        spill = whole[len(generated.text) :] if finish == "stop" and whole.startswith(generated.text) else ""
        return Completion(
            output.request_id,
            token_ids,
            logprobs,
            entropies,
            generated.text,
            spill,
            finish,
            self.weights.version,
            cached_tokens=output.num_cached_tokens or 0,
            versions=versions,
        )

    def abort(self, request_ids: Sequence[str]) -> None:
        """Forget requests, and what was recorded of them."""
        if not request_ids:
            return
        self._finished_beside = [output for output in self._finished_beside if output.request_id not in set(request_ids)]
        self._engine.abort_request(list(request_ids))
        self._engine.collective_rpc("take_records", args=(list(request_ids), [0] * len(request_ids)))

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Compute the teacher-forced logprob (nats, temperature 1) of every token but the first of each sequence.

        Running requests go on meanwhile; if the engine has no room for both, scoring comes first.
        """
        from vllm import SamplingParams

        self.weights.check()
        params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0, detokenize=False)
        names = []
        for sequence in sequences:
            self._scored += 1
            names.append(f"score-{self._scored}")
            self._engine.add_request(names[-1], {"prompt_token_ids": list(sequence)}, params, priority=FIRST)
        results: dict[str, list[float]] = {}
        while len(results) < len(names):
            for output in self._engine.step():
                if output.finished and output.request_id in names:
                    results[output.request_id] = _prompt_logprobs(output)
                elif output.finished:
                    self._finished_beside.append(output)
        return [results[name] for name in names]

    def close(self) -> None:
        """Free the engine's memory and processes."""
        self._engine.engine_core.shutdown()


def engine_arguments(
    model_path: str,
    settings: EngineSettings,
    *,
    max_model_len: int,
    seed: int = 0,
    weight_transfer: str | None = None,
    on_cpu: bool = False,
) -> dict[str, Any]:
    """Build the fields of ``vllm.EngineArgs``, of which ``engine.extra`` overrides any; needs no GPU, so tests can call it."""
    arguments: dict[str, Any] = {
        "model": model_path,
        "dtype": settings.dtype,
        "max_num_seqs": settings.max_num_seqs,
        "max_model_len": max_model_len,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "enforce_eager": settings.enforce_eager,
        "enable_sleep_mode": settings.sleep,
        "enable_prefix_caching": True,
        "logprobs_mode": "raw_logprobs",  # for greedy and scored tokens; our recorder measures sampled ones
        "logits_processors": ["rapo_rllib.rollout.vllm.recorder:TokenRecorder"],
        "worker_extension_cls": "rapo_rllib.rollout.vllm.worker.PolicyWorker",
        "generation_config": "vllm",  # a model's own sampling defaults would change the distribution
        "seed": seed,
        "scheduling_policy": "priority",  # scoring comes first; other requests come in the order of arrival
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
    }
    if settings.tensor_parallel_size > 1:
        # Inside a placement group, where Tune puts every trial, vLLM would start its workers by Ray. That needs bundles of one
        # GPU each, but an env runner has one bundle with all its GPUs.
        arguments["distributed_executor_backend"] = "mp"
    if on_cpu:
        arguments["block_size"] = CPU_BLOCK
        arguments["kv_cache_memory_bytes"] = int(settings.kv_cache_gib * 2**30)
    if weight_transfer is not None:
        arguments["weight_transfer_config"] = {"backend": weight_transfer}
    return {**arguments, **settings.extra}


def _sampling_params(request: GenerationRequest) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    from rapo_rllib.rollout.vllm.recorder import recording_args

    sampled = request.temperature > 0
    return SamplingParams(
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        stop=list(request.stop),
        stop_token_ids=list(request.end_ids),
        include_stop_str_in_output=True,
        logprobs=None if sampled else 0,  # 0: only that of a greedy token; the recorder measures sampled ones
        output_kind=RequestOutputKind.FINAL_ONLY,  # a step is read only when it is whole
        extra_args=recording_args(request.request_id, request.entropy_top_k, request.seed) if sampled else None,
    )


def _recorded_length(output: RequestOutput) -> int:
    """Count the tokens that the recorder has measured: all of a sampled response, none of a greedy one."""
    generated = output.outputs[0]
    return len(generated.token_ids) if generated.logprobs is None else 0


def _recorded_values(
    record: dict[int, TokenRecord], num_tokens: int, request_id: str
) -> tuple[list[float], list[float], list[int]]:
    """Return entropies (nats), logprobs (nats) and weight versions of a sampled response, each ``[num_tokens]``."""
    missing = [position for position in range(num_tokens) if position not in record]
    if missing:
        raise EngineError(f"no entropy and logprob of token {missing[0]} of {num_tokens} of request {request_id} was recorded")
    values = [record[position] for position in range(num_tokens)]
    return [value[0] for value in values], [value[1] for value in values], [value[2] for value in values]


def _prompt_logprobs(output: RequestOutput) -> list[float]:
    pairs = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return [step[token].logprob for token, step in pairs]
