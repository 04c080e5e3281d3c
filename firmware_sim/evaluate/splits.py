"""Who trains on what, and what is scored: the protocols of an evaluation.

- `heldout`: what is scored took no part in training, not even in the scale. Tables are split 70/30 at random within
  each class; a folder's recordings are split in time, and damaged windows that did not train are all scored. So are
  tables with groups: of each class of a gateway the first 70 % of the rows come first in time.
- `whole`: train and score on all rows, outliers included, as the federated SVDD paper does (section 5.1).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedgate.firmware_sim.evaluate.datasets import DataError, Labelled, Table
from fedgate.firmware_sim.evaluate.folders import Folder, GatewayRows
from fedgate.models.arrays import FEATURES, LABELS, MISSING, NEW_SERIES, Arrays, Floats, generator

TRAIN_SHARE = 0.7
KMEANS_STARTS = 10
FEWEST = 3  # normal rows of a gateway: two to train on, since one alone has no deviation, and one to score


class Plan(NamedTuple):
    """The options of a split; `clients` and `partition` apply to tables, a folder names its gateways."""

    protocol: Literal["heldout", "whole"]
    train_on: Literal["normal", "all"]
    with_labels: bool  # whether the classes of the rows are handed to the training
    clients: int
    partition: Literal["iid", "biased"]


class Split(NamedTuple):
    """Data sets by client: what each trains on, and what each is scored on.

    `one_scale` says that all clients measure in the same units, so their rows may be compared as they are.
    """

    train: dict[str, Arrays]
    test: dict[str, Labelled]
    one_scale: bool

    @property
    def row_counts(self) -> list[int]:
        """How many rows each client trains on."""
        return [len(data[FEATURES]) for data in self.train.values()]

    @property
    def judged(self) -> list[str]:
        """The clients whose rows to be scored are of both classes: a figure of the others would mean nothing."""
        return [client for client, rows in self.test.items() if len(set(rows.y.tolist())) > 1]


def split_table(table: Table, plan: Plan, seed: int) -> Split:
    """Deal the rows of a table to clients; all clients are scored on the same rows.

    Columns are scaled to [0, 1] by their extremes among the rows that train, never among those that are scored.
    """
    check_table(table, plan)
    x, y = table.rows
    rows = np.arange(len(y))
    chosen = rows if plan.protocol == "whole" else _stratified(table, generator(seed, 0, "split"))
    trained = chosen[_taken(y[chosen], plan)]
    scored = rows if plan.protocol == "whole" else np.setdiff1d(rows, chosen)
    low, high = x[trained].min(axis=0), x[trained].max(axis=0)
    scaled = (x - low) / np.where(high > low, high - low, 1.0)
    owners = partition(scaled[trained], plan.clients, plan.partition, seed)
    width = len(str(plan.clients))
    names = [f"client-{index + 1:0{width}d}" for index in range(plan.clients)]
    train = {name: _data(scaled, y, trained[owners == index], plan) for index, name in enumerate(names)}
    return Split(train, dict.fromkeys(names, Labelled(scaled[scored], y[scored])), one_scale=True)


def check_table(table: Table, plan: Plan) -> None:
    """Raise `DataError` where no rows of a class would be left to score, or fewer rows train than there are clients."""
    counts = np.bincount(table.rows.y, minlength=2).tolist()
    for value, count in enumerate(counts):
        if plan.protocol == "heldout" and count < 2:
            found = f"{count} row of class {value}"
            raise DataError(f"{table.name}: {found}; expected at least 2 of each to hold some out, or protocol 'whole'")
    share = 1.0 if plan.protocol == "whole" else TRAIN_SHARE
    most = sum(round(share * count) for count in counts[: 2 if plan.train_on == "all" else 1])
    if plan.clients > most:
        raise DataError(
            f"clients: {plan.clients} given, and {most} rows of {table.name} train; expected {most} at most"
        )


def by_group(table: Table) -> Folder:
    """Give each gateway the rows of its group, in the order of the table, which is that of time and without gaps.

    Raises:
        DataError: a group has too few normal rows.
    """
    gateways, groups = {}, np.asarray(table.groups)
    for name in np.unique(groups).tolist():
        members = groups == name
        rows = Labelled(table.rows.x[members], table.rows.y[members])
        normal = int((rows.y == 0).sum())
        if normal < FEWEST:
            found = f"group {name!r} has {normal} rows that are normal, of {len(rows.y)}"
            expected = f"expected at least {FEWEST}, two to train on and one to score"
            raise DataError(f"{table.name}: {found}; {expected}: leave the group out of the file")
        early = np.zeros(len(rows.y), dtype=bool)
        for value in (0, 1):
            of_class = np.flatnonzero(rows.y == value)
            early[of_class[: round(TRAIN_SHARE * len(of_class))]] = True
        gateways[name] = GatewayRows(rows, early, np.zeros(len(rows.y), dtype=np.int64))
    return Folder(table.name, gateways, table.read_as, lost=None)


def split_folder(folder: Folder, plan: Plan) -> Split:
    """Give each gateway its own windows: the early ones train, the others are scored."""
    train, test = {}, {}
    for name, (rows, early, gaps) in folder.gateways.items():
        trains = _taken(rows.y, plan) & (early | (plan.protocol == "whole"))
        scored = np.ones(len(rows.y), dtype=bool) if plan.protocol == "whole" else ~trains
        taught = np.flatnonzero(trains)
        behind = np.concatenate([[NEW_SERIES], np.where(np.diff(taught) == 1, gaps[taught[1:]], NEW_SERIES)])
        train[name] = {**_data(rows.x, rows.y, taught, plan), MISSING: behind[: len(taught)]}
        test[name] = Labelled(rows.x[scored], rows.y[scored])
    return Split(train, test, one_scale=False)


def partition(x: Floats, clients: int, how: Literal["iid", "biased"], seed: int) -> NDArray[np.int64]:
    """Return the owner (n,) of each row of x (n, F), from 0 to clients - 1.

    `iid` deals equal parts at random; `biased` gives each client one KMeans cluster (federated SVDD paper, section 5).
    With fewer rows, or fewer distinct rows, than clients the last clients own none.
    """
    if how == "iid":
        return generator(seed, 0, "partition").permutation(np.arange(len(x)) % clients)
    from sklearn.cluster import KMeans

    clusters = min(clients, len(np.unique(x, axis=0)))
    owners = KMeans(n_clusters=clusters, n_init=KMEANS_STARTS, random_state=seed).fit_predict(x)
    return np.asarray(owners, dtype=np.int64)


def _taken(y: NDArray[np.int64], plan: Plan) -> NDArray[np.bool_]:
    return np.asarray((y == 0) | (plan.train_on == "all"))


def _data(x: Floats, y: NDArray[np.int64], rows: NDArray[np.int64], plan: Plan) -> Arrays:
    return {FEATURES: x[rows]} | ({LABELS: y[rows]} if plan.with_labels else {})


def _stratified(table: Table, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw the rows of the training part: `TRAIN_SHARE` of each class, leaving at least one row of each out."""
    parts = []
    for value in (0, 1):
        members = np.flatnonzero(table.rows.y == value)
        parts.append(rng.permutation(members)[: round(TRAIN_SHARE * len(members))])
    return np.sort(np.concatenate(parts))
