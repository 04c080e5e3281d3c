"""Goal: where the store is can be a path or a URL, and no error shows a password."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedgate.config.settings.database import DatabaseUrl
from fedgate.config.settings.settings import SettingsError, SiteSettings, load

URL = "postgresql+psycopg://fedgate@db.example/fedgate?sslmode=verify-full"


def place_in(folder: Path, given: str) -> Path | DatabaseUrl:
    file = folder / "aggregator.toml"
    file.write_text(f'[aggregator]\nsite = "bridge"\nstore = {given}\n')
    return load(file, SiteSettings).aggregator.store


def test_a_path_is_relative_to_the_file_and_a_url_stays_as_it_is(tmp_path: Path) -> None:
    assert place_in(tmp_path, '"store/a.db"') == tmp_path / "store" / "a.db"
    found = place_in(tmp_path, f'"{URL}"')
    assert isinstance(found, DatabaseUrl) and found == URL


@pytest.mark.parametrize(
    "given",
    ["mysql://db/fedgate", URL.replace("fedgate@", "") + "#x"],
)
def test_another_url_is_named_with_what_was_expected(tmp_path: Path, given: str) -> None:
    with pytest.raises(
        SettingsError, match=r":3: aggregator.store: expected the path of a file, or postgresql\+"
    ) as no:
        place_in(tmp_path, f'"{given}"')
    assert given in str(no.value)
    with pytest.raises(SettingsError, match="expected a valid string, got 5"):
        place_in(tmp_path, "5")


NEARLY = {
    "postgresql://fedgate@db/fedgate": "write postgresql+psycopg:// for postgresql://, which names no driver",
    "postgres://db/fedgate": "write postgresql+psycopg:// for postgres://",
    "postgresql+psycopg://fedgate@db": "the name of the database is missing behind the host",
    "postgresql+psycopg://db/": "the name of the database is missing behind the host",
    f"{URL}&nonsense=1": "option 'nonsense' given, known are channel_binding, ",
    f"{URL}&prepare_threshold=x": "option 'prepare_threshold' given",  # of the driver, which fails by it later
    f"{URL}&connect_timeout=5": "option 'connect_timeout' given",  # which we set
    f"{URL}&sslmod": "option 'sslmod' given",
    URL.replace("verify-full", "full"): "sslmode 'full' given, known are disable, allow, ",
}


@pytest.mark.parametrize(("given", "hint"), NEARLY.items())
def test_a_url_that_is_nearly_right_is_refused_with_a_hint(tmp_path: Path, given: str, hint: str) -> None:
    with pytest.raises(SettingsError) as no:
        place_in(tmp_path, f'"{given}"')
    assert f"aggregator.store: expected the path of a file, or postgresql+psycopg://USER@HOST/DATABASE; {hint}" in str(
        no.value
    )


@pytest.mark.parametrize(
    "given",
    [
        "postgresql+psycopg://u:hunter2@db/fedgate",
        "postgresql+psycopg://u@db/fedgate?password=hunter2",
        "mysql://u:hunter2@db/fedgate",
        "postgresql+psycopg://u:hunter2/x@db/fedgate",
        "postgresql+psycopg://u:1#hunter2@db/fedgate",
        "postgresql+psycopg://u:1?hunter2@db/fedgate",
        "postgresql+psycopg://u:12/hunter2@db/fedgate",
        "postgresql://u:1#hunter2@db/fedgate",
        "postgresql+psycopg://u:hunter2@[db/fedgate",
    ],
)
def test_a_password_is_refused_and_never_shown(tmp_path: Path, given: str) -> None:
    with pytest.raises(SettingsError) as no:
        place_in(tmp_path, f'"{given}"')
    assert "hunter2" not in str(no.value) and "aggregator.store: " in str(no.value)
