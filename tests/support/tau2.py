"""Tasks of τ² retail, and a call of their solutions with one thing wrong."""

from __future__ import annotations

from tau2_retail import Tau2Retail
from tau2_retail_shop import Action

from rapo_rllib.types import Question

NATIVE = {"protocol": {"format": "native"}, "servers": 1, "read_only_tasks": True}


def all_questions() -> dict[str, Question]:
    """All 114, by the number of the task."""
    questions = (question for split in ("train", "test") for question in Tau2Retail.questions(NATIVE, split))
    return {question.id.removeprefix("tau2-retail-"): question for question in questions}


def corrupted(action: Action) -> Action:
    """The same with one thing wrong."""
    wrong = dict(action.arguments)
    if "address1" in wrong:
        wrong["address1"] += " B"
    elif "reason" in wrong:
        wrong["reason"] = "ordered by mistake" if wrong["reason"] == "no longer needed" else "no longer needed"
    elif "item_ids" in wrong:
        wrong |= {name: wrong[name][:-1] for name in ("item_ids", "new_item_ids") if name in wrong}
    else:
        wrong["payment_method_id"] = "credit_card_0"
    return Action(action.name, wrong)
