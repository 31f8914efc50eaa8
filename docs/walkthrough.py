# %% [markdown]
# # One hybrid trajectory and its loss, by hand
#
# Two trajectories of one question, a handful of tokens, and every number of RAPO's loss on the way. The functions are those
# that the learner calls (`rapo_rllib/objective/`). Editors open this file as a notebook; `python docs/walkthrough.py` runs
# it. The comment behind each `print` is what it prints, and a test compares the two.

# %%
import torch

from rapo_rllib.objective.advantages import combined_advantages, outcome_advantages, retrieval_advantages
from rapo_rllib.objective.clipping import clipped_objective
from rapo_rllib.objective.entropy import step_entropy
from rapo_rllib.objective.importance import shaping_factor
from rapo_rllib.objective.inputs import LossInputs
from rapo_rllib.objective.loss import aggregation_weight, policy_loss
from rapo_rllib.objective.retrieval_reward import entropy_change, retrieval_quality, retrieval_reward
from rapo_rllib.settings import ObjectiveSettings


def rounded(values: torch.Tensor) -> list[float]:
    """Four digits of each."""
    return [round(value, 4) for value in values.tolist()]


# %% [markdown]
# ## What was sampled
#
# The **hybrid** trajectory A: a tool call of two tokens, its result (two), a retrieved step of another agent (four), and an
# answer of two tokens, which is right. Of its ten tokens the policy wrote four. The **on-policy** trajectory B: two tokens,
# and it is wrong. The engine recorded the entropy, in nats, of the distribution that each token was drawn from.

# %%
entropies_before = [1.0, 3.0]  # of the tool call
entropies_after = [0.4, 0.6]  # of the answer
rewards = [1.0, 0.0]
retrieved_share = 4 / 10  # F_ret of A; that of B is 0

# %% [markdown]
# ## Retrieval reward (eq. 2 to 7)
#
# A step is as uncertain as its tokens are on average. The retrieval is good if that falls, and it counts by how high it was.

# %%
before, after = step_entropy(entropies_before), step_entropy(entropies_after)
print(before, after)  # 2.0 0.5
print(entropy_change(before, after))  # 0.75
print(round(retrieval_quality(before, after), 4))  # 0.9051
print(round(retrieval_reward(before, after), 4))  # 1.8103

# %% [markdown]
# ## Advantages (eq. 9 and 10)
#
# Both are taken over the group, B included: it retrieved nothing, so its retrieval reward is 0. With two members the distance
# from the mean is half of the difference, and the standard deviation is the difference over the square root of two. The
# retrieval scales the outcome's advantage, `A = (1 + a * A_ret) * A_acc` with `a = 0.2`: in groups of up to 26 that never
# turns its sign.

# %%
outcome = outcome_advantages(rewards)
retrieval = retrieval_advantages([retrieval_reward(before, after), 0.0])
advantages = combined_advantages(outcome, retrieval, weight=0.2)
print(rounded(outcome))  # [0.7071, -0.7071]
print(rounded(retrieval))  # [0.7071, -0.7071]
print(rounded(advantages))  # [0.8071, -0.6071]

# %% [markdown]
# ## Importance ratio, shaped (eq. 8), and clipped (eq. 11)
#
# After some optimiser steps the policy has other probabilities for A's four tokens than it sampled them with: the second is
# half as likely again, the third a tenth more. `m = 0.05` adds a little for what was retrieved, `1 + m * F_ret = 1.02`, and
# `1.28` is the most that an advantage above 0 earns.

# %%
ratio = torch.tensor([1.0, 1.5, 1.1, 1.0])
shaped = shaping_factor(retrieved_share, weight=0.05) * ratio
print(rounded(shaped))  # [1.02, 1.53, 1.122, 1.02]
objective = clipped_objective(shaped, advantages[0].expand(4), clip_low=0.2, clip_high=0.28)
print(rounded(objective))  # [0.8232, 1.0331, 0.9056, 0.8232]

# %% [markdown]
# ## The loss
#
# Each trajectory counts the same: A's four tokens by 1/4 each, B's two by 1/2 each, all over `G = 2`. Results and retrieved
# tokens have no weight, and are left out here.

# %%
weights = [aggregation_weight(n, group_size=2, num_groups=1, total_tokens=6, mode="trajectory") for n in (4, 2)]
print(weights)  # [0.125, 0.25]
by_hand = weights[0] * objective.sum() + weights[1] * 2 * advantages[1]
print(round(-by_hand.item(), 4))  # -0.1446

# %% [markdown]
# The same by the function that the learner calls. Its gradient is 0 where the ratio was clipped: A's second token has earned
# all it can. B's tokens are pushed down, the others up.

# %%
old_logprobs = torch.full((6,), -1.0)
logprobs = (old_logprobs + torch.cat([ratio, torch.ones(2)]).log()).requires_grad_()
inputs = LossInputs(
    logprobs=logprobs,
    old_logprobs=old_logprobs,
    advantages=advantages.repeat_interleave(torch.tensor([4, 2])),
    retrieved_share=torch.tensor([retrieved_share] * 4 + [0.0] * 2),
    weights=torch.tensor([weights[0]] * 4 + [weights[1]] * 2),
)
loss = policy_loss(inputs, ObjectiveSettings()).loss
loss.backward()
print(round(loss.item(), 4))  # -0.1446
print(rounded(logprobs.grad))  # [-0.1029, 0.0, -0.1132, -0.1029, 0.1518, 0.1518]
