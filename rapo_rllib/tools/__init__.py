"""Layer 1: tools that a policy may call. ``make_tool`` builds one from its name in ``env_config.tools``."""

from rapo_rllib.tools.base import Tool, ToolResult, make_tool

__all__ = ["Tool", "ToolResult", "make_tool"]
