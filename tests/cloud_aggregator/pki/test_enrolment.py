"""Goal: a device gets a certificate by a token of its own, once, from the right aggregator, whatever goes wrong.

Method: a real aggregator with its endpoint on loopback (no broker is needed for that), and the gateway's own code.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from fedgate.cloud_aggregator.__main__ import main as cloud_aggregator
from fedgate.cloud_aggregator.storage.store import Store
from fedgate.config.identity import pki
from fedgate.config.identity.pki import Token
from fedgate.config.settings.identity import Membership
from fedgate.config.settings.settings import GatewaySettings, load
from fedgate.firmware_sim import children
from fedgate.gateway_agent.__main__ import main as gateway_agent
from fedgate.gateway_agent.runtime.enrolment import EnrolmentError, enrol, read_validity, renew
from fedgate.gateway_agent.runtime.membership import Files, locate_coming
from fedgate.gateway_agent.runtime.renewal import Renewer
from tests.support.site_folders import Folder, aggregator_of, founded
from tests.support.sites import SITE, gateway_settings
from tests.support.waiting import PATIENCE_S

LIFE_S = 2.0  # of a certificate, where a test wants to see it end
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Folder]:
    made = founded(tmp_path_factory.mktemp("enrolment") / "site")
    file = made.path / "aggregator.toml"
    file.write_text(file.read_text().replace("certificate_days = 90", f"certificate_days = {LIFE_S / 86_400:.9f}"))
    with aggregator_of(made):
        yield made


@pytest.fixture
def token(site: Folder, request: pytest.FixtureRequest, capsys: Capture) -> Token:
    """A token for a gateway that is named after the test."""
    name = request.node.name.replace("[", "-").replace("]", "")[-40:].strip("-_")
    return made_token(site, name, capsys)


def made_token(site: Folder, name: str, capsys: Capture, *more: str) -> Token:
    words = ["gateways", "token", name, "-c", str(site.path / "aggregator.toml"), "--json", *more]
    assert cloud_aggregator(words) == 0
    return pki.read_token(json.loads(capsys.readouterr().out)["token"])


def files(folder: Path) -> Files:
    folder.mkdir(exist_ok=True)
    names = ("gateway.key", "gateway.pem", "ca.pem", "release.pub", "root.pub", "keys.json")
    return Files(*(folder / name for name in names))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_commands_enrol_a_gateway(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    shutil.copy(site.path / "gateway.toml", tmp_path)
    config = ["-c", str(tmp_path / "gateway.toml")]
    assert gateway_agent(["check", *config]) == 2 and "is not enrolled yet" in capsys.readouterr().err
    wrong = made_token(site, "gateway-2", capsys)
    assert gateway_agent(["enrol", *config, "--token", wrong.format()]) == 2
    assert "is for gateway 'gateway-2'" in capsys.readouterr().err and [*contents(tmp_path)] == ["gateway.toml"]
    made = made_token(site, "gateway-1", capsys)
    assert gateway_agent(["enrol", *config, "--token", made.format(), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["gateway"] == "gateway-1"
    fetched = ("ca.pem", "release.pub", "root.pub", "keys.json")
    assert {*contents(tmp_path)} == {"gateway.toml", "gateway.key", "gateway.pem", *fetched}
    assert stat.S_IMODE((tmp_path / "gateway.key").stat().st_mode) == 0o600
    for name in fetched:
        assert (tmp_path / name).read_bytes() == (site.path / name).read_bytes()
    assert gateway_agent(["check", *config]) == 0
    assert cloud_aggregator(["gateways", "list", "-c", str(site.path / "aggregator.toml")]) == 0
    out = capsys.readouterr().out
    assert re.search("^gateway-1 +enrolled", out, re.MULTILINE) and "tokens not used yet" in out and "gateway-2" in out


@pytest.mark.parametrize("cut", range(7))
def test_a_power_cut_at_any_file_costs_one_more_call(
    cut: int, token: Token, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, real, calls = files(tmp_path / "device"), pki.write, iter(range(99))

    def write(path: Path, body: bytes, mode: int) -> None:
        if next(calls) == cut:
            raise OSError("the power is gone")
        real(path, body, mode)

    with monkeypatch.context() as patch:
        patch.setattr(pki, "write", write)
        if cut < 6:
            with pytest.raises(OSError, match="power"):
                enrol(token, wanted)
            assert not wanted.certificate.exists()  # what says that all is there comes last
        else:
            enrol(token, wanted)
    enrol(token, wanted)
    assert pki.read_common_name(pki.load_certificate(wanted.certificate)) == token.gateway
    assert pki.load_certificate(wanted.certificate).public_key() == pki.load_key(wanted.key).public_key()


class PowerCut(BaseException):
    """No code of the product catches it, as none goes on after a power cut."""


@contextmanager
def cut_at(call: int) -> Iterator[None]:
    """End what this thread does before its so manieth change of a file or folder; the aggregator's own go on."""
    thread, calls = threading.get_ident(), count()

    def cut(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*given: Any, **named: Any) -> Any:
            if threading.get_ident() == thread and next(calls) == call:
                raise PowerCut
            return real(*given, **named)

        return change

    with pytest.MonkeyPatch.context() as patch:
        for name in ("open", "fsync", "rename", "replace", "unlink"):
            patch.setattr(os, name, cut(getattr(os, name)))
        yield


def pair(mine: Files) -> bytes:
    """Return the key of a device whose certificate is of that key."""
    fits = pki.load_certificate(mine.certificate).public_key() == pki.load_key(mine.key).public_key()
    assert fits, "key and certificate of a device do not belong together"
    return mine.key.read_bytes()


@pytest.mark.soak
def test_a_power_cut_anywhere_in_a_change_of_the_key_leaves_the_old_pair_or_the_new_one(
    site: Folder, tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture
) -> None:
    enrol(made_token(site, "cut", capsys), mine := files(tmp_path / "device"))
    places, is_whole, cuts = asdict(mine), False, 0
    while not is_whole:
        before, token = pair(mine), made_token(site, "cut", capsys, "--replace")
        with cut_at(cuts), suppress(PowerCut):
            enrol(token, mine, new_key=True)
            is_whole = True
        with cut_at(cuts % 7), suppress(PowerCut):
            mine.put_in_place()  # as the next start does, which may be cut too
        mine.put_in_place()
        settled = pair(mine)
        enrol(token, mine, new_key=True)
        after = pair(mine)
        assert after != before and settled in (before, after)
        enrol(token, mine, new_key=True)
        assert pair(mine) == after  # called once more than was needed it changes nothing
        assert {*contents(tmp_path / "device")} == {path.name for path in places.values()}
        cuts += 1
    assert cuts > 9
    assert "identity-refused" not in caplog.text
    with closing(Store(site.path / "aggregator.db", create=False)) as store:
        assert not [row for row in store.read_rows("alarms") if row["gateway"] == "cut"]


@pytest.mark.soak
def test_a_key_that_was_made_for_another_token_is_left_behind(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    enrol(made_token(site, "left", capsys), mine := files(tmp_path / "device"))
    first = made_token(site, "left", capsys, "--replace")
    with cut_at(9), pytest.raises(PowerCut):  # its key and the authority are here
        enrol(first, mine, new_key=True)
    assert locate_coming(mine.key).exists()
    words = ["gateways", "revoke", "left", "-c", str(site.path / "aggregator.toml")]
    cloud_aggregator(words)
    capsys.readouterr()
    with pytest.raises(EnrolmentError, match="not known here"):
        enrol(first, mine, new_key=True)
    enrol(made_token(site, "left", capsys, "--replace"), mine, new_key=True)
    pair(mine)


def test_a_lost_answer_is_given_again_to_the_same_key_and_to_no_other(token: Token, tmp_path: Path) -> None:
    first = enrol(token, files(tmp_path / "device"))
    assert enrol(token, files(tmp_path / "device")) == first
    with pytest.raises(EnrolmentError, match="used by another device"):
        enrol(token, files(tmp_path / "thief"))
    assert [*contents(tmp_path / "thief")] == ["gateway.key"]


def test_an_aggregator_of_another_site_is_told_nothing(
    site: Folder, token: Token, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EnrolmentError, match="nothing was sent"):
        enrol(replace(token, root="00" * 32), files(tmp_path / "device"))
    assert not contents(tmp_path / "device")
    with pytest.raises(EnrolmentError, match="cannot be reached"):
        enrol(replace(token, address=f"localhost:{site.port}"), files(tmp_path / "device"))
    assert not contents(tmp_path / "device")


def test_a_token_that_has_expired_is_not_called_unused(site: Folder, tmp_path: Path, capsys: Capture) -> None:
    made_token(site, "short-lived", capsys, "--hours", "0.0001")
    time.sleep(0.4)
    assert cloud_aggregator(["gateways", "list", "-c", str(site.path / "aggregator.toml")]) == 0
    assert "short-lived" not in capsys.readouterr().out


@pytest.mark.soak
def test_the_name_of_the_aggregator_is_checked_too(tmp_path: Path, capsys: Capture) -> None:
    other = founded(tmp_path / "other")
    other.authority.write_own(
        SITE, ["elsewhere.example"], pki.load_certificate(other.path / "ca.pem").not_valid_after_utc
    )
    with aggregator_of(other):
        capsys.readouterr()
        made = made_token(other, "north", capsys)
        with pytest.raises(EnrolmentError, match=r"not to be trusted .*localhost"):
            enrol(made, files(tmp_path / "device"))
    assert not (tmp_path / "device" / "gateway.pem").exists()


@pytest.mark.soak
def test_another_device_takes_the_place_where_the_operator_says_so(
    site: Folder, tmp_path: Path, capsys: Capture
) -> None:
    enrol(made_token(site, "swapped", capsys), files(tmp_path / "old"))
    words = ["gateways", "token", "swapped", "-c", str(site.path / "aggregator.toml")]
    assert cloud_aggregator(words) == 2 and "--replace" in capsys.readouterr().err
    enrol(made_token(site, "swapped", capsys, "--replace"), files(tmp_path / "new"))
    with pytest.raises(EnrolmentError, match="is replaced"):
        renew("swapped", f"localhost:{site.port + 1}", files(tmp_path / "old"))
    again = made_token(site, "swapped", capsys, "--replace")
    before = (tmp_path / "new" / "gateway.key").read_bytes()
    enrol(again, files(tmp_path / "new"), new_key=True)
    assert (tmp_path / "new" / "gateway.key").read_bytes() != before
    fetched = {"ca.pem", "release.pub", "root.pub", "keys.json"}
    assert {*contents(tmp_path / "new")} == {"gateway.key", "gateway.pem", *fetched}


@pytest.mark.soak
def test_a_certificate_is_renewed_also_after_its_end_and_the_key_is_kept(
    site: Folder, token: Token, tmp_path: Path
) -> None:
    mine = files(tmp_path / "device")
    first = enrol(token, mine)
    key = mine.key.read_bytes()
    assert not renew(token.gateway, token.address, mine).is_new  # too early: the same again
    time.sleep(max(first.not_after_s - time.time(), 0.0) + 0.1)
    asked_s = time.time()
    second = renew(token.gateway, token.address, mine)
    assert second.is_new and second.not_after_s > asked_s > first.not_after_s
    assert mine.key.read_bytes() == key and read_validity(mine).not_after_s == second.not_after_s
    with pytest.raises(EnrolmentError, match="needs a token"):
        renew("somebody-else", token.address, mine)
    assert read_validity(mine).not_after_s == second.not_after_s


def renewer(folder: Path, gateway: str, address: str) -> Renewer:
    mine = files(folder)
    broker = {"ca_file": mine.authority, "certificate_file": mine.certificate, "key_file": mine.key}
    trust = {"release_key": mine.release_key, "root_key": mine.root_key, "keys": mine.statement}
    settings = gateway_settings(gateway, broker=broker, trust=trust, identity={"enrolment": address})
    assert settings.identity is not None
    return Renewer(settings, settings.identity)


@pytest.mark.soak
@pytest.mark.slow
def test_the_agent_renews_by_the_wall_clock_however_it_jumps(
    token: Token, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = files(tmp_path / "device")
    first = enrol(token, mine)
    at = renewer(tmp_path / "device", token.gateway, token.address)
    life_s = first.not_after_s - first.not_before_s
    assert not at.look(first.not_before_s + 0.5 * life_s)
    assert read_validity(mine).not_after_s == first.not_after_s
    for wall_s in (0.0, 1_000.0, first.not_before_s - 1.0, first.not_before_s + 0.7 * life_s, first.not_after_s + 1e7):
        assert at.is_due(wall_s)  # in 1970 it cannot know, so it asks
    at.look(0.0)
    held = read_validity(mine)
    time.sleep(max(held.not_after_s - time.time(), 0.0) + 0.1)
    assert not at.look(time.time())
    assert read_validity(mine).not_after_s > held.not_after_s >= first.not_after_s
    # Nothing is thrown away where the aggregator is away, or where the clock says that its certificate is not good.
    before = contents(tmp_path / "device")
    away = renewer(tmp_path / "device", token.gateway, "localhost:1")
    assert away.look(0.0) and away.look(4e9) and contents(tmp_path / "device") == before
    assert "certificate not renewed (attempt 2)" in caplog.text and "cannot be reached" in caplog.text


def test_no_log_holds_a_token_or_a_key(
    site: Folder, token: Token, tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: Capture
) -> None:
    caplog.set_level(logging.DEBUG)
    mine = files(tmp_path / "device")
    enrol(token, mine)
    with pytest.raises(EnrolmentError) as refused:
        enrol(token, files(tmp_path / "thief"))
    words = caplog.text + "".join(capsys.readouterr()) + str(refused.value)
    store = b"".join(path.read_bytes() for path in site.path.glob("aggregator.db*"))
    keys = [line for path in (mine.key, *site.path.glob("*.key")) for line in path.read_text().splitlines()[1:-1]]
    assert len(keys) >= 5
    for secret in (token.secret, *keys):
        assert secret not in words and secret.encode() not in store
    assert token.digest.encode() in store  # so it is the store of this run that was searched


def test_settings_that_miss_a_file_say_so(tmp_path: Path, site: Folder, capsys: Capture) -> None:
    text = (site.path / "gateway.toml").read_text().replace('key_file = "gateway.key"\n', "", 1)
    text = text.replace('certificate_file = "gateway.pem"\n', "", 1)
    (tmp_path / "gateway.toml").write_text(text)
    assert gateway_agent(["check", "-c", str(tmp_path / "gateway.toml")]) == 2
    assert "expected ca_file, certificate_file and key_file" in capsys.readouterr().err
    whole = load(site.path / "gateway.toml", GatewaySettings)
    assert whole.identity == Membership(enrolment=f"localhost:{site.port + 1}")


@pytest.mark.soak
def test_the_agent_itself_never_loads_what_works_with_keys() -> None:
    modules = "fedgate.gateway_agent.runtime.agent, fedgate.gateway_agent.__main__"
    code = f"import sys, {modules}; sys.exit('cryptography' in sys.modules)"
    assert children.run([sys.executable, "-c", code], PATIENCE_S).returncode == 0
