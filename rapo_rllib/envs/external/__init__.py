"""Text environments of other packages, one adapter each: gem, skyrl-gym, and servers that speak OpenEnv.

policy's text -> action in the package's form -> the environment's answer -> Played (observation, reward, end) -> rollout
"""
