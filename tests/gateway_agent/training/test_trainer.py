"""The training child: equal jobs give equal bytes, and a bad job ends with one line that says why."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from inspect import signature
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest

from fedgate.config.protocol import wire
from fedgate.firmware_sim import children
from fedgate.gateway_agent.runtime.training_worker import add_labelled, answer, main
from fedgate.models.arrays import FEATURES, Array, Arrays, equal, generator, joined, parted
from fedgate.models.detectors.base.checks import FitWarning
from fedgate.models.federated import ALGORITHMS, build
from fedgate.models.federated.protocol.algorithm import NOTHING_TO_SEND
from fedgate.models.federated.wrappers.differential_privacy import PrivacyWarning
from tests.support.sites import faults
from tests.support.soak import some
from tests.support.waiting import PATIENCE_S

ROWS = np.random.default_rng(1).normal(size=(40, 3)).astype(np.float32)
ORDER: dict[str, Any] = {
    "algorithm": "fedavg",
    "settings": {"components": 8, "gamma": 0.3},
    "feature_count": 3,
    "phase": 0,
    "run": "run",
    "seed": 5,
    "round_index": 2,
    "gateway": "north",
    "secret": "00ff",
    "drawn": "",
}

SMALL = {"network": {"washout": 5}}  # the rows here are fewer than the usual washout
KERNELS = [name for name, factory in ALGORITHMS.items() if "gamma" in signature(factory).parameters]
SETTINGS: dict[str, Any] = {
    **{key: {"gamma": 0.3} for key in KERNELS},
    "fedavg": ORDER["settings"],
    **dict.fromkeys(("incfed", "partial-incfed"), SMALL),
    **{name: {"network": {"washout": 5, "task": "classify"}} for name in ("esn-fedavg", "esn-fedcurv")},
}
# Of each library that a training imports one algorithm first.
BY_LIBRARY = list(dict.fromkeys(("fedavg", "recurrent-fedavg", "support-vector-election", *ALGORITHMS)))


def job(name: str = "fedavg", rows: Array = ROWS, **change: Any) -> bytes:
    settings = SETTINGS.get(name, {})
    shared = build(name, 3, settings).start(generator(5, 0, "cloud")).global_state
    parts: dict[str, Arrays] = {"shared": shared, "own": {}, "data": {FEATURES: rows}, "labelled": faults()}
    return wire.encode(joined(parts), {**ORDER, "algorithm": name, "settings": settings, **change})


def child(given: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-P", "-m", "fedgate.gateway_agent.runtime.training_worker", *arguments]
    with TemporaryFile() as order:
        order.write(given)
        order.seek(0)
        return children.run(command, PATIENCE_S, stdin=order)


@pytest.mark.soak
@pytest.mark.parametrize("name", some(BY_LIBRARY, 3))
def test_a_child_gives_the_bytes_of_the_function(name: str) -> None:
    given = job(name)
    expected, done = answer(given), child(given, "5")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == expected


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_answer_is_the_training_whenever_it_is_asked(name: str) -> None:
    given = job(name)
    told = answer(given)
    assert answer(given) == told
    parts = parted(wire.decode(told)[0])
    algorithm = build(name, 3, SETTINGS.get(name, {}))
    shared = algorithm.start(generator(5, 0, "cloud")).global_state
    data = add_labelled({FEATURES: ROWS}, faults()) if algorithm.labels else {FEATURES: ROWS}
    rng = generator(5, 2, "north", bytes.fromhex(ORDER["secret"]))
    own, update = algorithm.phases[0].train(shared, {}, data, rng)
    assert equal(parts["own"], own) and equal(parts["update"], update)


def test_other_jobs_give_other_bytes() -> None:
    answers = {
        answer(job("support-vector-election", **change))  # which draws random numbers on the gateway
        for change in ({}, {"seed": 6}, {"round_index": 3}, {"gateway": "south"}, {"secret": "01ff"})
    }
    assert len(answers) == 5


def test_parts_are_what_was_joined() -> None:
    parts: dict[str, Arrays] = {"own": {"center": ROWS[0], "head.weights": ROWS}, "data": {FEATURES: ROWS}}
    read = parted(wire.decode(wire.encode(joined(parts), {}))[0])
    assert read.keys() == parts.keys()
    assert all(equal(read[name], parts[name]) for name in parts)


BAD = {
    "algorithm": (job(algorithm="fedsum"), "ValueError: algorithm 'fedsum' is unknown; expected one of fedavg"),
    "setting": (job(settings={"epoch": 1}), "ValueError: setting 'epoch' is unknown to fedavg; expected one of"),
    "value": (job(settings={"nu": 7}), "setting nu: Input should be less than or equal to 1, got '7'"),
    "phase": (job(phase=9), "IndexError: tuple index out of range"),
    "columns": (job(rows=np.ones((40, 4))), "ValueError: "),
    "nothing": (b"", "WireError: header: no line end"),
    "junk": (b"junk\n", "WireError: header: not JSON"),
    "cut": (job()[:-10], "WireError: body: "),
    "no data": (wire.encode({}, ORDER), "KeyError: 'data'"),
    "no order": (wire.encode(joined({"data": {FEATURES: ROWS}}), {}), "KeyError: 'algorithm'"),
}


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_job_ends_with_one_line_that_says_why(
    fault: str, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """The gateway's status shows that line; the last one of a traceback or of a list of errors would not do."""
    given, words = BAD[fault]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    monkeypatch.setattr(sys, "argv", ["trainer", "0"])
    assert main() == 1
    out, complaint = capfdbinary.readouterr()
    assert out == b"" and complaint.count(b"\n") == 1 and complaint.decode().startswith(words)


@pytest.mark.soak
def test_a_bad_job_ends_the_child_with_its_line() -> None:
    done = child(BAD["value"][0])
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.decode() == "setting nu: Input should be less than or equal to 1, got '7'\n"


@pytest.mark.parametrize(
    ("name", "table"), [("masking", {}), ("privacy", {"clip": 1.0, "noise_multiplier": 1.0, "epsilon": 8.0})]
)
def test_without_a_secret_nothing_is_drawn_that_nobody_may_guess(name: str, table: dict[str, Any]) -> None:
    arrays, order = wire.decode(job())
    settings = {"components": 0, "loss": "logistic", name: table}
    order |= {"settings": settings}
    with pytest.raises(ValueError, match=f"drawn: nothing given, expected 32 new bytes for each exchange with {name}"):
        answer(wire.encode(arrays, order))
    shared = build("fedavg", 3, settings).start(generator(5, 0, "cloud")).global_state
    kept = {key: array for key, array in arrays.items() if not key.startswith("shared.")}
    given = wire.encode({**kept, **joined({"shared": shared})}, {**order, "drawn": "01" * 32})
    assert parted(wire.decode(answer(given))[0])["update"]


@pytest.mark.parametrize("name", ["support-vector-election", "ensemble-svdd"])
def test_rows_that_give_nothing_to_send_are_remarked_upon(name: str) -> None:
    """A sensor that was stuck during the whole of its commissioning must not be left out without a word."""
    _, said = wire.decode(answer(job(name, np.ones_like(ROWS))))
    assert said == {"remarks": [NOTHING_TO_SEND]}
    assert wire.decode(answer(job(name)))[1] == {}


def test_zeros_without_normalisation_are_remarked_upon() -> None:
    change = {**SMALL, "normalisation": "none"}
    _, said = wire.decode(answer(job("incfed", np.zeros_like(ROWS), settings=change)))
    assert said == {"remarks": [NOTHING_TO_SEND]}


def test_a_fit_that_flags_nobody_is_remarked_upon() -> None:
    _, said = wire.decode(answer(job("support-vector-election", settings={"gamma": 1e9, "nu": 0.5})))
    (remark,) = said["remarks"]
    assert remark.startswith("none of the 40 rows that a border was fitted to lie outside, expected about 50%")


def test_what_a_training_warns_of_is_said_beside_a_spent_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    def warned(*given: Any) -> tuple[Arrays, Arrays]:
        del given
        warnings.warn("no noise is left", PrivacyWarning, stacklevel=1)
        warnings.warn("all lie outside", FitWarning, stacklevel=1)
        return {}, {}

    made = build("fedavg", 3, SETTINGS["fedavg"])
    phases = tuple(phase._replace(learn=warned) for phase in made.phases)
    monkeypatch.setattr("fedgate.gateway_agent.runtime.training_worker.build", lambda *_: made._replace(phases=phases))
    assert wire.decode(answer(job()))[1] == {"remarks": ["all lie outside", "no noise is left"]}


@pytest.mark.soak
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_gateway_of_no_weight_sends_nothing_but_what_it_takes_back(name: str) -> None:
    arrays, order = wire.decode(job(name))
    leaving = wire.encode({**arrays, "data.weight": np.array(0.0)}, order)
    answered, said = wire.decode(answer(leaving))
    update = parted(answered).get("update", {})
    if name == "incfed":  # which answers with zeros, so that rounds go on
        assert not any(array.any() for array in update.values() if array.dtype.kind == "f")
    else:
        assert not update and ("weight is zero" in said["remarks"][0])
