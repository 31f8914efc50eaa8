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
    credit: Literal["trajectory", "step", "turn", "gigpo"] = knob(
        "trajectory",
        "who has the outcome advantage: every token of the `trajectory` (paper); each `step` that of what it and later steps "
        "earned; each `turn` its own beside the outcome's (MT-GRPO); or the trajectory's and that of steps from the same state "
        "(`gigpo`); see docs/credit.md",
    )
    advantage_baseline: Literal["group", "kind"] = knob(
        "group",
        "what an outcome is compared with: those of the whole `group` (paper), or of its members of one `kind`, those that "
        "retrieved and the others each among themselves; one alone of its kind learns nothing from its outcome",
    )
    step_discount: float = knob(1.0, "`γ` of a later step's reward, per step between", above=0, at_most=1)
    turn_baseline: Literal["group", "reached"] = knob(
        "group",
        "a turn is compared with the whole `group`, where who has ended earns 0; or with those that `reached` it (MT-GRPO; "
        "biased where the policy decides how many turns there are)",
    )
    shaping_order: Literal["before_clip", "after_clip"] = knob(
        "before_clip", "eq. 8 `before_clip` (eq. 11), or `after_clip`: for clip ranges that are narrower than `m`"
    )
    clip_low: float = knob(0.2, "`ε_low` of eq. 11 (0.2)", at_least=0)
    clip_high: float = knob(0.28, "`ε_high` of eq. 11 (0.28)", at_least=0)
    dual_clip: float | None = knob(None, "bound `c` for negative advantages (released code: 3); None: none", at_least=1)
    clip_mode: Literal["hard", "gradient_preserving"] = knob(
        "hard", "`hard` (eq. 11), or `gradient_preserving`: in the forward pass only (GPPO)"
    )
    importance_level: Literal["token", "sequence", "sequence_token"] = knob(
        "token",
        "the ratio is a `token`'s, the `sequence`'s (GSPO), or the latter with every token's own gradient (`sequence_token`, "
        "GSPO-token)",
    )
    kl_coeff: float = knob(0.0, "`β` of the KL term to the initial model (paper: 0)", at_least=0)
    loss_aggregation: Literal["trajectory", "token", "constant"] = knob(
        "trajectory", "`trajectory` (eq. 11), `token`, or `constant`: over `max_response_tokens` (Dr. GRPO)"
    )
    max_response_tokens: int = response_budget(hidden=True)
    overlong_buffer_share: float = knob(
        0.0,
        "end of `max_response_tokens` in which length is punished, as a share of it; DAPO: 4,096 of 20,480 = 0.2; 0: none",
        at_least=0,
        at_most=1,
    )
    mask_truncated: bool = knob(False, "leave responses that were cut for length out of the loss (DAPO's overlong filtering)")
    off_policy_shaping: float | None = knob(
        0.1, "`γ` of LUFFY's `p / (p + γ)` on off-policy tokens; None: clipped as all others", above=0
    )
    shown_steps: Literal["context", "imitated", "own"] = knob(
        "context",
        "what is learned beside the paper's loss where steps were retrieved: nothing (`context`); the steps, as if the policy "
        "had written them (`imitated`); or what was written behind them, too (`own`)",
    )
    normalize_std: bool = knob(True, "divide advantages by the group's standard deviation")
    advantage_epsilon: float = knob(1e-6, "added to that standard deviation", at_least=1e-12)
    retrieval_quality: Literal["fall", "rise", "none", "oracle"] = knob(
        "fall",
        "`g` of eq. 6: of the entropy's `fall` (paper), its `rise`, or `none`; `oracle`: -1 for what `retrieval_noise` shows, "
        "else 1",
    )
    retrieval_timing: Literal["high_entropy", "low_entropy", "none"] = knob(
        "high_entropy",
        "second factor of eq. 7: `high_entropy`, `H_before` (paper); `low_entropy`, `1 / H_before`; or `none`, 1",
    )
    step_entropy_tokens: int | None = knob(
        None, "tokens from a step's start that its entropy is made of (released code: 20); None: all", at_least=1
    )
    step_entropy_reduction: Literal["mean", "sum"] = knob("mean", "`mean` over them, or `sum` (released code)")
    importance_cap: float | None = knob(
        2.0, "truncation of the learner / engine probability ratio (`old_logprobs`); None: no correction", at_least=1
    )
    branch_advantage: Literal["soft", "hard"] = knob(
        "soft", "of tokens that branches share: `soft` (each branch its own) or `hard` (their mean)"
    )
