"""What the study of Table B.3 may be told: networks, methods and their settings, who takes part, what was printed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.engine.study import StudyOptions
from fedgate.models.detectors.esn.network import Network

Normalisation = Literal["recording", "commissioning"]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
CLASSES = 3


class Method(settings.Table):
    """One row of the tables.

    :param algorithm: name of a federated algorithm, and `settings` its settings beside the network.
    :param by_cohort: the number of units follows from the number of gateways by the paper's rule.
    :param has_paper_ridge: the ridge is the paper's λ as it is, in place of the algorithm's (`listed`).
    :param column: of the paper's table, to be printed beside it.
    """

    algorithm: str
    settings: dict[str, Any] = Field(default_factory=dict)
    by_cohort: bool = False
    has_paper_ridge: bool = False
    column: int | None = None


class Target(settings.Table):
    """What is wanted: the accuracy of a `method` at least `accuracy`, or at most `within` below that of `beside`, with
    an upload of at most `upload_share` of the square's bytes.
    """

    method: str
    network: str
    normalisation: Normalisation
    accuracy: float | None = None
    within: float | None = None
    beside: str | None = None
    upload_share: float | None = None


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param folder: of the subjects' files, below the folder of data.
    :param held_out: subjects that are scored together and take no part in anything else.
    :param shares: of the other subjects that are there to train.
    :param seeds: reservoirs, each with a draw of who is there.
    :param commissioning_rows: rows at the beginning that a gateway knows its centre and scale from.
    :param networks: settings of an echo state network by a name; the first is the paper's.
    :param methods: by their name in the tables; `grid` names those that are measured for every share on the first
        network, `beside` those that are measured for all gateways on the `shown` networks under both normalisations.
    :param sizes: numbers of units, or directions, at which the `sized` methods are compared by what they send.
    :param candidates: networks among which, with one of `ridges`, inner folds of the training subjects choose.
    :param paper: accuracies of the paper's table for each share, in the order of its columns.
    """

    folder: str
    subjects: list[str]
    held_out: Count = 2
    shares: list[Share]
    seeds: Count = 3
    commissioning_rows: Count = 120
    networks: dict[str, dict[str, Any]]
    methods: dict[str, Method]
    grid: list[str]
    beside: list[str]
    shown: list[str]
    sized: list[str] = Field(default_factory=list)
    sizes: list[Count] = Field(default_factory=list)
    candidates: list[str]
    ridges: list[Annotated[float, Field(gt=0)]]
    paper: dict[str, list[float]] = Field(default_factory=dict)
    targets: list[Target] = Field(default_factory=list)
    note: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(self.subjects) <= self.held_out or len(self.subjects) % self.held_out:
            raise ValueError(
                f"{len(self.subjects)} subjects given, expected a multiple of held_out {self.held_out}, but not it"
            )
        names = {*self.grid, *self.beside, *self.sized, *(target.method for target in self.targets)} - {CHOSEN}
        if unknown := sorted(names - self.methods.keys()):
            raise ValueError(f"method {unknown[0]!r} given, expected one of {', '.join(self.methods)}")
        return self

    def network(self, name: str) -> Network:
        """Return a named network, which tells the classes apart."""
        return Network.model_validate({"task": "classify", "classes": CLASSES, **self.networks[name]})


CHOSEN = "IncFed, network and ridge chosen"  # by inner folds, see `esn_wesad_choice`
