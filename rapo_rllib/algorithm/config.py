"""``RAPOConfig``: RAPO's keys and RLlib's as flat attributes, validated before anything heavy starts.

rapo_rllib/settings/*.py -- type, default, bounds, meaning of each key --> attributes, ``training()``, checks, docs/config.md
RAPOConfig.settings ------- frozen and checked --------------------------> the layers below
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.utils.annotations import override

from rapo_rllib.algorithm.rllib_keys import check_rllib_keys
from rapo_rllib.config.checks import check_applied_preset, check_together, refuse_unknown
from rapo_rllib.config.presets import preset_change, with_preset
from rapo_rllib.config.question_source import QuestionSource
from rapo_rllib.config.settings import default_keys, refuse_token, settings_of
from rapo_rllib.models.objects import model_path, with_data_files
from rapo_rllib.monitoring.quiet import quiet
from rapo_rllib.settings import FLAT, NESTED, RLlibSettings, Settings
from rapo_rllib.settings.knobs import knobs
from rapo_rllib.settings.schedule import check_schedule

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.core.learner.learner_group import LearnerGroup
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec

    from rapo_rllib.algorithm.training_keys import TrainingKeys

_RLLIBS_TRAINING = set(inspect.signature(AlgorithmConfig.training).parameters) - {"self", "kwargs"}


class RAPOConfig(AlgorithmConfig):
    """Configuration of RAPO. Its keys are declared in ``rapo_rllib/settings/``; docs/config.md lists them.

    Example:
        >>> config = (  # doctest: +SKIP
        ...     RAPOConfig()
        ...     .environment("rapo/word_problems", env_config={"steps": [1, 2]})
        ...     .training(model={"name_or_path": "smollm2-135m-instruct"}, group_size=8, num_hybrid=4, lr=5e-6)
        ... )
        >>> algo = config.build_algo()  # doctest: +SKIP
    """

    if TYPE_CHECKING:  # the declared keys

        def __getattr__(self, name: str) -> Any: ...

    def __init__(self, algo_class: type[Algorithm] | None = None) -> None:
        super().__init__(algo_class=algo_class or _algorithm_class())
        for key, value in {**default_keys(), **_rllib_defaults()}.items():
            setattr(self, key, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the keys; keys that were declared after a checkpoint was written get their defaults."""
        self.__dict__.update({**default_keys(), **state})

    @property
    def settings(self) -> Settings:
        """RAPO's keys and the RLlib keys that matter, frozen. Raises ``ValueError`` naming key, value and rule."""
        return settings_of(vars(self))

    @property
    def question_source(self) -> QuestionSource:
        """Environments, questions and expert of ``env`` and ``env_config``."""
        return QuestionSource.of(vars(self))

    # without RLlib's @override, which would hide the keys' types from editors and type checkers
    def training(self, **keys: Unpack[TrainingKeys]) -> RAPOConfig:  # type: ignore[override]
        """Set keys; ``_declare_training`` makes signature and docstring from the declarations of the keys."""
        given: dict[str, Any] = {key: value for key, value in keys.items() if value is not NotProvided}
        refuse_token(given.get("step_trace_buffer"))
        public = {key for key in vars(self) if not key.startswith("_")} - {"language_model"}
        refuse_unknown(self, given, known=_RLLIBS_TRAINING | public)
        if "model" in given:
            given["language_model"] = _with_model_path(given.pop("model"))
        if "preset" in given:
            given = {**preset_change(vars(self), given.pop("preset")), **given}
        super().training(**{key: given.pop(key) for key in _RLLIBS_TRAINING & given.keys()})
        for key, value in given.items():
            setattr(self, key, dict(value) if isinstance(value, Mapping) else value)
        return self

    @override(AlgorithmConfig)
    def environment(self, env: Any = NotProvided, *, env_config: Any = NotProvided, **kwargs: Any) -> RAPOConfig:
        """Set the environment as in RLlib; ``env_config`` may hold a loaded data set in place of its name."""
        if isinstance(env_config, Mapping):
            env_config = with_data_files(env_config)
        return super().environment(env, env_config=env_config, **kwargs)

    @override(AlgorithmConfig)
    def update_from_dict(self, config_dict: dict[str, Any]) -> RAPOConfig:
        """Update as RLlib does, but refuse unknown keys; ``model`` is the language model (RLlib has old defaults there)."""
        config_dict = dict(config_dict)
        refuse_token(config_dict.get("step_trace_buffer"))
        if "model" in config_dict:
            given = config_dict.pop("model")
            if not isinstance(given, Mapping) or "fcnet_hiddens" not in given:
                self.language_model = _with_model_path(given)
        for key in ("env_config", "evaluation_config"):  # RLlib reads these before our checks run
            if key in config_dict:
                knobs(RLlibSettings)[key].refuse(key, config_dict[key])
        translated = [self._translate_special_keys(key, warn_deprecated=False) for key in config_dict]
        refuse_unknown(self, [key for key in translated if not key.startswith("__")])  # __x__: Tune's own
        if "preset" in config_dict:
            config_dict = with_preset(vars(self), config_dict)
        return super().update_from_dict(config_dict)

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Refuse a config that cannot work; the error names key, value and fix."""
        if self.log_level not in ("INFO", "DEBUG"):
            quiet()
        check_rllib_keys(self)
        # a local engine beside remote ones would only cost memory
        if not self._is_frozen:
            self.create_local_env_runner = self.num_env_runners == 0
        if isinstance(self.lr, list | tuple) and self.lr:  # RLlib's own check crashes at malformed points
            check_schedule("lr", self.lr)
        try:
            super().validate()
        except ValueError:
            raise
        except Exception:  # RLlib crashed at a value of a wrong type, which our own checks name
            _ = self.settings
            raise
        check_applied_preset(vars(self))
        check_together(self.settings, self.in_evaluation)

    def preflight(self) -> None:
        """Check that model, environment, questions and buffer exist, in seconds and without loading any of them.

        Raises:
            ValueError: naming the key, its value and what to do.
        """
        from rapo_rllib.algorithm.preflight import check_parts

        self.validate()
        check_parts(self)

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        """Return the spec of the language model."""
        from ray.rllib.core.rl_module.rl_module import RLModuleSpec

        from rapo_rllib.learner.rl_module import CausalLMRLModule

        return RLModuleSpec(module_class=CausalLMRLModule, model_config={"settings": self.settings})

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type:
        """Return RAPO's learner class."""
        from rapo_rllib.learner.learner import RAPOTorchLearner

        return RAPOTorchLearner

    @override(AlgorithmConfig)
    def build_learner_group(
        self, *, env: Any = None, spaces: Any = None, rl_module_spec: Any = None, placement_group: Any = None
    ) -> LearnerGroup:
        """Build a group of learners whose weights may be sharded; see RLlib for the arguments."""
        from rapo_rllib.learner.ranks import RAPOLearnerGroup

        spec = rl_module_spec or self.get_multi_rl_module_spec(env=env, spaces=spaces)
        return RAPOLearnerGroup(config=self.copy(), module_spec=spec, placement_group=placement_group)


def _with_model_path(model: Any) -> Any:
    """Return the section ``model``, with a path in place of a loaded model."""
    if not isinstance(model, Mapping):
        return model
    return {key: model_path(value) if key == "name_or_path" else value for key, value in model.items()}


def _algorithm_class() -> type[Algorithm]:
    from rapo_rllib.algorithm.algorithm import RAPO

    return RAPO


def _rllib_defaults() -> dict[str, Any]:
    """Return RAPO's defaults of RLlib's keys: a text environment, an engine that samples, and weights that are confirmed."""
    from rapo_rllib.env_runner.env_runner import RAPOEnvRunner
    from rapo_rllib.envs.base import AnyText
    from rapo_rllib.evaluation.held_out import evaluate_on_env_runners

    return {
        **{name: declared.default for name, declared in knobs(RLlibSettings).items() if declared.default not in (None, {})},
        "env_runner_cls": RAPOEnvRunner,
        "observation_space": AnyText(),
        "action_space": AnyText(),
        "create_local_env_runner": True,
        "add_default_connectors_to_env_to_module_pipeline": False,
        "add_default_connectors_to_module_to_env_pipeline": False,
        "add_default_connectors_to_learner_pipeline": False,
        # weights and counters go through weights/sync.py, which confirms them; there are no connector states
        "merge_env_runner_states": False,
        "broadcast_env_runner_states": False,
        "_dont_auto_sync_env_runner_states": True,
        "custom_evaluation_function": evaluate_on_env_runners,
        "delay_between_env_runner_restarts_s": 1.0,
        "env_runner_health_probe_timeout_s": 120.0,
        "min_time_s_per_iteration": 0,
        "train_batch_size_per_learner": 1,
        "grad_clip_by": "global_norm",
    }


def training_keys() -> Iterator[tuple[str, Any, str]]:
    """Yield name, type and meaning of each of RAPO's own keys that ``training()`` takes, for `training_keys.pyi`."""
    optional = {name for name, default in default_keys().items() if default is None}
    for name, cls in NESTED.items():
        yield name, (dict | None) if name in optional else dict, f"{cls.__doc__}".splitlines()[0]
    yield from {name: (name, knob.kind, knob.meaning) for cls in FLAT for name, knob in knobs(cls).items()}.values()


def _declare_training() -> None:
    """Give ``training`` a signature and docstring made of the declarations; editors and ``help`` read them."""
    keys = list(training_keys())
    first, rest = (inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),), inspect.Parameter.KEYWORD_ONLY
    own = [inspect.Parameter(name, rest, default=NotProvided, annotation=kind) for name, kind, _ in keys]
    rllibs = inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD, annotation=Any)
    said = [*((name, meaning) for name, _, meaning in keys), ("**kwargs", "RLlib's own (`lr`, `grad_clip`, ...)")]
    lines = [textwrap.fill(f"{n}: {m}.", 100, initial_indent="    ", subsequent_indent=" " * 8) for n, m in said]
    function: Any = RAPOConfig.training
    function.__signature__ = inspect.Signature([*first, *own, rllibs], return_annotation=RAPOConfig)
    function.__doc__ = "Set keys of model, rollout, objective, update and run.\n\nArgs:\n" + "\n".join(lines)


_declare_training()
