"""A process that runs an agent, and is to be killed: its argument is a part of `env_config` of `rapo/agent`, as JSON."""

import json
import sys
import time

from rapo_rllib.endpoint.agent import Agent
from rapo_rllib.endpoint.env import AgentOptions
from rapo_rllib.settings import ProtocolSettings
from rapo_rllib.types import Question

given = {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(sys.argv[1]).items()}
options = AgentOptions(dataset="unread.jsonl", protocol=ProtocolSettings(format="native"), **given)
Agent(options, Question("q", "3 + 5?"), "3 + 5?", "http://127.0.0.1:9/v1", lambda ended: None).start()
time.sleep(600)
