"""Environments behind a server that speaks OpenEnv over a WebSocket.

options.py -- the keys --> server.py -- the address, or the program that is started --> session.py -- one WebSocket, one
environment of the server --> env.py -- ``rapo/openenv``
"""
