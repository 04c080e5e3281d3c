"""What may be put around an algorithm, in which order, and with what it does not go: one table (ours).

From the inside out. Why what comes before a step is inside of it, and why two do not go together, stands beside them
and is what an operator reads who asks for both. The only order that makes no difference is that of a robust mean and
what is done to features: the one changes the exchange that makes the model, the others put an exchange before all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from fedgate.models.federated.protocol.algorithm import Algorithm
from fedgate.models.federated.protocol.schema import has_any_length, judged, named

# What an algorithm says of itself: its rows are series of time steps; its updates are float32 as they are; no setting
# is a length in the unit of its features; it sums features as they are. And privacy says whose noise it is.
WINDOWS, FLOAT32, UNIT_FREE, MOMENTS = "windows", "float32", "unit-free", "moments"
CLOUD_NOISE = "noise in the cloud"
OWN_COLUMNS = "columns of its own"  # each gateway chooses which of its sums it sends


class CompositionError(ValueError):
    """Two things that do not go together; the message is the reason."""


class Step(NamedTuple):
    """A step around an algorithm: the key of its settings, which is also a trait of what has it; where it is loaded
    from when it is asked for, since most fleets need none and a training child should load what it needs; why it goes
    around no algorithm of which a trait or a fact holds; and why no step before it in the table goes around it, empty
    where any may.
    """

    key: str
    outside: str = ""
    excludes: Mapping[str, str] = MappingProxyType({})
    module: str = ""
    function: str = ""
    options: str = ""


ANY_LENGTH = "its sums are of any length"
MIXED = "given for rows that are windows, expected rows without time steps: it would mix the steps"

STEPS = (
    Step("whiten", excludes={WINDOWS: f"whiten {MIXED}"}),
    Step(
        "compensate",
        "its columns are those that were measured, and whitening mixes them",
        {WINDOWS: f"compensate {MIXED}"},
    ),
    Step("unit", "it brings rows to one unit before anything is computed from them"),
    Step(
        "robust",
        "",
        {
            "its model is made by other sums": "robust given for an algorithm whose model is made by other sums, "
            "expected one of changes: of anything else only the sum is a solution; choose an algorithm that averages "
            "changes, such as fedavg with loss 'logistic', fedavg-median without labels, or a [defence], which stands "
            "before any sum",
        },
        "fedgate.models.federated.defences.robust_mean",
        "with_robust_mean",
        "Robust",
    ),
    Step(
        "survey",
        "it scores what was measured by the whole model, in an exchange after that which makes it",
        {},
        "fedgate.models.federated.wrappers.site_thresholds",
        "with_site_thresholds",
        "Survey",
    ),
    Step(
        "privacy",
        "its noise hides all that is sent, and sums that are gathered around it would leak past it",
        {
            "survey": "survey given beside privacy, expected one of both: noise on each of its many counts hides all "
            "of them",
            "it sends means": "privacy given for an algorithm that sends means beside its changes, expected changes "
            "alone, or the bound is spent on the means; set measure = 'own', with which they stay on the gateway",
            "it sends other sums": "privacy given for an algorithm that sends other sums than changes, expected "
            "changes in each exchange: what others send does not bear noise, and would leak past it; leave whitening, "
            "compensation and surveys out, give a kernel's gamma, with normalisation 'none' take unit 'feature', and "
            "choose an algorithm that averages changes, such as fedavg with loss 'logistic'",
        },
        "fedgate.models.federated.wrappers.differential_privacy",
        "with_differential_privacy",
        "Privacy",
    ),
    Step(
        "compression",
        "it rounds what is sent in the end: the proof of noise does not hold for noise that is added to a remainder",
        {
            CLOUD_NOISE: "compression given with privacy.where 'cloud', expected 'gateway': what is left over goes "
            "into the next update, which then is no longer bounded by 'clip'",
            "robust": "compression given around a robust mean, expected one of both: what rounding leaves out of an "
            "update is made good by the next one in a sum, and a median or a choice of updates is none",
            "it sends sums alone": "compression given for an algorithm that sends sums or rows, expected steps of a "
            "model in one exchange at least: a system of equations that is solved from rounded or thinned sums has no "
            "solution to trust; leave it out, or choose an algorithm that averages changes, such as fedavg",
            ANY_LENGTH: "compression given for an algorithm that sends arrays of any length, expected shapes that are "
            "known beforehand: by them the cloud knows how much a message may grow to",
        },
        "fedgate.models.federated.wrappers.error_feedback",
        "with_error_feedback",
        "Compression",
    ),
    Step(
        "masking",
        "a masked number looks like noise to everything else",
        {
            "compression": "masking given for a compressed algorithm, expected one that is not: masked numbers need "
            "one unit for all gateways, and each of them must travel; choose one of both",
            "defence": "masking given for a defended algorithm: a filter looks at single updates; choose one of both",
            OWN_COLUMNS: "masking given for an algorithm whose gateways send columns of their own choice, expected the "
            "same of all: which ones they are cannot be masked; take select 'shared' or 'principal'",
            "it keeps rows apart": "masking given for an algorithm that keeps rows apart, expected a sum in each "
            "exchange: what is not added up cannot be masked; choose an additive algorithm",
            ANY_LENGTH: "masking given for an algorithm that sends arrays of any length, expected "
            "shapes that are known beforehand: all numbers of an update travel as one masked vector, which must be as "
            "long for everybody",
        },
        "fedgate.models.federated.secure_aggregation.wrapper",
        "with_secure_aggregation",
        "Masking",
    ),
    Step(
        "defence",
        "it is the cloud's, which puts it around what gateways train",
        {
            "masking": "defence given for a masked algorithm, expected one that is not: a filter looks at single "
            "updates, and masks hide them; choose one of both",
            "its model is made of rows": "defence given for an algorithm whose model is made of rows that are kept "
            "apart, expected a sum, before which a defence stands; choose an additive algorithm",
            "its last exchange makes no model": "defence given for an algorithm whose last exchange only counts or "
            "votes, expected one that ends with the sums that its model is made of, before which a defence stands",
        },
    ),
)
KEYS = [step.key for step in STEPS]
EXCLUDES: Mapping[str, Mapping[str, str]] = MappingProxyType({step.key: step.excludes for step in STEPS})

# What follows from the exchanges of an algorithm.
FACTS: Mapping[str, Callable[[Algorithm], bool]] = MappingProxyType(
    {
        "it keeps rows apart": lambda algorithm: not all(phase.reducer.additive for phase in algorithm.phases),
        ANY_LENGTH: lambda algorithm: any(
            phase.reducer.additive and has_any_length(phase.schema) for phase in algorithm.phases
        ),
        "it sends means": lambda algorithm: any(named(phase.schema, "metric") for phase in algorithm.phases),
        "it sends other sums": lambda algorithm: any(phase.bears != "error" for phase in algorithm.phases),
        "it sends sums alone": lambda algorithm: all(phase.bears == "nothing" for phase in algorithm.phases),
        "its model is made of rows": lambda algorithm: not algorithm.phases[model_phase(algorithm)].reducer.additive,
        "its last exchange makes no model": lambda algorithm: (
            not judged(algorithm.phases[model_phase(algorithm)].schema)
        ),
        "its model is made by other sums": lambda algorithm: algorithm.phases[model_phase(algorithm)].bears != "error",
    }
)


def model_phase(algorithm: Algorithm) -> int:
    """Return which exchange makes the model: the last one, or that before the survey."""
    return len(algorithm.phases) - 1 - ("survey" in algorithm.traits)


def check_composition(algorithm: Algorithm, key: str) -> None:
    """Raise `CompositionError` with the reason where a step does not go around the algorithm."""
    if key in algorithm.traits:
        raise CompositionError(f"{key} given for an algorithm that has it, expected one without")
    for trait, reason in EXCLUDES[key].items():
        if trait in algorithm.traits or (trait in FACTS and FACTS[trait](algorithm)):
            raise CompositionError(reason)
    for step in STEPS[KEYS.index(key) + 1 :]:
        if step.outside and step.key in algorithm.traits:
            raise CompositionError(f"{key} given around {step.key}, expected {key} inside of it: {step.outside}")


def having(algorithm: Algorithm, *traits: str, **changes: Any) -> Algorithm:
    """Return an algorithm with these changes, of which the traits hold from now on."""
    return algorithm._replace(traits=algorithm.traits | set(traits), **changes)
