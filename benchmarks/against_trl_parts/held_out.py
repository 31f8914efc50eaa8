"""Held-out accuracy of an exported policy, the same for all sides: vLLM in float32, two responses a question."""

from __future__ import annotations

import json
from pathlib import Path

from vllm import LLM, SamplingParams

from against_trl_parts.job import Job, Judge
from rapo_rllib.envs.word_problems.env import WordProblems

SAMPLES = 2  # responses a question, at temperature 1 as in training


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
    sampling = [SamplingParams(n=SAMPLES, seed=seed, max_tokens=job.max_tokens) for seed in range(len(prompts))]
    responses = [output.outputs for output in llm.generate(prompts, sampling, use_tqdm=False)]
    written = [list(response.token_ids) for of_question in responses for response in of_question]
    asked = [question for question in questions for _ in range(SAMPLES)]
    right = [judge.reward(question, ids) for question, ids in zip(asked, written, strict=True)]
    found = {"accuracy": sum(right) / len(right), "tokens": sum(map(len, written)) / len(written)}
    file.write_text(json.dumps(found), encoding="utf-8")
