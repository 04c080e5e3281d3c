"""`cloud-aggregator notify test`, and what `check` and `doctor` say of channels: nothing shows an address."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.backup.site_files import is_secret, map_places
from fedgate.cloud_aggregator.commands import doctor
from fedgate.config.settings.settings import AggregatorSettings, SettingsError, load
from tests.cloud_aggregator.notifications.test_notify_delivery import address, title_of
from tests.support.receivers import receiving

Capture = pytest.CaptureFixture[str]


def configured(folder: Path, tables: str) -> Path:
    assert cloud_aggregator(["init", str(folder), "--loopback"]) == 0
    path = folder / "aggregator.toml"
    path.write_text(f"{path.read_text()}\n{tables}\n")
    return path


def channel(name: str, place: str = "url_file") -> str:
    return f'[[notify]]\nname = "{name}"\n{place} = "{name}.urls"\n'


@pytest.mark.soak
def test_a_test_message_says_what_each_address_answered(tmp_path: Path, capsys: Capture) -> None:
    with receiving(name=title_of) as good, receiving(name=title_of) as bad:
        bad.answer = 403
        path = configured(tmp_path, channel("crew") + channel("office"))
        (tmp_path / "crew.urls").write_text(address(good))
        (tmp_path / "office.urls").write_text(f"{address(good)}\n{address(bad)}\n")
        capsys.readouterr()
        assert cloud_aggregator(["notify", "test", "-c", str(path), "--channel", "crew"]) == 0
        assert "taken" in capsys.readouterr().out and good.taken == ["bridge: test of channel crew"]
        assert cloud_aggregator(["notify", "test", "-c", str(path), "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        found = [(one["channel"], one["address"], one["ok"], one["answer"]) for one in said["answers"]]
        assert not said["ok"] and found == [
            ("crew", 1, True, "taken"),
            ("office", 1, True, "taken"),
            ("office", 2, False, "it answers 403"),
        ]
        assert cloud_aggregator(["notify", "test", "-c", str(path)]) == 1
        assert "office" in (text := capsys.readouterr().err) and "403" in text and str(bad.port) not in text
    assert cloud_aggregator(["notify", "test", "-c", str(path), "--channel", "nobody"]) == 2
    assert "--channel: 'nobody' given; expected one that" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (None, "cannot be read (No such file"),
        (b"", "0 addresses in 0 characters; expected 1 to 10 addresses"),
        (b"# none\n", "0 addresses in 7 characters"),
        (b"\xff", "cannot be read (it is not UTF-8)"),
        (b"json://h/\n" * 11, "11 addresses in"),
        (b"json://127.0.0.1/\nnonsense://token-x/\n", "address 2: it is no address that Apprise knows"),
    ],
)
def test_addresses_that_cannot_be_used_are_named_by_check_and_doctor(
    tmp_path: Path, body: bytes | None, words: str, capsys: Capture
) -> None:
    path = configured(tmp_path, channel("crew"))
    if body is not None:
        (tmp_path / "crew.urls").write_bytes(body)
    assert cloud_aggregator(["check", "-c", str(path)]) == 2
    text = capsys.readouterr().err
    assert f"notify crew: url_file {tmp_path / 'crew.urls'}: {words}" in text and "token-x" not in text
    finding = doctor._check_channels(load(path, AggregatorSettings).notify)
    assert finding.level == "failure" and words in finding.text and "token-x" not in finding.text


@pytest.mark.soak
def test_check_and_doctor_know_channels(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    path = configured(tmp_path, channel("crew") + channel("night", "url_env").replace("night.urls", "NIGHT"))
    (tmp_path / "crew.urls").write_text("json://127.0.0.1/\nform://127.0.0.1/\n")
    assert cloud_aggregator(["check", "-c", str(path)]) == 2
    assert "notify night: environment variable NIGHT: 0 addresses" in capsys.readouterr().err
    monkeypatch.setenv("NIGHT", "json://127.0.0.1/")
    assert cloud_aggregator(["check", "-c", str(path)]) == 0
    finding = doctor._check_channels(load(path, AggregatorSettings).notify)
    assert (finding.level, finding.name) == (
        "ok",
        "notify",
    ) and "crew: JSON, Form; night: JSON (nothing" in finding.text


WRONG = [
    ('name = "a"\nurl = "json://token-x/"', "notify[0]: an address holds tokens and has no place in the settings"),
    ('name = "a"', "notify[0]: expected one of url_file and url_env"),
    ('name = "a"\nurl_file = "f"\nurl_env = "E"', "notify[0]: expected one of url_file and url_env"),
    ('name = "webhook"\nurl_file = "f"', "'webhook' given, which is what [webhook] is called"),
    ('name = "a"\nurl_file = "f"\nkinds = []', "notify[0].kinds"),
    ('name = "a"\nurl_file = "f"\nseverity = "bad"', "notify[0].severity"),
    ('name = "a"\nurl_file = "f"\n[[notify]]\nname = "a"\nurl_file = "g"', "notify: expected names that differ"),
]


@pytest.mark.parametrize(("table", "words"), WRONG)
def test_settings_that_cannot_be_meant_are_named_and_no_address_is_shown(
    tmp_path: Path, table: str, words: str
) -> None:
    path = configured(tmp_path, f"[[notify]]\n{table}")
    with pytest.raises(SettingsError) as caught:
        load(path, AggregatorSettings)
    assert words in str(caught.value) and "token-x" not in str(caught.value)


def test_a_backup_has_the_addresses_with_the_keys_alone(tmp_path: Path) -> None:
    path = configured(tmp_path, channel("crew") + channel("night", "url_env").replace("night.urls", "NIGHT"))
    places = map_places(path, load(path, AggregatorSettings))
    ours = {name: place for name, place in places.items() if name.startswith("notify")}
    assert ours == {"notify.crew.url_file": tmp_path / "crew.urls"} and all(map(is_secret, ours))
