"""Whatever the bytes: taken, or refused with the declared error. Hypothesis in CI; atheris, where it installs, for
longer (`make fuzz`). A crash that either finds becomes a line of `KNOWN`, so that it stays mended.
"""

from __future__ import annotations

import re
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedgate.config.protocol import wire
from fedgate.config.protocol.messages import RoundOpen
from tests.fuzz.campaign import campaign, main
from tests.fuzz.mutation import broken
from tests.fuzz.target import Target, attempt
from tests.fuzz.targets import NAMES, target
from tests.support.message_samples import MESSAGES

SOON_S = 5.0


@pytest.mark.parametrize("name", NAMES)
def test_sound_bytes_are_taken(name: str) -> None:
    made = target(name)
    taken = [attempt(made, seed) for seed in made.seeds]
    assert any(taken), "no seed is taken, so mutations of them reach nothing"


SPEC = b'{"rate_hz":%s,"window_s":10.0,"hop_s":5.0,"channels":["x"],"steps":[{"kind":"welch","segment_s":2.0}]}'
OPEN = next(message for message in MESSAGES if isinstance(message, RoundOpen)).to_bytes()


def hollow() -> bytes:
    arrays, _ = wire.decode(target("update-federated-subspace").seeds[0])
    arrays["products"][[0, 2, 3, 5]] = 1e-320  # its diagonal; what is left of the rest are products of two of them
    return wire.encode(arrays)


KNOWN = [
    # A rate that makes 10^32 features, in a message that is read before its signature: the agent named them for ever.
    (
        "message-RoundOpen",
        re.sub(rb'"features":{.*?},"shared"', b'"features":' + SPEC % b"1.7e31" + b',"shared"', OPEN),
    ),
    ("message-RoundOpen", re.sub(rb'"features":{.*?},"shared"', b'"features":' + SPEC % b"1e300" + b',"shared"', OPEN)),
    # A version of the format that there is not: cryptography has an error of its own for that, which is no ValueError.
    ("certificate-request", target("certificate-request").seeds[1].replace(b"\x02\x01\x00", b"\x02\x01\x08", 1)),
    ("certificate", target("certificate").seeds[0].replace(b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x08", 1)),
    # A name that is no UTF-8, which cryptography looks at only when it is asked for the name.
    ("certificate", target("certificate").seeds[0].replace(b"gateway-1", b"\x87\x9a\x88\x9eay-1")),
    # What Python's own parser of TOML has other errors for than its own; and a home that there is not.
    ("settings-gateway", b"[gateway]\nid = " + b"[" * 2_000),
    ("settings-gateway", b"[gateway]\nid = " + b"9" * 5_000),
    ("settings-aggregator", b"[aggregator]\nsite = 0x" + b"f" * 5_000),
    ("settings-gateway", target("settings-gateway").seeds[0].replace(b'"gateway.db"', b'"~no-such-user/gateway.db"')),
    # Sums of squares next to nothing beside products that are not: looking for the eigenvalue to name failed itself.
    ("update-federated-subspace", hollow()),
    # A discriminator that lacks a layer ended the aggregator with the first update that it should have judged.
    ("discriminator", target("discriminator").seeds[0].replace(b"layer1.weights", b"layer1.missing", 1)),
]


@pytest.mark.parametrize(("name", "data"), KNOWN)
def test_what_was_mended_stays_mended(name: str, data: bytes) -> None:
    begun_s = time.monotonic()
    assert not attempt(target(name), data)
    assert time.monotonic() - begun_s < SOON_S


@pytest.mark.parametrize("share", [0.25, pytest.param(1.0, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", NAMES)
def test_garbage_gives_the_declared_error(name: str, share: float) -> None:
    made = target(name)

    @settings(max_examples=round(share * made.examples), suppress_health_check=list(HealthCheck))
    @given(broken(made.seeds))
    def law(data: bytes) -> None:
        attempt(made, data)

    law()


def test_another_error_than_the_declared_is_a_crash() -> None:
    made = Target(lambda data: {b"sound": 1}[data], (ValueError,), (b"sound",))
    assert attempt(made, b"sound")
    with pytest.raises(KeyError):

        @settings(max_examples=50, database=None)
        @given(st.just(b"sound") | broken(made.seeds))
        def law(data: bytes) -> None:
            attempt(made, data)

        law()


def test_an_unknown_target_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no-such-target"])
    assert "unknown targets ['no-such-target']" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris has no wheel for this machine, or was not installed")
def test_atheris_throws_its_bytes_at_the_same_targets(tmp_path: Path) -> None:
    tried = campaign("topics", 1.0, tmp_path, nice=0)
    assert tried.inputs > 100 and not tried.crash
    assert list((tmp_path / "topics" / "corpus").iterdir())
