"""Flower's simulation engine, which is Ray, on the task of `simulated_task`: N nodes with rows of their own.

    python -m tests.benchmarks.peers.flower_simulation <nodes> <rounds>

runs where Flower is installed and fedgate is not. It prints how long each round took, in seconds, how many nodes
answered it, and the arrays of the last one, as JSON.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from flwr.client import ClientApp, NumPyClient
from flwr.common import Context, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

from tests.benchmarks.peers.simulated_task import ROWS, first_model, improved, rows_of

PATIENCE_S = 600.0
ONE_CORE = {"client_resources": {"num_cpus": 1.0, "num_gpus": 0.0}}


class Node(NumPyClient):
    """One node of the task."""

    def __init__(self, number: int) -> None:
        self._rows = rows_of(number)

    def fit(self, parameters: Any, config: Any) -> Any:
        """Return what the model becomes on the node's rows, and how many these are."""
        del config
        return improved(parameters, self._rows), ROWS, {}


class Timed(FedAvg):
    """FedAvg that notes how long rounds take, and accepts none that was not whole."""

    def __init__(self, nodes: int) -> None:
        super().__init__(
            fraction_evaluate=0.0,
            min_fit_clients=nodes,
            min_available_clients=nodes,
            initial_parameters=ndarrays_to_parameters(first_model()),
        )
        self._nodes, self._opened_s = nodes, 0.0
        self.durations_s, self.replies, self.model = list[float](), list[int](), list[Any]()

    def configure_fit(self, server_round: int, parameters: Any, client_manager: Any) -> Any:
        """Return the round's instructions, once all nodes are there."""
        client_manager.wait_for(self._nodes, timeout=PATIENCE_S)
        self._opened_s = time.perf_counter()
        return super().configure_fit(server_round, parameters, client_manager)

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Return the mean of the answers."""
        self.replies.append(len(results) - len(failures))
        parameters, metrics = super().aggregate_fit(server_round, results, failures)
        self.durations_s.append(time.perf_counter() - self._opened_s)
        self.model = parameters_to_ndarrays(parameters)
        return parameters, metrics


def main() -> None:
    nodes, rounds = map(int, sys.argv[1:3])
    logging.getLogger("flwr").setLevel(logging.ERROR)
    strategy = Timed(nodes)

    def serve(_context: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=rounds))

    def node(context: Context) -> Any:
        return Node(int(context.node_config["partition-id"])).to_client()

    run_simulation(ServerApp(server_fn=serve), ClientApp(client_fn=node), num_supernodes=nodes, backend_config=ONE_CORE)
    model = [array.tolist() for array in strategy.model]
    print(json.dumps({"durations_s": strategy.durations_s, "replies": strategy.replies, "model": model}))


if __name__ == "__main__":
    main()
