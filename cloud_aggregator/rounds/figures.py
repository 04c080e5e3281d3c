"""The numbers of a training that say how far it has come."""

from __future__ import annotations

from fedgate.cloud_aggregator.events import SaveTraining
from fedgate.cloud_aggregator.rounds.rounds import list_server_arrays
from fedgate.config.settings.settings import AggregatorSettings
from fedgate.models.arrays import generator
from fedgate.models.features.spec import feature_names


def list_figures(stored: SaveTraining, settings: AggregatorSettings) -> dict[str, float]:
    """Return every single number that the algorithm of a training reports or keeps, by name; but for those that the
    settings already say.
    """
    from fedgate.models.federated import build

    choice = settings.algorithm
    server = build(choice.name, len(feature_names(settings.features)), choice.settings)
    constant = server.start(generator(choice.seed, 0, "cloud")).global_state
    numbers = {name: array for name, array in list_server_arrays(stored).items() if array.shape == ()}
    return {name: float(array) for name, array in numbers.items() if name not in constant or array != constant[name]}
