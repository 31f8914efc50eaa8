"""The equations of RAPO and its baselines as pure functions: algorithm.md sections 5 to 8, 10 and 11, readable beside it.

    entropy (eq. 2) --> retrieval_reward (eq. 5-7) --> advantages (eq. 9, 10) <-- overlong (DAPO)
                                                            |
    aggregation (weights of eq. 11) ------------------------+--> loss (eq. 11) --> the learner
    importance (eq. 8; GSPO), clipping (GPPO), off_policy (LUFFY) --^

Torch and layer 0 only. Settings arrive as arguments; nothing here knows of Ray, an engine or a file.
"""
