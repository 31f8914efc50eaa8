"""Keys of the objective, with the paper's values. algorithm.md sections 6 to 8 and 11."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rapo_rllib.settings.knobs import Knobs, knob
from rapo_rllib.settings.rollout import response_budget


@dataclass(frozen=True)
class ObjectiveSettings(Knobs):
    """The objective: rewards, advantages, ratio, clip and mean. algorithm.md sections 6 to 8 and 11."""

    retrieval_advantage_weight: float = knob(0.2, "`a` of eq. 10 (paper: 0.2)", at_least=-1e3, at_most=1e3)
    importance_shaping_weight: float = knob(0.05, "`m` of eq. 8 (paper: 0.05)", at_least=0)
    credit: Literal["trajectory", "gigpo"] = knob(
        "trajectory",
        "which advantage a token has: its `trajectory`'s (paper), or that plus its step's among steps from one state "
        "(`gigpo`); see docs/credit.md",
    )
    advantage_baseline: Literal["group", "kind"] = knob(
        "group",
        "trajectories that an outcome is compared with: the `group` (paper), or those of its `kind`, with or without "
        "retrieval; a trajectory alone of its kind has no outcome advantage",
    )
    step_discount: float = knob(1.0, "with `gigpo`: discount `γ` per step of later steps' rewards", above=0, at_most=1)
    shaping_order: Literal["before_clip", "after_clip"] = knob(
        "before_clip", "apply eq. 8 `before_clip` (eq. 11), or `after_clip`, for clip ranges narrower than `m`"
    )
    clip_low: float = knob(0.2, "`ε_low` of eq. 11 (0.2)", at_least=0)
    clip_high: float = knob(0.28, "`ε_high` of eq. 11 (0.28)", at_least=0)
    dual_clip: float | None = knob(None, "bound `c` for negative advantages (released code: 3); None: no bound", at_least=1)
    clip_mode: Literal["hard", "gradient_preserving"] = knob(
        "hard", "`hard` (eq. 11), or `gradient_preserving`: clip the forward pass only (GPPO)"
    )
    importance_level: Literal["token", "sequence"] = knob(
        "token", "importance ratio of a `token`, or of the `sequence`, with each token's own gradient (GSPO)"
    )
    kl_coeff: float = knob(0.0, "`β` of the KL term to the initial model (paper: 0)", at_least=0)
    loss_aggregation: Literal["trajectory", "token", "constant"] = knob(
        "trajectory", "mean per `trajectory` (eq. 11), per `token`, or over the `constant` `max_response_tokens` (Dr. GRPO)"
    )
    max_response_tokens: int = response_budget(hidden=True)
    overlong_buffer_share: float = knob(
        0.0,
        "share of `max_response_tokens`, at its end, in which length is punished (DAPO: 4,096 of 20,480 = 0.2); 0: none",
        at_least=0,
        at_most=1,
    )
    mask_truncated: bool = knob(False, "leave truncated responses out of the loss (DAPO's overlong filtering)")
    off_policy_shaping: float | None = knob(
        0.1, "`γ` of LUFFY's `p / (p + γ)` on off-policy tokens; None: clip them like all others", above=0
    )
    shown_steps: Literal["context", "imitated", "own"] = knob(
        "context",
        "what is trained after retrievals beside the paper's loss: nothing (`context`), the retrieved steps as if the policy "
        "had written them (`imitated`), or its steps after them, too (`own`)",
    )
    normalize_std: bool = knob(True, "divide advantages by the group's standard deviation")
    advantage_epsilon: float = knob(1e-6, "added to that standard deviation", at_least=1e-12)
    retrieval_quality: Literal["fall", "rise", "none", "oracle"] = knob(
        "fall",
        "`g` of eq. 6: of the entropy's `fall` (paper) or `rise`; `none`: 1; `oracle`: -1 for traces of `retrieval_noise`, "
        "else 1",
    )
    retrieval_timing: Literal["high_entropy", "low_entropy", "none"] = knob(
        "high_entropy", "second factor of eq. 7: `high_entropy`: `H_before` (paper); `low_entropy`: `1 / H_before`; `none`: 1"
    )
    step_entropy_tokens: int | None = knob(
        None, "compute a step's entropy over its first so many tokens (released code: 20); None: all", at_least=1
    )
    step_entropy_reduction: Literal["mean", "sum"] = knob("mean", "`mean` over these tokens, or `sum` (released code)")
    importance_cap: float | None = knob(
        2.0, "cap of the probability ratio of learner to engine (with `old_logprobs: learner`); None: no correction", at_least=1
    )
    branch_advantage: Literal["soft", "hard"] = knob(
        "soft", "advantage of tokens that branches share: each branch's own (`soft`), or their mean (`hard`)"
    )
