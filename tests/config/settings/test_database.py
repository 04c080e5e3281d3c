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
    ["mysql://db/fedgate", "postgresql://db/fedgate", "postgresql+psycopg://db/", URL.replace("fedgate@", "") + "#x"],
)
def test_another_url_is_named_with_what_was_expected(tmp_path: Path, given: str) -> None:
    with pytest.raises(
        SettingsError, match=r":3: aggregator.store: expected the path of a file, or postgresql\+"
    ) as no:
        place_in(tmp_path, f'"{given}"')
    assert given in str(no.value)
    with pytest.raises(SettingsError, match="expected a valid string, got 5"):
        place_in(tmp_path, "5")


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
