"""Program that runs snippets in a sandbox, as whatever user it was started: JSON in, JSON out."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any


def main() -> None:
    from rapo_rllib.errors import ToolError
    from rapo_rllib.sandbox import SandboxLimits
    from rapo_rllib.sandbox.forkserver import ForkserverSandbox
    from rapo_rllib.sandbox.machine import layers_in_force

    order = json.load(sys.stdin)
    layers = layers_in_force(order["namespaces"], False)
    sandbox = ForkserverSandbox(layers, order["preload"])

    def run(snippet: dict[str, Any]) -> list[dict[str, Any]]:
        limits = SandboxLimits(snippet["timeout_s"], memory_mb=200, max_output_bytes=4096)
        done = []
        for code in snippet["codes"]:
            try:
                result = sandbox.run(code, limits)
                output = result.output.decode("utf-8", "replace")
                done.append({"outcome": result.outcome, "seconds": result.seconds, "output": output})
            except ToolError as error:
                done.append({"outcome": f"ToolError: {error}", "seconds": 0.0, "output": ""})
        return done

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(run, order["snippets"]))
    sandbox.close()
    json.dump({"layers": layers, "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
