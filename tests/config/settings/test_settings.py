"""Settings files: what is good is taken whole, and every mistake is named with file, line, key, value and expectation.

The line is the part that goes wrong most easily, so mistakes are planted at places that the test marks in the text.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedgate.config.settings.problems import line_of
from fedgate.config.settings.settings import AggregatorSettings, Broker, GatewaySettings, SettingsError, load
from fedgate.models.federated import ALGORITHMS
from tests.support.sites import aggregator_settings, gateway_settings
from tests.support.syntax import ROOT

SHIPPED = ROOT / "config"
GATEWAY = """\
# a comment with [gateway] and "port = 1" in it
broker = { host = "::1", port = 1884 }  # inline

[gateway]
id = "g1"
site = 'bridge'

[[source]]
name = "deck"
kind = "frames"
channels = [
    { role = "load" },
    { role = "tilt", unit = "mrad" },
]

[[source]]
name = "climate"
kind = "json"
topic = "sensors/climate"
fill = "hold"
gap_s = 60.0

  [[source.channels]]
  role = "heat"
  path = "temperature"

  [[source.channels]]
  role = "wet"
  path = "humidity"

[features]
rate_hz = 100.0
window_s = 1.0
channels = ["load", "tilt", "heat", "wet"]
steps = [
    { kind = "level" }, { kind = "peak", channels = ["load"] },
    { kind = "bands", channels = ["load"], edges_hz = [
        1.0,
        2.0,
    ] },
]

[sensors.broker]
host = "localhost"

[baseline]
windows = 60
"""
AGGREGATOR = """\
aggregator = { site = "bridge" }
features = { rate_hz = 10.0, window_s = 1.0, channels = ["load"], steps = [{ kind = "level" }] }
rounds.quorum = 3
[algorithm]
name = "fedavg"
[algorithm.settings]
rounds = 3
nu = 0.5
"""


def mistake(folder: Path, text: str, kind: type[Any] = GatewaySettings) -> str:
    path = folder / "some.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError) as caught:
        load(path, kind)
    return str(caught.value).removeprefix(f"{path}:")


def changed(text: str, old: str, new: str) -> tuple[str, int]:
    """Return the text with its only `old` replaced, and the line on which that stood."""
    assert text.count(old) == 1, old
    return text.replace(old, new), text[: text.index(old)].count("\n") + 1


@pytest.mark.parametrize(("name", "kind"), [("gateway", GatewaySettings), ("aggregator", AggregatorSettings)])
def test_the_shipped_files_are_good(name: str, kind: type[Any]) -> None:
    load(SHIPPED / f"{name}.toml", kind)


def test_the_shipped_files_have_equal_features() -> None:
    gateway = load(SHIPPED / "gateway.toml", GatewaySettings)
    assert gateway.features == load(SHIPPED / "aggregator.toml", AggregatorSettings).features


def test_a_good_file_is_taken_whole(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text(GATEWAY)
    settings = load(path, GatewaySettings)
    assert (settings.broker.host, settings.broker.port) == ("::1", 1884)
    assert settings.sensors.broker == Broker(host="localhost")
    assert settings.gateway.store == tmp_path / "gateway.db"
    assert settings.trust.release_key == tmp_path / "release.pub"
    assert [stream.channels for stream in settings.streams] == [("load", "tilt"), ("heat", "wet")]
    assert [stream.gap_s for stream in settings.streams] == [None, 60.0]
    assert (settings.baseline.windows, settings.baseline.calibration_windows) == (60, 20)


def test_paths_are_relative_to_the_file_and_home_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somebody")
    path = tmp_path / "gateway.toml"
    keys = 'password_file = "~/broker.password"\nca_file = "/etc/ca.pem"'
    path.write_text(GATEWAY.replace('host = "localhost"', keys))
    broker = load(path, GatewaySettings).sensors.broker
    assert broker is not None
    assert broker.password_file == Path("/somebody/broker.password")
    assert broker.ca_file == Path("/etc/ca.pem")


MISTAKES = [
    ('"g1"', "1", "gateway.id: expected a valid string, got 1"),
    ('"g1"', '"a b"', "gateway.id: String should match pattern '^[A-Za-z0-9_.-]{1,64}$', got 'a b'"),
    ('"g1"', '"all"', "gateway.id: expected a name of this gateway's own; 'all' stands for all gateways of a site"),
    ('id = "g1"', "# nothing", "gateway.id: is missing", -1),
    ("port = 1884", "port = 70000", "broker.port: expected less than or equal to 65535, got 70000"),
    ("port = 1884", 'port = "1884"', "broker.port: expected a valid integer, got '1884'"),
    ("port = 1884", "porte = 1884", "broker.porte: is not a known key, got 1884"),
    ('host = "::1"', 'key_file = "k"', "broker: certificate_file and key_file belong together; give both or neither"),
    ('name = "climate"', 'name = "air con"', "source[1].name: String should match pattern"),
    ('kind = "json"', 'kind = "xml"', "source[1].kind: expected 'frames' or 'json', got 'xml'"),
    ('kind = "json"', "", "source[1].kind: is missing", -2),
    ("gap_s = 60.0", "gap_s = -1.0", "source[1].gap_s: expected greater than or equal to 0, got -1.0"),
    ('topic = "sensors/climate"', 'topic = ""', "source[1]: a json source needs the topic of its sensor", -3),
    ("sensors/climate", "sensors/+", "source[1]: topic: expected one topic without wildcards, got 'sensors/+'"),
    ('name = "climate"', 'name = "deck"', "source: expected names that differ, got ['deck', 'deck']", -9),
    ('unit = "mrad"', "unit = 5", "source[0].channels[1].unit: expected a valid string, got 5"),
    ('role = "load"', 'role = "deck load"', "source[0].channels[0].role: String should match pattern"),
    ('role = "tilt"', 'role = "lean"', "source: the roles of all sources are ['heat', 'lean', 'load', 'wet']", -5),
    ('path = "humidity"', "gain = nan\n", "source[1].channels[1].gain: expected a finite number, got nan"),
    ('path = "humidity"', "", "source[1]: each channel of a json source needs the path of its value", -13),
    ("rate_hz = 100.0", "rate_hz = true", "features.rate_hz: expected a valid number, got True"),
    ("window_s = 1.0", "window_s = 1.003", "features: window_s: makes 100.3 samples at rate_hz"),
    ('{ kind = "level" }', '{ kind = "lev" }', "features.steps[0]: Input tag 'lev' found using 'kind'"),
    ('{ kind = "level" }', "{ }", "features.steps[0]: Unable to extract tag using discriminator 'kind'"),
    ('kind = "peak",', 'kind = "peak", log = true,', "features.steps[1].log: is not a known key, got True"),
    ("        2.0,", '        "2",', "features.steps[2].edges_hz[1]: expected a valid number, got '2'"),
    ("        2.0,", "        200.0,", "features: steps[2].edges_hz: 200.0 Hz is above half of rate_hz", -2),
    ('host = "localhost"', "keepalive_s = 1", "sensors.broker.keepalive_s: expected greater than or equal to 5, got 1"),
    ("windows = 60", "windows = 60.5", "baseline.windows: expected a valid integer, got 60.5"),
    ("windows = 60", "windows = 1979-05-27", "baseline.windows: expected a valid integer"),
    (
        "windows = 60",
        "calibration_share = 0.999",
        "baseline: windows * calibration_share leaves 2 windows to train",
        -1,
    ),
    ("windows = 60", "calibration_share = 0.001", "baseline: windows * calibration_share leaves 2 windows to cal", -1),
    ("[baseline]", "[base.line]", "base: is not a known key"),
    (
        "[baseline]",
        "[training]\nepochs = 0\n[baseline]",
        "training.epochs: expected greater than or equal to 1, got 0",
        1,
    ),
    ("[baseline]", "[training]\nepochs = 1001\n[baseline]", "training.epochs: expected less than or equal to 1000", 1),
    ("[baseline]", "[training]\nnu = 1.5\n[baseline]", "training.nu: expected less than or equal to 1, got 1.5", 1),
    ("[baseline]", "[training]\ngamma = 0.0\n[baseline]", "training.gamma: expected greater than 0, got 0.0", 1),
    ("[baseline]", "[training]\nkappa = 0.0\n[baseline]", "training.kappa: expected greater than 0, got 0.0", 1),
    (
        "[baseline]",
        '[training]\nkappa = "never"\n[baseline]',
        "training.kappa: expected a valid number, got 'never'",
        1,
    ),
]


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case[2][:50])
def test_a_mistake_is_named_on_its_line(tmp_path: Path, case: tuple[Any, ...]) -> None:
    old, new, words, *offset = case
    text, line = changed(GATEWAY, old, new)
    said = mistake(tmp_path, text)
    assert "\n" not in said
    assert said.startswith(f"{line + sum(offset)}: {words}")


AGGREGATOR_MISTAKES = [
    ("quorum = 3", "quorum = 0", "rounds.quorum: expected greater than or equal to 1, got 0"),
    ('"fedavg"', '"fedsum"', f"algorithm.name: algorithm 'fedsum' is unknown; expected one of {', '.join(ALGORITHMS)}"),
    ("nu = 0.5", "nu = 2.0", "algorithm.settings.nu: expected less than or equal to 1, got '2.0'"),
    ("nu = 0.5", "eta = 0.5", "algorithm.settings.eta: setting 'eta' is unknown to fedavg; expected one of"),
    ('name = "fedavg"', "seed = -1", "algorithm.seed: expected greater than or equal to 0, got -1"),
    ('site = "bridge"', 'sites = "bridge"', "aggregator.site: is missing"),
]


@pytest.mark.parametrize("case", AGGREGATOR_MISTAKES, ids=lambda case: case[2][:50])
def test_a_mistake_of_an_aggregator_is_named_on_its_line(tmp_path: Path, case: tuple[str, str, str]) -> None:
    old, new, words = case
    text, line = changed(AGGREGATOR, old, new)
    assert mistake(tmp_path, text, AggregatorSettings).startswith(f"{line}: {words}")


def test_chunks_that_the_broker_does_not_take_are_a_mistake_at_both_ends() -> None:
    large: dict[str, Any] = {"limits": {"max_payload_bytes": 300_000}}
    for settings in (aggregator_settings, gateway_settings):
        with pytest.raises(ValidationError, match=r"300000 given, .* = 262144 at most 2618"):
            settings(**large)
        settings(**large, broker={"max_packet_bytes": 400_000})


def test_every_mistake_of_a_file_is_named_at_once(tmp_path: Path) -> None:
    text, first = changed(GATEWAY, "port = 1884", "port = 0")
    text, second = changed(text, "windows = 60", "windows = 1")
    found = [line.removeprefix(f"{tmp_path}/some.toml:") for line in mistake(tmp_path, text).splitlines()]
    assert [line.split(": ")[:2] for line in found] == [[str(first), "broker.port"], [str(second), "baseline.windows"]]


@pytest.mark.parametrize(
    ("text", "line"),
    [("[gateway\n", 1), ("[gateway]\nid = \n", 2), ("a = 1\na = 2", 2), ("[x]\ny = '", 2), ("\n\na = [1,\n", 4)],
)
def test_what_is_not_toml_is_named_on_its_line(tmp_path: Path, text: str, line: int) -> None:
    assert mistake(tmp_path, text).startswith(f"{line}: not TOML: ")


def test_a_mark_of_the_byte_order_is_read_over(tmp_path: Path) -> None:
    """As editors on Windows put it; the lines in what is wrong are counted as in any other file."""
    text = (SHIPPED / "gateway.toml").read_bytes()
    (tmp_path / "gateway.toml").write_bytes(b"\xef\xbb\xbf" + text)
    shipped = load(SHIPPED / "gateway.toml", GatewaySettings)
    assert load(tmp_path / "gateway.toml", GatewaySettings).features == shipped.features
    (tmp_path / "wrong.toml").write_bytes(b"\xef\xbb\xbf[gateway]\nid = 3\n")
    with pytest.raises(SettingsError, match=r"wrong\.toml:2: gateway\.id: "):
        load(tmp_path / "wrong.toml", GatewaySettings)
    (tmp_path / "wide.toml").write_text("id = 3", encoding="utf-16")
    with pytest.raises(SettingsError, match=r"wide\.toml: byte 0 is not UTF-8.*save it as UTF-8"):
        load(tmp_path / "wide.toml", GatewaySettings)


def test_a_file_that_is_not_there_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml: cannot be read \(.*No such file"):
        load(tmp_path / "nowhere.toml", GatewaySettings)
    (tmp_path / "latin.toml").write_bytes(b'id = "\xe9"')
    with pytest.raises(SettingsError, match=r"latin\.toml: byte 6 is not UTF-8.*save it as UTF-8"):
        load(tmp_path / "latin.toml", GatewaySettings)


KEYS = st.sampled_from(["a", "b-1", '"qu.oted"', "'li ter#al'", '"es\\"c = ]"', "_x"])
SCALARS = st.sampled_from(
    ["1", "-2.5", "true", '"te = xt # [x]"', "'lit \"eral'", "1979-05-27 07:32:00", '"""multi\nline ""\\""" # x"""',
     "'''a\n'b''\n'''", "inf"]
)  # fmt: skip
NEWLINE = st.sampled_from(["", "\n", " # no [comment] = 1\n"])


@st.composite
def values(draw: st.DrawFn, depth: int = 2) -> str:
    form = draw(st.sampled_from(["scalar", "array", "inline"] if depth else ["scalar"]))
    if form == "array":
        inner = draw(st.lists(values(depth - 1), max_size=3))
        return "[" + "".join(f"{draw(NEWLINE)}{value}," for value in inner) + draw(NEWLINE) + "]"
    if form == "inline":
        keys = draw(st.lists(KEYS, unique=True, max_size=2))
        return "{ " + ", ".join(f"{key} = {draw(values(depth - 1))}" for key in keys) + " }"
    return draw(SCALARS)


def paths(document: Any, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = list(document.items() if isinstance(document, dict) else enumerate(document))
    deeper = [paths(value, (*path, key)) for key, value in items if isinstance(value, dict | list)]
    return {(*path, key) for key, _ in items}.union(*deeper)


@pytest.mark.soak
@given(st.data())
def test_every_path_of_any_document_has_the_line_it_stands_on(data: st.DataObject) -> None:
    """The reader of lines must see what `tomllib` sees; every key here is given a value that no other line has."""
    text, table, expected = "", "", {}
    for number in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            table = data.draw(
                st.sampled_from(
                    [f"[t{number}.sub]", "[[list]]", f"[list.t{number}]" if "[[list]]" in text else "[[list]]"]
                )
            )
            text += f"  {table} # [x]\n"
        begins = text.count("\n") + 1
        text += f"k{number} = {data.draw(values())}{data.draw(NEWLINE)}\n"
        expected[f"k{number}"] = (begins, text.count("\n"))
    for path in paths(tomllib.loads(text)):
        for begins, ends in (expected[part] for part in path if isinstance(part, str) and part in expected):
            line = line_of(text, path)
            assert line == begins if path[-1] in expected else begins <= line <= ends
