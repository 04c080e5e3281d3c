"""Whether the folder of a site may be made, or made whole again, by `cloud-aggregator init`.

A site is its keys. A folder that has lost one of them is not mended by another: every gateway would refuse what is
signed with it. All else can be made again as it was, and then is.
"""

from __future__ import annotations

from pathlib import Path

from fedgate.cloud_aggregator.pki.authority import (
    ACCESS_LIST,
    CA,
    CA_KEY,
    CLOUD_CERTIFICATE,
    CLOUD_KEY,
    REVOKED,
    SERVER,
    SERVER_KEY,
)
from fedgate.cloud_aggregator.pki.site_keys import RELEASE, ROOT_PUB, STATEMENT
from fedgate.config.identity import pki, signing
from fedgate.config.protocol.topics import CLOUD

RELEASE_PUB = "release.pub"
SETTINGS = ("aggregator.toml", "gateway.toml", "mosquitto.conf")
OTHERS = (CA, SERVER, CLOUD_CERTIFICATE, SERVER_KEY, CLOUD_KEY, REVOKED, ACCESS_LIST)
STORE = "aggregator.db"


class FolderError(ValueError):
    """A folder in which no site is made; the message says why and what to do."""


def check(folder: Path, site: str, *, loopback: bool) -> None:
    """Raise `FolderError` where a site in this folder is whole, has lost a key, or is of another kind or name."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder}: expected a folder, or none yet; it is a file")
    held = {path.name for path in folder.iterdir()} if folder.exists() else set()
    needed = {RELEASE, RELEASE_PUB, *SETTINGS, *(() if loopback else (CA_KEY, *OTHERS, ROOT_PUB, STATEMENT))}
    if needed <= held:
        raise FolderError(
            f"{folder}: a site is here already, and nothing of it is overwritten; another site needs another folder"
        )
    if RELEASE not in held and (left := sorted(held & {CA_KEY, "aggregator.toml", STORE, RELEASE_PUB})):
        raise FolderError(
            f"{folder}: {', '.join(left)} of a site, without its {RELEASE}. With another key all its gateways "
            f"would refuse every model: restore {RELEASE} from the backup. Where it is lost for good, take another "
            "folder and enrol every gateway there anew"
        )
    if CA_KEY in held and loopback:
        raise FolderError(f"{folder}: a site with certificates is here; leave --loopback out, or take another folder")
    if {ROOT_PUB, STORE} <= held and STATEMENT not in held:
        raise FolderError(
            f"{folder}: {ROOT_PUB} without {STATEMENT}. Gateways take no statement with a lower number than the newest "
            f"that they know: restore {STATEMENT} from the backup; every gateway holds it too, beside its release.pub"
        )
    _check_authority(folder, held, site, loopback=loopback)


def _check_authority(folder: Path, held: set[str], site: str, *, loopback: bool) -> None:
    if CA_KEY not in held and CA in held:
        raise FolderError(
            f"{folder}: {CA} without {CA_KEY}. With another key all gateways would be strangers: restore {CA_KEY} "
            "from the backup, or take another folder and enrol every gateway there anew"
        )
    if CA_KEY not in held and not loopback and "aggregator.toml" in held:
        raise FolderError(
            f"{folder}: a site without certificates is here; give --loopback to make whole what it lacks, or take "
            "another folder"
        )
    if CLOUD_CERTIFICATE in held and (known := site_of(folder)) != site:
        raise FolderError(f"{folder}: it is of site {known!r}, and {site!r} is given; give --site {known}")


def site_of(folder: Path) -> str:
    """Return the name of the site whose certificates are in a folder; raises `IdentityError`."""
    return pki.read_common_name(pki.load_certificate(folder / CLOUD_CERTIFICATE)).removeprefix(f"{CLOUD}.")


def make_release_key(folder: Path) -> None:
    """Make the key of a new site, or write again the public half of the one that is there."""
    private, public = folder / RELEASE, folder / RELEASE_PUB
    if not private.exists():
        signing.make_key(private, public)
    elif not public.exists():
        pki.write(public, signing.encode_public_key(signing.load_private(private)), pki.PUBLIC_MODE)
