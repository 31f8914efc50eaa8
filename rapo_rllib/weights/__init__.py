"""The policy's weights on their way from learners to engines, with proof that they arrived."""
