"""Tokens are recorded at their places where vLLM launches a step before it knows the tokens of the last one, as on CUDA.

The batch, the sampler and what a runner does around it are vLLM's; logits are made up, and the test is the scheduler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.gpu_input_batch import CachedRequestState, InputBatch
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from rapo_rllib.objective.entropy import entropy_and_logprobs
from rapo_rllib.rollout.vllm.recorder import TokenRecorder, recording_args
from rapo_rllib.rollout.vllm.seeded import row_keys

VOCABULARY, SEEDS = 50, {"a": 5, "c": 6}  # b has none

Step = dict[str, tuple[int, tuple[float, float, int]]]  # by request: its token, and what is to be recorded of it


class AsyncRunner:
    """vLLM's first runner with ``async_scheduling``, as far as sampling goes."""

    use_async_scheduling, max_model_len, _draft_token_req_ids = True, 64, None

    def __init__(self) -> None:
        cpu: Any = torch.device("cpu")
        self.recorder, self.sampler = TokenRecorder(None, cpu, False), Sampler()  # type: ignore[arg-type]
        self.recorder.watch(self.sampler.topk_topp_sampler)
        self.input_batch = InputBatch(
            4, 64, 64, cpu, VOCABULARY, [16], [4], LogitsProcessors([self.recorder]), logitsprocs_need_output_token_ids=True
        )
        self.requests: dict[str, CachedRequestState] = {}
        self.discard_request_mask = SimpleNamespace(np=np.zeros(4, dtype=bool))
        self._get_prompt_logprobs_dict = lambda *arguments: {}
        torch.manual_seed(0)

    def launch(self, names: Collection[str], partial: str = "", resumed: Mapping[str, list[int]] | None = None) -> Step:
        """Launch a step of these requests.

        Args:
            names: of the requests; the others leave the batch.
            partial: the one whose prompt is not computed to its end, so that its token is discarded.
            resumed: tokens of those that were preempted, as far as the scheduler knows them.
        """
        batch = self.input_batch
        for name in set(batch.req_id_to_index) - set(names):
            batch.remove_request(name)
        for name in names:
            self._join(name, (resumed or {}).get(name))
        batch.condense()
        batch.refresh_metadata()
        logits = torch.randn(len(names), VOCABULARY)
        sampled = GPUModelRunner._sample(self, logits.clone(), None).sampled_token_ids  # type: ignore[arg-type]
        self.discard_request_mask.np[:] = False
        if partial:
            self.discard_request_mask.np[batch.req_id_to_index[partial]] = True
        batch.prev_sampled_token_ids = None
        output, scheduled = SimpleNamespace(sampled_token_ids=sampled, logprobs_tensors=None), SimpleNamespace()
        scheduled.num_scheduled_tokens = {}
        GPUModelRunner._bookkeeping_sync(self, scheduled, output, logits, torch.zeros(0), 0)  # type: ignore[arg-type]
        batch.set_async_sampled_token_ids(sampled, SimpleNamespace(synchronize=lambda: None))
        entropies, logprobs = (values.tolist() for values in entropy_and_logprobs(logits, sampled[:, 0].long()))
        self.logits = {name: logits[row, None] for name, row in batch.req_id_to_index.items()}
        return {
            name: (int(sampled[row]), (entropies[row], logprobs[row], self.recorder.version))
            for name, row in batch.req_id_to_index.items()
        }

    def _join(self, name: str, resumed: list[int] | None) -> None:
        if name in self.input_batch.req_id_to_index:
            return
        if resumed is None:
            params = SamplingParams(extra_args=recording_args(name, None, SEEDS.get(name)))
            self.requests[name] = CachedRequestState(name, [1, 2, 3], [], params, None, ([1],), 3, [])
        else:
            self.requests[name].output_token_ids = resumed
        self.input_batch.add_request(self.requests[name])


def places(*steps: tuple[str, Step]) -> dict[int, Any]:
    """What is to be recorded of a request whose tokens come from these steps."""
    return {position: pytest.approx(step[name][1], abs=1e-5) for position, (name, step) in enumerate(steps)}


def test_tokens_that_are_not_known_yet_count() -> None:
    runner = AsyncRunner()
    first, second = runner.launch("ab"), runner.launch("ab")
    third = runner.launch("abc", partial="c")  # while it is found out that a has ended
    assert runner.recorder.take(["a"], [2]) == [places(("a", first), ("a", second), ("a", third))]  # one behind its end
    runner.recorder.version = 1
    fourth, fifth = runner.launch("bc"), runner.launch("bc")  # c takes the place of a
    of_b = places(*(("b", step) for step in (first, second, third, fourth, fifth)))
    assert runner.recorder.take(["c", "b"], [2, 5]) == [places(("c", fourth), ("c", fifth)), of_b]
    assert not runner.recorder._values._steps and not runner.recorder._values._records


def test_a_token_that_was_dropped_on_its_way_is_replaced() -> None:
    """As of a request that is preempted while its step runs."""
    runner = AsyncRunner()
    first, _, third = runner.launch("ab"), runner.launch("ab"), runner.launch("a")
    runner.recorder.version = 1
    again = runner.launch("ab", resumed={"b": [first["b"][0]]})
    last = runner.launch("ab")
    assert runner.recorder.take(["b"], [3]) == [places(("b", first), ("b", again), ("b", last))]
    assert len(third) == 1 and last["b"][1][2] == 1


def test_seeds_draw_by_the_same_places() -> None:
    runner = AsyncRunner()
    for position in range(4):
        tokens = runner.launch("abc")
        for name, seed in SEEDS.items():
            assert tokens[name][0] == int(runner.recorder._drawn(runner.logits[name], row_keys([seed], [position])))
