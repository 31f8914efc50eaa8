"""Tools behind MCP servers: ``{mcp: {command: ...}}`` over stdio, ``{mcp: {url: ...}}`` over HTTP.

options.py (the keys, checked) --> connection.py (one session with a server) --> server.py (the session of each trajectory, new
sessions in place of lost ones, and the tools that ``env_config.tools`` gets)
"""
