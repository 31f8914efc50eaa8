"""A job's keys before anything is built: presets, checks, and the frozen settings of the layers below."""

from rapo_rllib.lazy import lazy_names

__getattr__ = lazy_names(__name__, {"RAPOConfig": "rapo_rllib.algorithm.config"})
