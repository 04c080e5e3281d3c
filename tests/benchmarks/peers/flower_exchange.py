"""Flower's fastest transport, one gRPC stream a client, with clients that answer with a body made before it is needed.

    python -m tests.benchmarks.peers.flower_exchange <port> <clients> <rounds> <numbers> [<folder of a certificate>]

runs where Flower is installed and fedgate is not; the folder holds `server.crt` and `server.key`. It prints when each
round began and the processor time of the server at these moments, in seconds, and how many clients answered each, as
JSON.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import flwr
import numpy as np
from flwr.client import Client
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters
from flwr.server import ServerConfig
from flwr.server.strategy import FedAvg

ARRAYS = 6  # of a model
PATIENCE_S = 30.0


def size_of(parameters: Parameters) -> int:
    return sum(map(len, parameters.tensors))


class LightClient(Client):
    """Sends the same parameters whatever it is given, and how many bytes it was given."""

    def __init__(self, answer: Parameters) -> None:
        self._answer = answer

    def fit(self, ins: FitIns) -> FitRes:
        answer = Parameters([*self._answer.tensors], self._answer.tensor_type)  # Flower empties the list that it sends
        return FitRes(Status(Code.OK, ""), answer, 1, {"received": size_of(ins.parameters)})


class Timed(FedAvg):
    """FedAvg that notes when rounds begin, and accepts none that was not whole."""

    def __init__(self, clients: int, parameters: Parameters) -> None:
        super().__init__(
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=parameters,
        )
        self._clients, self._least_bytes = clients, size_of(parameters)
        self.opened_s, self.busy_s, self.replies = list[float](), list[float](), list[int]()

    def configure_fit(self, *arguments: Any, **named: Any) -> Any:
        """Return the round's instructions, once all clients are there."""
        orders = super().configure_fit(*arguments, **named)
        self.opened_s.append(time.monotonic())
        self.busy_s.append(time.process_time())
        return orders

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Return the mean of the answers."""
        answers = [answer for _, answer in results]
        sizes = [(answer.metrics["received"], size_of(answer.parameters)) for answer in answers]
        if failures or len(answers) != self._clients or min(map(min, sizes)) < self._least_bytes:
            raise RuntimeError(f"round {server_round}: {failures} failed, {sizes} bytes of {self._least_bytes}")
        self.replies.append(len(answers))
        return super().aggregate_fit(server_round, results, failures)


def take_part(address: str, answer: Parameters, authority: bytes | None) -> None:
    """Run one client to its end."""
    secured = {"insecure": True} if authority is None else {"root_certificates": authority}
    flwr.client.start_client(server_address=address, client=LightClient(answer), **secured)


def main() -> None:
    port, clients, rounds, numbers = map(int, sys.argv[1:5])
    folder = Path(sys.argv[5]) if len(sys.argv) > 5 else None
    address = f"127.0.0.1:{port}"
    logging.getLogger("flwr").setLevel(logging.ERROR)
    authority = (folder / "server.crt").read_bytes() if folder else None
    certificates = (authority, authority, (folder / "server.key").read_bytes()) if folder else None
    model = ndarrays_to_parameters(np.array_split(np.zeros(numbers, np.float32), ARRAYS))
    begin = get_context("fork").Process  # before gRPC has threads: forking spares each the import of Flower
    nodes = [begin(target=take_part, args=(address, model, authority), daemon=True) for _ in range(clients)]
    for node in nodes:
        node.start()
    strategy = Timed(clients, model)
    config = ServerConfig(num_rounds=rounds)
    try:
        flwr.server.start_server(server_address=address, strategy=strategy, config=config, certificates=certificates)
        for node in nodes:
            node.join(PATIENCE_S)
    except RuntimeError:
        traceback.print_exc()
        for node in nodes:
            node.terminate()
        os._exit(1)  # threads of Flower's would wait for ever
    print(json.dumps({"opened_s": strategy.opened_s, "busy_s": strategy.busy_s, "replies": strategy.replies}))


if __name__ == "__main__":
    main()
