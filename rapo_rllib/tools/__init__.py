"""Tools that a policy may call, named in ``env_config.tools``."""

from rapo_rllib.tools.base import Tool, ToolLimits, ToolResult
from rapo_rllib.tools.bounded import shared_tools
from rapo_rllib.tools.make import make_tool

__all__ = ["Tool", "ToolLimits", "ToolResult", "make_tool", "shared_tools"]
