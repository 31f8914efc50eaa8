"""From attempts on the disk to lessons: what is left is asked of the agent, and what it writes goes to the disk first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rapo_rllib.agents.attempts import OffPolicyAgent, TextRequest
from rapo_rllib.agents.journal import Journal, TriedQuestions
from rapo_rllib.agents.lessons.evidence import Tried, TriedQuestion, lesson_rows, nearest_others, shown_for
from rapo_rllib.agents.lessons.journal import LessonJournal
from rapo_rllib.agents.lessons.prompt import LessonPlan, lesson_prompt, read_lesson
from rapo_rllib.buffer.embedder import Embedder
from rapo_rllib.errors import AgentError
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import StepTrace

LEAST_ATTEMPTS = 2  # a rule is drawn from several
MAX_FAILED = 3  # lessons in a row: the agent is gone


class Distiller:
    """Draws the lessons of one build.

    Args:
        journal: of the build, entered.
        lessons: entered.
        plan: how many, and from what.
        source: name of the agent's traces.
        level: of the buffer.
        embedder: of the buffer, for questions that are near each other.
        protocol: names the tags that are no part of a lesson.
    """

    def __init__(
        self,
        journal: Journal,
        lessons: LessonJournal,
        plan: LessonPlan,
        source: str,
        level: str,
        embedder: Embedder,
        protocol: ProtocolSettings,
    ) -> None:
        self._journal, self.lessons, self.plan, self._source = journal, lessons, plan, source
        self._level, self._embedder, self._protocol = level, embedder, protocol
        self.failed = 0  # that the agent could not be asked for; the next run asks again

    def left(self) -> list[tuple[str, int]]:
        """Question and number of every lesson that is not written yet, of questions whose attempts are on the disk."""
        wanted = [(question, number) for question in self._journal.finished for number in range(self.plan.per_question)]
        return sorted(set(wanted) - self.lessons.done)

    @property
    def num_left(self) -> int:
        """How many these are."""
        return self.plan.per_question * len(self._journal.finished) - len(self.lessons.done)

    def write(self, agent: OffPolicyAgent) -> Iterator[list[StepTrace]]:
        """Ask for every lesson that is left; the rows of each, once they are on the disk, none where nothing came of it.

        Raises:
            AgentError: the agent refuses every request, or fails at one lesson after the other.
            ValueError: so many attempts have no room in a prompt.
        """
        tried = self._journal.tried()
        try:
            asked: list[tuple[str, int, TriedQuestion, list[Tried]]] = []
            for question, number, own, shown in self._chosen(tried):
                if len(shown) < LEAST_ATTEMPTS:
                    self.lessons.add(question, number, 0, [])
                    yield []
                else:
                    asked.append((question, number, own, shown))
            yield from self._answered(agent, asked)
        finally:
            tried.close()

    def _answered(
        self, agent: OffPolicyAgent, asked: Sequence[tuple[str, int, TriedQuestion, list[Tried]]]
    ) -> Iterator[list[StepTrace]]:
        room = agent.context_tokens - self.plan.max_tokens
        requests = (
            TextRequest(f"{question}/{number}", lesson_prompt(self.plan, shown, room, agent.num_prompt_tokens))
            for question, number, _, shown in asked
        )
        in_a_row = 0
        for (question, number, own, shown), written in zip(asked, agent.texts(requests, self.plan.max_tokens), strict=True):
            if written.error:
                self.failed, in_a_row = self.failed + 1, in_a_row + 1
                if in_a_row == MAX_FAILED:
                    raise AgentError(f"the agent failed at {in_a_row} lessons in a row: {written.error}")
                continue
            in_a_row = 0
            text = read_lesson(written.text, self._protocol)
            rows = lesson_rows(text, own, shown, self._source, self._level) if text else []
            self.lessons.add(question, number, written.num_tokens, rows)
            yield rows

    def _chosen(self, tried: TriedQuestions) -> Iterator[tuple[str, int, TriedQuestion, list[Tried]]]:
        """What is left, with the attempts that each is drawn from."""
        left, ids = self.left(), tried.ids
        near: dict[str, list[str]] = {}
        if left and self.plan.near and len(ids) > 1:
            vectors = self._embedder.encode([(text, "") for text in tried.texts])
            near = {
                question: [ids[other] for other in others]
                for question, others in zip(ids, nearest_others(vectors, self.plan.near), strict=True)
            }
        for question, number in left:
            own = tried.of(question)
            others = [tried.of(other) for other in near.get(question, ())]
            yield question, number, own, shown_for(own, others, self.plan.traces, number)
