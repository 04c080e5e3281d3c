"""Federated algorithms as an estimator of scikit-learn: `fedgate.models.Federated`.

It stands here and not beside the algorithms, since it weighs updates as they travel and says how far it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import ValidationError

from fedgate.config.protocol.messages import find_first_problem
from fedgate.config.settings.extras import advise_install
from fedgate.firmware_sim.evaluate.probe import expectation
from fedgate.firmware_sim.evaluate.training import NOTHING, check_privacy_budget, commission, tensors_fed, train_fleet
from fedgate.models.arrays import FEATURES, LABELS, Array, Arrays, Floats
from fedgate.models.detectors import DETECTORS
from fedgate.models.federated import build
from fedgate.models.federated.protocol.algorithm import Algorithm

try:
    from sklearn.base import BaseEstimator, OutlierMixin
    from sklearn.utils import check_random_state, column_or_1d
    from sklearn.utils.validation import check_is_fitted, validate_data
except ModuleNotFoundError as error:
    missing = f"Federated needs the package {error.name}, which is not installed; {advise_install(error.name)}"
    raise ImportError(missing) from error

ONLY = "gateway"  # the name of the one whose rows are given without any
FEWEST = 2  # rows of a gateway: one alone has no deviation
SEEDS = 2**31 - 1

Rows = ArrayLike | Mapping[str, ArrayLike]  # of one table, or of each gateway by name


class Communication(NamedTuple):
    """What a training sent: bytes by gateway, as the wire format makes them (`fedgate.config.protocol.wire`).

    `bytes_up` are updates, `bytes_down` what is shared at the beginning of each of the `exchanges` and after the
    last, which goes to every gateway whether it takes part or not. Topics, chunks and receipts come on top.
    """

    bytes_up: dict[str, int]
    bytes_down: dict[str, int]
    exchanges: int


class Federated(OutlierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A federated anomaly detector: gateways train on rows of their own, and what they would send is counted.

    The training is `fedgate.models.federated.protocol.run.run`, the loop that the services over MQTT must agree with.
    **Two signs**: `score` is fedgate's, where higher is more anomalous and 0 the model's own border, as gateways and
    exported models have it. `decision_function` and `score_samples` are `-score`, as scikit-learn has it: higher is
    more normal, and `predict` says +1 (normal) from 0 up, -1 (anomaly) below.

    A gateway that normalises by its own units (`normalisation="own"`, nearly everywhere the default) is scored in
    them: `groups` says whose rows they are. Gateways that were not in `fit` first need `commission`.

    Args:
        algorithm: a name of `fedgate.models.federated.ALGORITHMS` (docs/reference/algorithms.md).
        rounds: rounds of all exchanges; None for the algorithm's own number.
        fraction: share of the gateways drawn for each round, above 0 and at most 1.
        random_state: a seed, or numpy's `RandomState` to draw one from, None for the global one: as in scikit-learn.
        verbose: above 0, print a line for each update.
        **settings: those of the algorithm by name, checked in `fit`.

    Attributes:
        n_features_in_, feature_names_in_: F, and the names (F,) where a data frame was given.
        gateways_: names (K,) of those that can be scored, sorted.
        global_state_: the model that all share, arrays by name.
        local_states_: what each gateway keeps for itself, by gateway and name.
        detector_: the name of what scores, in `fedgate.models.detectors.DETECTORS`.
        personal_: names of the tensors that each gateway feeds to the exported model.
        offset_: 0.0, `score_samples` - `decision_function`.
    """

    def __init__(
        self,
        algorithm: str = "federated-subspace",
        *,
        rounds: int | None = None,
        fraction: float = 1.0,
        random_state: Any = 0,
        verbose: int = 0,
        **settings: Any,
    ) -> None:
        self.algorithm = algorithm
        self.rounds = rounds
        self.fraction = fraction
        self.random_state = random_state
        self.verbose = verbose
        self._settings = settings

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name, those of the algorithm that were given among them."""
        return {**super().get_params(deep), **self._settings}

    def set_params(self, **params: Any) -> Federated:
        """Set parameters by name; what is none of this class is a setting of the algorithm, checked in `fit`."""
        own = self._get_param_names()
        super().set_params(**{name: value for name, value in params.items() if name in own})
        self._settings = {**self._settings, **{name: value for name, value in params.items() if name not in own}}
        return self

    def fit(self, X: Rows, y: Rows | None = None, groups: ArrayLike | None = None) -> Federated:
        """Train over all gateways.

        Args:
            X: rows (n, F) of one table, or a table (n_k, F) for each gateway by name. Rows of one gateway are in
                order of time, without gaps, for algorithms that remember.
            y: labels as X: 0 normal, 1 or above a fault. Ignored by algorithms that train without labels, as in
                scikit-learn: give them normal rows.
            groups: (n,) the gateway of each row of one table; without, all rows are of one gateway, "gateway".

        Raises:
            ValueError: rows, labels, groups or settings that cannot be used, or a training that came to nothing.
            ImportError: the algorithm needs a package that is not installed.
        """
        x, labels, names = self._validated(X, y, groups, reset=True)
        algorithm = self._built(self.algorithm, self._settings)
        check_privacy_budget(self._settings)
        data = _by_gateway(algorithm, x, labels, names)
        fit = train_fleet(
            algorithm,
            data,
            seed=self._seed(),
            rounds=self.rounds,
            fraction=self.fraction,
            say=self._say,
        )
        self.detector_, self.personal_, self.offset_ = algorithm.detector, algorithm.personal, 0.0
        self.global_state_ = fit.shared
        self._fitted = (self.algorithm, self._settings)  # parameters may be set anew
        own, seed = fit.own, self._seed()
        self.local_states_ = {
            name: own[name] or commission(algorithm, fit.shared, rows, seed) for name, rows in data.items()
        }
        self.gateways_ = sorted(data)
        received = dict.fromkeys(data, fit.received_bytes)
        self._communication = Communication(fit.sent_bytes, received, fit.exchanges)
        return self

    def commission(self, X: Rows, y: Rows | None = None, groups: ArrayLike | None = None) -> Federated:
        """Let gateways that were not in `fit` be scored, in units from normal rows of their own; arguments as there.

        Raises:
            ValueError: rows that cannot be used, or of a gateway that is known already.
            sklearn.exceptions.NotFittedError: there is no model yet.
        """
        check_is_fitted(self)
        x, labels, names = self._validated(X, y, groups, reset=False)
        algorithm = self._built(*self._fitted)
        data = _by_gateway(algorithm, x, labels, names)
        if known := sorted(data.keys() & self.local_states_.keys()):
            raise ValueError(f"gateway {known[0]!r} has its units already, expected others than {self.gateways_}")
        shared, seed = self.global_state_, self._seed()
        self.local_states_ |= {name: commission(algorithm, shared, rows, seed) for name, rows in data.items()}
        self.gateways_ = sorted(self.local_states_)
        return self

    @property
    def communication(self) -> Communication:
        """Bytes up and down of the training, by gateway, and how many exchanges it took."""
        check_is_fitted(self)
        return self._communication

    def score(self, X: ArrayLike, y: ArrayLike | None = None, groups: ArrayLike | None = None) -> Floats:
        """Return fedgate's scores (n,) of rows X (n, F), in no unit: higher is more anomalous, 0 the model's border.

        :param y: ignored; scikit-learn's signature has it. For an area under the ROC curve take
            `roc_auc_score(y, model.score(X))` with y 1 for anomalies.
        :param groups: a gateway's name for all rows, or one for each (n,). Needed where gateways score in units of
            their own and more than one is known.

        Raises:
            ValueError: rows that cannot be used, or a gateway that is unknown.
            sklearn.exceptions.NotFittedError: there is no model yet.
        """
        del y
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        names = self._scored_as(groups, len(x))
        score, scores = DETECTORS[self.detector_].score, np.empty(len(x))
        for name in np.unique(names):
            chosen = names == name
            scores[chosen] = score({**self.global_state_, **self.local_states_.get(name, NOTHING)}, x[chosen])
        return scores

    def decision_function(self, X: ArrayLike, groups: ArrayLike | None = None) -> Floats:
        """Return `-score(X, groups=groups)`: higher is more normal, below 0 an anomaly."""
        return -self.score(X, groups=groups)

    def score_samples(self, X: ArrayLike, groups: ArrayLike | None = None) -> Floats:
        """Return the same as `decision_function`: the border is part of the model, and `offset_` is 0."""
        return self.decision_function(X, groups)

    def predict(self, X: ArrayLike, groups: ArrayLike | None = None) -> NDArray[np.int64]:
        """Return +1 (normal) or -1 (anomaly) for each row, by the model's own border.

        On a gateway the level comes from its baseline and a promised rate of false alarms, not from this border.
        """
        return np.where(self.decision_function(X, groups) >= 0.0, 1, -1)

    def fit_predict(
        self, X: ArrayLike, y: ArrayLike | None = None, groups: ArrayLike | None = None
    ) -> NDArray[np.int64]:
        """Return `fit(X, y, groups).predict(X, groups)`, of one table."""
        return self.fit(X, y, groups).predict(X, groups)

    def to_onnx(self, gateway: str | None = None) -> bytes:
        """Return the model as ONNX: input `x` (n, F) float32, output `score` (n,), which is `score`.

        It is the file that an aggregator releases to all. A gateway feeds its `local_states_` to the inputs
        `personal_`; their defaults are those of the gateway that is named, or the only one, else neutral.

        Raises:
            ValueError: the gateway is unknown.
            ImportError: the package onnx is not installed.
        """
        check_is_fitted(self)
        model = DETECTORS[self.detector_].graph(self.global_state_, self.personal_)
        if gateway is None and len(self.gateways_) > 1:
            return model
        from fedgate.models.detectors.base.graph import with_defaults  # late: it needs onnx

        (name,) = self._scored_as(gateway, 1)
        return with_defaults(model, tensors_fed(self.personal_, self.local_states_.get(name, NOTHING)))

    def _built(self, algorithm: str, settings: dict[str, Any]) -> Algorithm:
        if not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"fraction: {self.fraction} given, expected above 0 and at most 1")
        if self.rounds is not None and self.rounds < 1:
            raise ValueError(f"rounds: {self.rounds} given, expected 1 or more")
        try:
            return build(algorithm, self.n_features_in_, settings)
        except ValidationError as error:
            problem = expectation(find_first_problem(error))
            raise ValueError(f"{algorithm} of n_features={self.n_features_in_}: {problem}") from None

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(SEEDS))

    def _say(self, text: str) -> None:
        if self.verbose:
            print(f"[Federated] {text}")

    def _validated(
        self, X: Rows, y: Rows | None, groups: ArrayLike | None, *, reset: bool
    ) -> tuple[Floats, Any, Array]:
        """Return rows (n, F) of all gateways, their labels (n,) where there are any, and whose each is (n,)."""
        if not isinstance(X, Mapping) or hasattr(X, "shape"):  # as a sparse array by keys has, which is refused
            x = validate_data(self, X, dtype=np.float64, reset=reset)
            return x, y, _names(ONLY if groups is None else groups, len(x))
        if groups is not None:
            raise ValueError("groups given beside a mapping, expected none: its names say whose the rows are")
        if y is not None and not (isinstance(y, Mapping) and y.keys() == X.keys()):
            raise ValueError(f"labels of other gateways than the rows, expected a mapping of {sorted(X)}")
        parts: list[Floats] = []
        for name, rows in X.items():
            try:
                first = reset and not parts
                parts.append(validate_data(self, rows, dtype=np.float64, reset=first))
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name}: {error}") from error
            count = len(parts[-1]) if y is None else len(np.asarray(y[name]))
            if count != len(parts[-1]):
                raise ValueError(f"{name}: {count} labels given for {len(parts[-1])} rows, expected one for each")
        if len({str(name) for name in X}) != len(X):
            raise ValueError(f"gateways whose names are the same as words, expected others than {list(X)}")
        if not parts:
            raise ValueError("a mapping without gateways, expected rows of one or more")
        names = np.repeat([str(name) for name in X], [len(part) for part in parts])
        labels = None if y is None else np.concatenate([np.asarray(y[name]) for name in X])
        return np.concatenate(parts), labels, names

    def _scored_as(self, groups: ArrayLike | None, count: int) -> Array:
        """Return by whose own tensors each row is scored (n,); any name will do where gateways keep none."""
        if groups is None and self.personal_ and len(self.gateways_) > 1:
            raise ValueError(
                f"{self.algorithm} scores each gateway in its own units: say by groups= whose rows these are, "
                f"one of {self.gateways_}, or train with normalisation='none'"
            )
        names = _names(self.gateways_[0] if groups is None else groups, count)
        unknown = sorted(set(names.tolist()) - set(self.gateways_))
        if self.personal_ and unknown:
            raise ValueError(
                f"gateway {unknown[0]!r} is unknown, expected one of {self.gateways_}: give normal rows of it to "
                "commission(), from which its units follow, or train with normalisation='none'"
            )
        return names


def _names(groups: ArrayLike, count: int) -> Array:
    """Return whose each row is (n,), as words; one name stands for all rows."""
    names: Array = np.asarray(groups, dtype=np.str_)
    if names.ndim == 0:
        return np.full(count, names)
    names = column_or_1d(names)
    if len(names) != count:
        raise ValueError(f"{len(names)} groups given for {count} rows, expected one for each")
    return names


def _by_gateway(algorithm: Algorithm, x: Floats, y: Any, names: Array) -> dict[str, Arrays]:
    """Return what each gateway trains on: rows (n_k, F), and labels (n_k,) where the algorithm learns from them."""
    gateways, counts = np.unique(names, return_counts=True)
    if counts.min() < FEWEST:
        few = int(counts.argmin())
        raise ValueError(f"gateway {str(gateways[few])!r}: {counts[few]} sample given, expected {FEWEST} or more")
    data: Arrays = {FEATURES: x}
    if algorithm.labels:
        data[LABELS] = _labels(y, len(x))
    return {str(one): {key: array[names == one] for key, array in data.items()} for one in gateways}


def _labels(y: Any, count: int) -> NDArray[np.int64]:
    expected = f"expected y with {count} whole numbers, 0 normal and 1 or above a fault"
    if y is None:
        raise ValueError(f"the algorithm trains on labels with these settings and got none; {expected}")
    labels: Floats = column_or_1d(y, dtype=np.float64)
    if len(labels) != count or (labels < 0).any() or (labels % 1 != 0).any():
        found = f"{len(labels)} of values {np.unique(labels)[:5].tolist()}"
        raise ValueError(f"labels: {found}; {expected}. Of scikit-learn's +1 and -1 make y < 0")
    return labels.astype(np.int64)
