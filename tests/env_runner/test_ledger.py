"""The rules of ``max_staleness``, step by step: no question is lost, no group that is trained on is too old; and shares."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from rapo_rllib.env_runner.stream.ledger import QuestionLedger, shares
from rapo_rllib.envs.base import SeedQuestions
from rapo_rllib.envs.cursor import QuestionCursor
from rapo_rllib.types import Question, TrajectoryGroup


def ledger(batch_size: int = 2, max_staleness: int = 1, **options: object) -> QuestionLedger:
    return QuestionLedger(QuestionCursor(SeedQuestions(1000), seed=0), batch_size, max_staleness, **options)  # type: ignore[arg-type]


def question(place: int) -> Question:
    return QuestionCursor(SeedQuestions(1000), seed=0).take(place + 1)[place]


def complete(book: QuestionLedger, *places: int) -> None:
    """Groups that the weights of their hand-out began."""
    for place in places:
        book.came_back(place, TrajectoryGroup(question(place), [], book.out[place].version))


def places(book: QuestionLedger) -> list[int]:
    return [found.place for found in book.take()]


def test_on_policy_an_update_takes_all_and_nothing_is_under_way_beside_it() -> None:
    book = ledger(max_staleness=0)
    assert [place for place, _ in book.hand_out(1, 9)] == [0, 1]
    complete(book, 1)
    assert not book.enough
    complete(book, 0)
    assert book.enough and places(book) == [0, 1]
    assert book.room == 0 and book.hand_out(1, 9) == []
    assert book.set_version(1) == {}
    assert [place for place, _ in book.hand_out(1, 9)] == [2, 3]


def test_a_learner_that_waits_leaves_room_for_all_batches() -> None:
    for staleness, before in ((1, 4), (2, 6), (4, 10)):
        book = ledger(max_staleness=staleness)
        assert len(book.hand_out(1, 99)) == before
        complete(book, 0, 1)
        assert places(book) == [0, 1] and book.room == 0
        book.set_version(1)
        assert book.room == 2  # nothing is complete: the learner waits


def test_beside_an_update_engines_begin_the_next_batch_and_no_more() -> None:
    book = ledger(max_staleness=4)
    book.hand_out(1, 3)
    complete(book, 0, 1)
    assert book.room == 1  # the learner has its batch; 2 is of the one behind it
    assert places(book) == [0, 1]
    assert book.room == 1
    book.hand_out(1, 9)
    assert book.room == 0
    complete(book, 3)
    assert book.room == 0  # complete or not, it is of the next batch
    book.set_version(1)
    assert len(book.hand_out(1, 99)) == 10 - 2  # one group is complete, so the learner waits
    complete(book, 2)
    assert book.room == 0  # eight of these weights
    assert places(book) == [2, 3]
    book.set_version(2)
    complete(book, 4, 5)
    assert book.room == 2  # those that take long are older, and not in the way
    assert places(book) == [4, 5]
    assert len(book.hand_out(1, 99)) == 2 and book.room == 0


def test_the_oldest_are_trained_on_first_in_the_order_of_their_questions() -> None:
    book = ledger(max_staleness=2)
    book.hand_out(1, 4)
    complete(book, 3, 2)
    assert places(book) == [2, 3]
    book.set_version(1)
    book.hand_out(1, 2)
    complete(book, 5, 4, 1)
    assert places(book) == [1, 4]  # 1 is of version 0
    assert sorted(book.complete) == [5]
    aged = ledger(max_staleness=2)
    aged.hand_out(1, 2)
    for place, version in ((0, 1), (1, 0)):
        aged.version = version  # an engine had newer weights than those that were told of
        aged.came_back(place, TrajectoryGroup(question(place), [], version))
    aged.batch_size = 1
    assert places(aged) == [1]
    book.set_version(2)
    complete(book, 0)
    assert places(book) == [0, 5]


def test_what_is_too_old_is_dropped_once_and_then_waited_for() -> None:
    book = ledger(max_staleness=1)
    book.hand_out(1, 3)
    book.hand_out(2, 1)
    complete(book, 0, 1)
    places(book)
    assert book.set_version(1) == {}
    book.hand_out(1, 9)  # 4, 5
    complete(book, 4, 5)
    assert book.enough  # 2 and 3 are not waited for
    assert places(book) == [4, 5]
    assert book.set_version(2) == {1: [2], 2: [3]}
    assert book.num_stale == 2 and book.out == {}
    assert [place for place, _ in book.hand_out(1, 3)] == [2, 3, 6]  # asked again, before others
    complete(book, 6, 2)
    assert book.enough and places(book) == [2, 6]
    book.set_version(3)
    book.hand_out(1, 9)
    complete(book, 7, 8)
    assert not book.enough  # 3 would be too old again
    complete(book, 3)
    assert book.enough and places(book) == [3, 7]


def test_or_it_is_waited_for_at_once() -> None:
    book = ledger(max_staleness=1, waits=True)
    book.hand_out(1, 4)
    complete(book, 0, 1)
    assert book.enough  # 2 and 3 can be trained on by the next update
    places(book)
    book.set_version(1)
    book.hand_out(1, 2)
    complete(book, 4, 5)
    assert not book.enough
    complete(book, 2, 3)
    assert places(book) == [2, 3]
    assert book.set_version(2) == {} and book.num_stale == 0


def test_a_complete_group_can_become_too_old() -> None:
    book = ledger(batch_size=1, max_staleness=1)
    book.hand_out(1, 2)
    complete(book, 0, 1)
    places(book)
    book.set_version(2)  # two updates at once, as after a restored checkpoint of another's
    assert book.complete == {} and book.num_stale == 1
    assert [place for place, _ in book.hand_out(1, 1)] == [1]


def test_a_group_that_comes_back_too_old_or_after_it_was_given_up_is_not_trained_on() -> None:
    book = ledger(batch_size=1, max_staleness=1)
    ((place, question), _) = book.hand_out(1, 2)
    book.set_version(1)
    book.out[place] = replace(book.out[place], version=1)
    book.version = 2
    book.came_back(place, TrajectoryGroup(question, [], 0))  # its engine had older weights than it was to have
    assert (book.complete, book.num_stale) == ({}, 1)
    book.came_back(place, TrajectoryGroup(question, [], 2))
    assert book.complete == {}


def test_questions_of_a_lost_engine_are_asked_again() -> None:
    book = ledger(max_staleness=1)
    book.hand_out(1, 2)
    book.hand_out(2, 2)
    complete(book, 2)
    assert book.lost(2) == 1 and book.lost(1, kept=[0]) == 1
    assert sorted(book.out) == [0] and sorted(book.complete) == [2] and book.num_again == 2
    assert [place for place, _ in book.hand_out(1, 9)] == [1, 3]
    assert book.load(1) == 3 and book.load(2) == 0


def test_rejected_groups_make_room_for_others_up_to_some_rounds() -> None:
    book = ledger(max_staleness=0, max_rounds=2)
    book.hand_out(1, 9)
    complete(book, 0, 1)
    book.judge(lambda group: group, lambda group: group.question.seed != question(1).seed)
    assert not book.enough and len(book.rejected) == 1
    assert [place for place, _ in book.hand_out(1, 9)] == [2]
    complete(book, 2)
    book.judge(lambda group: group, lambda group: False)  # place 0 was judged before
    assert len(book.rejected) == 2 and not book.enough
    assert [place for place, _ in book.hand_out(1, 9)] == [3]  # the last of two rounds
    complete(book, 3)
    book.judge(lambda group: group, lambda group: False)
    assert book.enough and book.room == 0
    assert places(book) == [0] and len(book.rejected) == 3


def test_a_checkpoint_asks_again_what_nobody_trained_on() -> None:
    cursor = QuestionCursor(SeedQuestions(1000), seed=0)
    book = QuestionLedger(cursor, 2, 1)
    book.hand_out(1, 4)
    complete(book, 1, 2)
    assert places(book) == [1, 2]
    assert book.untrained == [0, 3]
    state = cursor.get_state(book.untrained)
    resumed = QuestionCursor(SeedQuestions(1000), seed=5)
    resumed.set_state(state)
    expected = QuestionCursor(SeedQuestions(1000), seed=0).take(6)
    assert resumed.take_places(4) == [(0, expected[0]), (3, expected[3]), (4, expected[4]), (5, expected[5])]
    assert cursor.take(1) == [expected[4]]  # saving changes nothing
    book.forget()
    assert book.untrained == [] and book.room == 4


class AnyTraining:
    """Engines and updates that do what chance says; each step is checked."""

    def __init__(self, staleness: int, waits: bool) -> None:
        self.rng, self.staleness = random.Random(f"{staleness}{waits}"), staleness
        self.cursor = QuestionCursor(SeedQuestions(1000), seed=0)
        self.book = QuestionLedger(self.cursor, 3, staleness, waits)
        self.held: dict[int, int] = {}  # what engines have, and the version that began it
        self.trained: list[int] = []

    def hand_out(self) -> None:
        for place, _question in self.book.hand_out(self.rng.randint(1, 2), self.rng.randint(0, 3)):
            self.held[place] = self.book.version

    def complete_one(self) -> None:
        if self.held:
            place = self.rng.choice([*self.held][:4] if self.rng.random() < 0.9 else [*self.held])
            self.book.came_back(place, TrajectoryGroup(self.cursor._at(place), [], self.held.pop(place)))

    def lose_an_engine(self) -> None:
        runner = self.rng.randint(1, 2)
        for place in [place for place, out in self.book.out.items() if out.runner == runner]:
            del self.held[place]
        self.book.lost(runner)

    def update(self) -> None:
        if self.book.updating:
            for given_up in self.book.set_version(self.book.version + 1).values():
                for place in given_up:
                    del self.held[place]
        elif self.book.enough:
            for found in self.book.take():
                assert self.book.version - found.group.policy_version <= self.staleness
                self.trained.append(found.place)

    def check(self) -> None:
        assert sorted(self.held) == sorted(self.book.out)
        assert len(self.book.out) + len(self.book.complete) <= (self.staleness + 1) * 3
        known = [*self.trained, *self.book.untrained, *self.cursor._again]
        assert sorted(known) == list(range(self.cursor.position))


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("staleness", [0, 1, 2, 4])
def test_whatever_happens_no_question_is_lost_and_nothing_is_too_old(staleness: int, waits: bool) -> None:
    training = AnyTraining(staleness, waits)
    actions = [training.complete_one] * 25 + [training.update] * 15 + [training.lose_an_engine] + [lambda: None] * 9
    for _ in range(3000):
        training.hand_out()
        training.rng.choice(actions)()
        training.check()
    assert len(training.trained) > 300
    assert waits is False or training.book.num_stale == 0


@pytest.mark.parametrize(
    ("room", "requests", "expected"),
    [
        (3, {1: 0, 2: 6}, {1: 2, 2: 1}),  # 0, 4, 8 and 6, 10
        (9, {1: 0, 2: 0}, {1: 2, 2: 2}),  # both are full then; five wait
        (1, {1: 0, 2: 0}, {1: 1, 2: 0}),
        (4, {1: 8, 2: 7}, {1: 0, 2: 1}),
        (4, {}, {}),
        (0, {1: 0}, {1: 0}),
    ],
)
def test_the_engine_with_the_fewest_requests_comes_first(room: int, requests: dict[int, int], expected: dict[int, int]) -> None:
    assert shares(room, requests, capacity=8, group_size=4) == expected
