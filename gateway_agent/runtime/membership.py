"""The files by which a gateway belongs to its site: its key and certificate, and the keys that it trusts."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from pathlib import Path

from fedgate.config.runtime.files import sync_folder
from fedgate.config.settings.settings import GatewaySettings


class MembershipError(ValueError):
    """The settings say that this gateway belongs to a site, and it does not yet; the message says what to do."""


@dataclass(frozen=True)
class Files:
    """Where it all lies."""

    key: Path
    certificate: Path
    authority: Path
    release_key: Path
    root_key: Path
    statement: Path

    def put_in_place(self) -> None:
        """Put key and certificate of an enrolment that is complete in their places, where one was interrupted there.

        The certificate is written last and says that all came; it goes last and says that all are in place. So the two
        change together, wherever the power is cut.
        """
        if not locate_coming(self.certificate).exists():
            return
        others = [path for path in astuple(self) if path != self.certificate]
        for path in (*others, self.certificate):
            if locate_coming(path).exists():
                locate_coming(path).replace(path)
                sync_folder(path.parent)


def find_files(settings: GatewaySettings) -> Files:
    """Return where the files are, by the settings; raises `MembershipError` where that is not said."""
    broker, trust = settings.broker, settings.trust
    if broker.key_file is None or broker.certificate_file is None or broker.ca_file is None:
        raise MembershipError("broker: expected ca_file, certificate_file and key_file, which [identity] is about")
    own = (broker.key_file, broker.certificate_file, broker.ca_file)
    return Files(*own, trust.release_key, trust.root_key, trust.keys)


def require(settings: GatewaySettings) -> None:
    """Raise `MembershipError` where this gateway has yet to be enrolled."""
    if settings.identity is not None and not find_files(settings).certificate.exists():
        raise MembershipError(
            f"{settings.gateway.id} is not enrolled yet: have 'cloud-aggregator gateways token {settings.gateway.id}' "
            "print a token and give it to 'gateway-agent enrol'"
        )


def locate_coming(path: Path) -> Path:
    """Return where a file of an enrolment waits for the others before it takes its place."""
    return path.with_name(f"{path.name}.new")
