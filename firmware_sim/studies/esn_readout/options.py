"""What the study of Tables 6.4 and 6.5 may be told: who is who, how gateways train, what is tried, what was printed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from fedgate.config.settings import settings
from fedgate.firmware_sim.studies.engine.corruption import Kind
from fedgate.firmware_sim.studies.engine.study import StudyOptions
from fedgate.models.detectors.esn.network import Network
from fedgate.models.federated.defences.wrapper import Defence

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]
Reservoirs = Literal["same", "different"]
Normalisation = Literal["recording", "commissioning"]
# How an attack is met: `median` of coordinates in place of the mean; `honest`: the bad ones are known and left out.
Means = Literal["none", "median", "honest", "defence"]


class Attack(settings.Table):
    """What half of the gateways do: `amount` is that of the noise, in deviations of each feature."""

    kind: Kind
    amount: float = 0.0


class Method(settings.Table):
    """A federated algorithm by name, with its settings and those of its network beside what all have in common."""

    algorithm: Literal["esn-fedavg", "esn-fedcurv"]
    settings: dict[str, Any] = Field(default_factory=dict)
    network: dict[str, Any] = Field(default_factory=dict)


class Answer(settings.Table):
    """How an attack is met.

    :param other_reservoir: of a discriminator: it was trained on another reservoir, as in the thesis.
    :param rejected_count: of a discriminator: as in the thesis, the rejected count with all their rows and no change.
    """

    means: Means
    defence: Defence | None = None
    other_reservoir: bool = False
    rejected_count: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.defence is not None) != (self.means == "defence"):
            raise ValueError(f"means {self.means!r} given, expected a table `defence` with 'defence' and only there")
        return self


class Bench(settings.Table):
    """One set of cells: every method x attack x answer x kind of reservoirs, at every rate of the server.

    :param attacks: the first one is no attack, under which only `without_attack` of the answers are measured.
    :param only_without_attack: methods that are measured under no other.
    """

    methods: list[str]
    attacks: list[str]
    answers: list[str]
    without_attack: list[str]
    only_without_attack: list[str] = Field(default_factory=list)
    reservoirs: list[Reservoirs]
    rates: list[Rate]
    seeds: Count


class Target(settings.Table):
    """A balanced accuracy that is wanted of one cell of the bad gateways: at least `least`, or at most `within` below
    that of no defence under the same seeds.
    """

    attack: str
    rate: Rate
    least: float | None = None
    within: float | None = None


class Options(StudyOptions):
    """The keys of an experiment file of this study.

    :param folder: of the subjects' files, below the folder of data.
    :param scored: subjects of which two are scored for each seed; nothing was chosen by how a model does on them.
    :param chosen_on: the others. Two of all that are not scored are trusted, the rest are gateways.
    :param take_part: gateways drawn in each round.
    :param bad_share: of the gateways that do what an attack says.
    :param network: settings of the echo state network, `training` those of how gateways train.
    :param noise: of the discriminator's Fake training, in deviations; `noise_rounds` are those of both its trainings.
    :param tables: cells of Tables 6.4 (same reservoirs) and 6.5 (different ones).
    :param bad: cells of the bad gateways.
    :param paper: F1 on the test set by reservoirs, and by row of the paper's table.
    """

    folder: str
    scored: list[str] = Field(min_length=2)
    chosen_on: list[str]
    normalisation: Normalisation = "recording"
    commissioning_rows: Count = 120
    rounds: Count = 78
    take_part: Count = 5
    bad_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    network: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    noise: float = 1.0
    noise_rounds: Count = 40
    methods: dict[str, Method]
    attacks: dict[str, Attack]
    answers: dict[str, Answer]
    tables: Bench
    bad: Bench
    central: float
    paper: dict[Reservoirs, dict[str, float]] = Field(default_factory=dict)
    targets: list[Target] = Field(default_factory=list)
    note: str = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        for bench in (self.tables, self.bad):
            for wanted, known in (
                (bench.methods, self.methods),
                (bench.attacks, self.attacks),
                (bench.answers, self.answers),
            ):
                unknown = [name for name in wanted if name not in known]
                if unknown:
                    raise ValueError(f"{unknown[0]!r} given, expected one of {', '.join(known)}")
        if set(self.scored) & set(self.chosen_on):
            raise ValueError("scored and chosen_on share a subject, expected none: what is scored must not be tuned on")
        return self

    def network_of(self, method: Method | None = None) -> Network:
        """Return the network of a method, or the one that methods have in common; it tells stress from all else."""
        own = {} if method is None else method.network
        return Network.model_validate({"task": "classify", **self.network, **own})
