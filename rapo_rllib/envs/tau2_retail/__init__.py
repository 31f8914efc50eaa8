"""``rapo/tau2_retail``: the tasks of τ² retail, an agent of a shop that acts on its data base through an MCP server.

shop.py -- tasks and their right outcomes, from the package's files --> server.py -- the program behind the tools --> env.py --
questions, reward by the final data base, and an expert who plays the tasks' own actions
"""
