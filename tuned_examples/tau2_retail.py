"""τ² retail as an environment of your own: the agent of a shop does what a customer asks for; the final data base decides.

Task -> Question;   calls -> MCP server -> its data base;   what is changed in it, compared with the task's solution -> Score

    rllib train file tuned_examples/rapo_tau2_retail.yaml
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import tau2_retail_shop as shop
from tau2_retail_server import CHANGES, END, Changes

from rapo_rllib.envs.options import ToolEnvOptions, check_split, read_options
from rapo_rllib.envs.tool_env import ToolEnv
from rapo_rllib.errors import ToolError
from rapo_rllib.protocol.steps import render_observation
from rapo_rllib.protocol.turns import Call, in_tags
from rapo_rllib.rewards import Episode, Score, Scorer, shared_scorer
from rapo_rllib.rewards.score import WRONG
from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.tools.bounded import BoundedTool
from rapo_rllib.tools.mcp.connection import ServerLostError
from rapo_rllib.types import ExpertTrajectory, Question

DATABASE = "database"
_PROGRAM = Path(__file__).with_name("tau2_retail_server.py")
_PREFIX = "tau2-retail-"
_DONE = "Everything that can be done is done."
_INSTRUCTIONS = """\
You are an agent of a retail shop. You serve one customer, whom you cannot talk to: everything that they would tell you stands \
in their request, and they confirm every action that it asks for. Look up what you need and act by calling tools, one call at \
a time. When everything is done that can be done, say so without calling a tool."""


@dataclass(frozen=True)
class Tau2RetailOptions(ToolEnvOptions):
    """Keys of ``env_config`` of this environment, beside those of every tool environment."""

    with_policy: bool = knob(True, "the shop's policy stands in the system prompt, about 1,500 tokens")
    read_only_tasks: bool = knob(
        False, "also the 11 of 114 tasks whose solution changes nothing: there an agent that does nothing is right"
    )
    servers: int = knob(4, "programs that hold the data bases, for each env runner; trajectories share them", at_least=1)
    call_timeout_s: float = knob(60.0, "of one call of the shop's tools", above=0)
    max_tool_calls: int = knob(30, "one call more ends the episode", at_least=0)
    tools: tuple[Any, ...] = knob((), "beside those of the shop: names or import paths", rule="a list of tool names")
    scorer: Any = knob(DATABASE, "`database`: 1 if it is as after the task's solution, else 0; or a scorer of your own")
    require_boxed: bool = knob(False, "a well-formed answer holds one \\boxed{...}")

    def __post_init__(self) -> None:
        if self.scorer == DATABASE:
            Knobs.__post_init__(self)
        else:
            super().__post_init__()
        shop.check_package()

    @property
    def shop_entry(self) -> dict[str, Any]:
        """The shop's tools, as ``tools`` has tools."""
        server = {
            "command": sys.executable,
            "args": ["-P", "-X", "utf8", str(_PROGRAM)],
            "only": list(shop.tool_names()),
            "state_key": shop.STATE_KEY,
            "state_end": END,
            "sessions": self.servers,
        }
        return {"mcp": server, "limits": {"timeout_s": self.call_timeout_s}}


class Tau2Retail(ToolEnv):
    """The tasks of τ² retail for an agent alone, without a simulated customer."""

    options_class: ClassVar[type[ToolEnvOptions]] = Tau2RetailOptions

    @classmethod
    def questions(cls, env_config: Mapping[str, Any], split: str) -> Sequence[Question]:
        """The tasks of the package's ``split``."""
        check_split(split)
        options = read_options(Tau2RetailOptions, env_config)
        told = f"{_INSTRUCTIONS}\n\n{shop.policy()}" if options.with_policy else _INSTRUCTIONS
        found = (shop.tasks()[task_id] for task_id in shop.ids_of(split))
        return [_question(task, told) for task in found if options.read_only_tasks or shop.right_changes(task.id)]

    @classmethod
    def expert_trajectories(cls, env_config: Mapping[str, Any]) -> Iterator[ExpertTrajectory]:
        """The solutions of the training tasks, a call a step, in the text protocol, without calls that fail."""
        settings = read_options(Tau2RetailOptions, env_config).protocol
        answer = f"<{settings.answer_tag}>{_DONE}</{settings.answer_tag}>"
        for question in cls.questions(env_config, "train"):
            steps = [
                in_tags(Call(action.name, action.arguments), shop.schema_of(action.name)) + render_observation(output, settings)
                for action, output in shop.solution(_task_of(question))
            ]
            yield ExpertTrajectory(question, (*steps, answer), 1.0, "tau2_retail/solution")

    def tool_entries(self) -> Sequence[Any]:
        """The shop's tools, and those that the options name."""
        assert isinstance(self.options, Tau2RetailOptions)
        return (self.options.shop_entry, *self.options.tools)

    def make_scorer(self) -> Scorer:
        """The data base, unless another scorer is named."""
        options = self.options
        assert isinstance(options, Tau2RetailOptions)
        if options.scorer != DATABASE:
            return shared_scorer(options.scorer)
        return DatabaseScorer(self._tools[shop.tool_names()[0]], self._shared, options.call_timeout_s)


class DatabaseScorer:
    """1 where the agent says that it is done, and the data base is as after the task's solution; else 0.

    Args:
        tool: one of the shop's.
        sessions: of the present episode, by the server that they are with.
        timeout_s: for the server to tell what was changed.
    """

    def __init__(self, tool: BoundedTool, sessions: Mapping[Any, Any], timeout_s: float) -> None:
        self._tool, self._sessions, self._timeout_s = tool, sessions, timeout_s

    def __call__(self, answer: str | None, question: Question, episode: Episode) -> Score:
        """Judge the data base. One that is lost since a call hung is wrong, and counted.

        Raises:
            ToolError: it is lost since its server died.
        """
        right = shop.right_changes(_task_of(question).id)
        if answer is None:
            return WRONG
        try:
            correct = self.changes() == right
        except ToolError:  # no fault of the policy: the trajectory is an error, and not judged
            raise
        except Exception as error:
            return Score(0.0, False, failure=f"{DATABASE}/{type(error).__name__}")
        return Score(float(correct), correct)

    def changes(self) -> Changes:
        """The changes of the episode, asked of the server that it called; none if it called none.

        Raises:
            ToolError: the server is gone or hangs, and did not at a call of the policy.
            ServerLostError: it hung at one.
        """
        tool: Any = self._tool.tool
        session = self._sessions.get(id(tool.server))
        if session is None:
            return {}
        hung = session.hung
        try:
            told = session.call(CHANGES, {}, self._timeout_s)
        except (ServerLostError, TimeoutError) as error:
            if hung:
                raise
            raise ToolError(f"the shop's server does not tell what was changed: {error}") from error
        changes: Changes = json.loads(told.content[0].text)["changes"]
        return changes


def _question(task: shop.Task, told: str) -> Question:
    text = f'The customer\'s request, as it was told to them ("you" is the customer):\n{task.request}'
    return Question(id=f"{_PREFIX}{task.id}", text=text, source="tau2_retail", turns=(("system", told),))


def _task_of(question: Question) -> shop.Task:
    found = shop.tasks().get(question.id.removeprefix(_PREFIX))
    if found is None:
        raise ValueError(f"question {question.id!r} is no task of τ² retail, which judges its own alone")
    return found
