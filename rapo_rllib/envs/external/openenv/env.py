"""``rapo/openenv``: an environment behind an OpenEnv server, a question a seed, a WebSocket for each environment object."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, ClassVar, NoReturn

from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.external.base import ExternalEnv, ExternalOptions, Played
from rapo_rllib.envs.external.openenv.options import OpenEnvOptions
from rapo_rllib.envs.external.openenv.server import shared_server
from rapo_rllib.envs.external.openenv.session import OpenEnvSession, RefusedActionError, ServerError
from rapo_rllib.envs.options import read_options
from rapo_rllib.errors import EnvError
from rapo_rllib.types import Question


class OpenEnv(ExternalEnv):
    """An environment of an OpenEnv server. Its session is kept from episode to episode, until the server fails."""

    options_class: ClassVar[type[ExternalOptions]] = OpenEnvOptions

    def __init__(self, env_config: Mapping[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(env_config, **kwargs)
        _check_package()
        assert isinstance(self.options, OpenEnvOptions)
        self._config = self.options
        self._server = shared_server(self.options)
        self._session: OpenEnvSession | None = None

    def __deepcopy__(self, memo: Any) -> NoReturn:
        """Refuse a copy: a server keeps the episode, so no trajectory branches here."""
        raise EnvError("its state is with a server, which keeps it for one trajectory")

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> SeedQuestions:
        """The seeds of ``split``. Servers that know no seeds begin as they like."""
        return read_options(OpenEnvOptions, env_config).questions(split)

    def begin(self, question: Question) -> str:
        """Reset the server's environment; in a new session where the last one was lost between two episodes."""
        data = {**self._config.reset, **({} if question.seed is None else {"seed": question.seed})}
        if self._session is not None:
            try:
                return self._shown(self._session.ask("reset", data).observation)
            except ServerError:
                self._lose()
        try:
            self._session = self._server.session()
            return self._shown(self._session.ask("reset", data).observation)
        except (ServerError, RefusedActionError) as error:
            self._lose()
            raise EnvError(f"OpenEnv, {self._config.shown!r}: reset: {error}") from error

    def play(self, action: str) -> Played:
        """One step. An action of a wrong form costs the policy the step, and a server that fails the trajectory its try."""
        try:
            written = self._written(action)
        except ValueError as error:
            return Played(f"Error: an action is a JSON object: {error}", info={"tool_error": "malformed"})
        if self._session is None:
            raise EnvError(f"OpenEnv, {self._config.shown!r}: the session is lost")
        try:
            told = self._session.ask("step", written)
        except RefusedActionError as error:
            return Played(f"Error: {error}", info={"tool_error": "arguments"})
        except ServerError as error:
            self._lose()
            raise EnvError(f"OpenEnv, {self._config.shown!r}: step: {error}") from error
        return Played(self._shown(told.observation), told.reward, terminated=told.done)

    def _written(self, action: str) -> dict[str, Any]:
        """The server's action. Raises ``ValueError`` if it cannot be made of what the policy wrote."""
        if self._config.action_field is not None:
            return {**self._config.action, self._config.action_field: action}
        read = json.loads(action)
        if not isinstance(read, dict):
            raise ValueError(f"got {action[:80]}")
        return {**self._config.action, **read}

    def _shown(self, observation: Mapping[str, Any]) -> str:
        """The part of an observation that the policy reads."""
        name = self._config.observation_field
        if name is not None:
            if name not in observation:
                raise EnvError(
                    f"env_config.observation_field = {name!r}: the observations of {self._config.shown!r} have "
                    f"{', '.join(observation) or 'no fields'}"
                )
            value = observation[name]
            return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        texts = [value for value in observation.values() if isinstance(value, str)]
        return texts[0] if len(texts) == 1 else json.dumps(dict(observation), ensure_ascii=False)

    def _lose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close(patient=False)

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _check_package() -> None:
    try:
        import websockets  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"env = 'rapo/openenv' needs the package websockets: pip install 'rapo_rllib[openenv]' ({error})"
        ) from error
