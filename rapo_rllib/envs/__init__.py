"""Gymnasium text environments, which ``import rapo_rllib`` registers under ``rapo/``."""

ENVIRONMENTS = {
    "rapo/word_problems": "rapo_rllib.envs.word_problems.env:WordProblems",
    "rapo/questions": "rapo_rllib.envs.questions:Questions",
    "rapo/reasoning_gym": "rapo_rllib.envs.reasoning_gym_env:ReasoningGym",
    "rapo/gem": "rapo_rllib.envs.external.gem_env:Gem",
    "rapo/skyrl_gym": "rapo_rllib.envs.external.skyrl_gym_env:SkyRLGym",
    "rapo/agent": "rapo_rllib.endpoint.env:AgentEnv",
    "rapo/openenv": "rapo_rllib.envs.external.openenv_env:OpenEnv",
}
