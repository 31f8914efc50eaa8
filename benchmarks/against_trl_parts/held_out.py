"""Held-out accuracy of an exported policy, the same for all sides: vLLM, greedy, in float32."""

from __future__ import annotations

import json
from pathlib import Path

from vllm import LLM, SamplingParams

from against_trl_parts.job import Job, Judge
from rapo_rllib.envs.word_problems.env import WordProblems


def evaluate(job: Job, policy: Path, file: Path) -> None:
    """Write the accuracy of ``policy`` on all held-out questions, and the tokens of a response."""
    llm = LLM(
        str(policy),
        tokenizer=job.model,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=64,
        enforce_eager=True,
    )
    judge, questions = Judge(job, llm.get_tokenizer()), list(WordProblems.questions(job.env_config, "test"))
    prompts = [{"prompt_token_ids": judge.prompt_ids(question)} for question in questions]
    sampling = SamplingParams(temperature=0.0, max_tokens=job.max_tokens)
    written = [list(output.outputs[0].token_ids) for output in llm.generate(prompts, sampling, use_tqdm=False)]
    right = [judge.reward(question, ids) for question, ids in zip(questions, written, strict=True)]
    found = {"accuracy": sum(right) / len(right), "tokens": sum(map(len, written)) / len(written)}
    file.write_text(json.dumps(found), encoding="utf-8")
