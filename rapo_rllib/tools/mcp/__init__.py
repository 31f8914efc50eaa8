"""Tools behind MCP servers: ``{mcp: {command: ...}}`` over stdio, ``{mcp: {url: ...}}`` over HTTP.

options.py -- the keys, checked --> connection.py -- one session with a server --> server.py -- which trajectory has which
session, and a new one for one that died --> tool.py -- what ``env_config.tools`` gets
"""
