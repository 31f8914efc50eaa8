"""Text environments of other packages, one adapter each: gem, skyrl-gym, and servers that speak OpenEnv.

what the policy wrote -> action of the package's form -> its answer -> Played (observation, reward, end) -> the rollout
"""
