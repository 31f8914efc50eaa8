"""Which keys of RLlib's own matter for RAPO, and what they mean here; the defaults are ``RAPOConfig``'s."""

from __future__ import annotations

RLLIB_KEYS: dict[str, str] = {
    "env": "id of an environment: `rapo/word_problems`, `rapo/questions`, or your own; beside `config` in a job file",
    "env_config": "keys of the environment; those of ours are in the tables above",
    "lr": "learning rate of AdamW, or a schedule `[[env steps, rate], ...]` (paper: 1e-6)",
    "num_epochs": "passes over the groups of one training step (paper: 1)",
    "grad_clip": "largest global norm of the gradient; None: no limit",
    "num_env_runners": "vLLM engines in processes of their own; 0: one in the driver's process",
    "num_gpus_per_env_runner": "GPUs of each; 0: vLLM on the CPU",
    "num_cpus_per_env_runner": "CPU cores that Ray reserves for each",
    "num_learners": "learners in processes of their own; 0: one in the driver's process",
    "num_gpus_per_learner": "GPUs of each; 0: on the CPU",
    "num_cpus_per_learner": "CPU cores that Ray reserves for each",
    "evaluation_interval": "evaluate on the test questions every so many training steps; None: never",
    "evaluation_duration": "test questions of one evaluation, of all data sets together, one greedy trajectory each",
    "evaluation_config": "keys that differ in evaluation; needs `evaluation_num_env_runners`",
    "callbacks_class": "a `RLlibCallback` of your own; episodes arrive as texts",
    "restart_failed_env_runners": "start an engine that died anew, and send it the weights",
    "sample_timeout_s": "how long engines in processes of their own may take for the questions they are given at once",
    "seed": "of the order of the questions, and of sampling",
    "log_level": "of RLlib's messages",
}
