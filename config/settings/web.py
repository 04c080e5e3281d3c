"""What is served over HTTP: of the aggregator the page, to whom and with which plan of the site, and the metrics; of a
gateway its own page.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from fedgate.config.protocol.messages import Id
from fedgate.config.settings.base import FilePath, Table, is_loopback
from fedgate.config.settings.database import DatabaseUrl

PORT, GATEWAY_PORT, PORT_MAX, POSITIONS_MAX = 8470, 8471, 65_535, 10_000
Role = Literal["viewer", "operator", "admin"]  # each may do what the ones before may
ROLES: tuple[Role, ...] = get_args(Role)
USERS, SOCKET = "web-users.json", "orders.socket"
GATEWAY_SOCKET = "gateway.socket"  # beside the store, by which the agent tells its page how it is
Header = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


def read_address(text: str) -> tuple[str, int]:
    """Return address and port of `127.0.0.1:8470` or `[::1]:8470`; raises `ValueError`."""
    host, _, port = text.rpartition(":")
    problem = f"expected ADDRESS:PORT, such as 127.0.0.1:8470 or [::1]:8470, got {text!r}"
    if not port.isdecimal() or not port.isascii() or int(port) > PORT_MAX:
        raise ValueError(problem)
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = ip_address(bare)
    except ValueError:
        raise ValueError(problem) from None
    if (address.version == 6) != (bare != host):
        raise ValueError(problem)
    return bare, int(port)


def name_network(address: str) -> str:
    """Return an address, of IPv6 the network of 64 bits that one client has to itself."""
    try:
        known = ip_address(address)
    except ValueError:
        return address
    return str(ip_network((known, 64), strict=False)) if known.version == 6 else address


def _check_listen(text: str) -> str:
    read_address(text)
    return text


Listen = Annotated[str, AfterValidator(_check_listen)]  # ADDRESS:PORT of this machine


class Proxy(Table):
    """A proxy before the page, which says from where somebody asks. One that logs users in says in headers who they
    are, and proves by a secret that it is the proxy: others on its machine have its address.
    """

    addresses: Annotated[tuple[str, ...], Field(min_length=1, max_length=8)]
    user_header: Header | None = None  # such as Remote-User; None: users log in here
    role_header: Header = "Remote-Role"  # viewer, operator or admin; without it: viewer
    secret_file: FilePath | None = None  # what the header X-Proxy-Secret must hold, for the two others to count

    @field_validator("addresses")
    @classmethod
    def _check_addresses(cls, addresses: tuple[str, ...]) -> tuple[str, ...]:
        for one in addresses:
            try:
                ip_address(one)
            except ValueError:
                raise ValueError(f"expected the IP addresses of the proxy, got {one!r}") from None
        return addresses

    @model_validator(mode="after")
    def _check_secret(self) -> Proxy:
        if self.user_header is not None and self.secret_file is None:
            raise ValueError(
                "user_header: whoever reaches the page from an address of the proxy could say who they are; give "
                "secret_file, and let the proxy send its content as X-Proxy-Secret"
            )
        return self


class WebTable(Table):
    """Where the page is served, and what is drawn on it."""

    listen: Listen = f"127.0.0.1:{PORT}"
    certificate_file: FilePath | None = None  # with its key: the page is served over HTTPS
    key_file: FilePath | None = None
    folder: FilePath | None = None  # of the users and the socket for orders; None: the folder of the store
    session_hours: Annotated[float, Field(gt=0.0, le=24 * 31)] = 12.0  # until one logs in again
    proxy: Proxy | None = None
    plan: FilePath | None = None  # an image of the site: SVG, PNG, JPEG or WebP
    positions: dict[Id, tuple[Fraction, Fraction]] = Field(
        default={}, max_length=POSITIONS_MAX
    )  # of gateways on it: shares of its width and its height

    @model_validator(mode="after")
    def _check_together(self) -> WebTable:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file belong together; give both or neither")
        if self.certificate_file is None and not is_loopback(self.address[0]):
            raise ValueError(
                f"listen: at {self.listen} everybody on the way reads passwords; give certificate_file and key_file, "
                "or listen on 127.0.0.1 behind a proxy with a certificate"
            )
        if self.positions and self.plan is None:
            raise ValueError("positions are places on a plan; give plan, the image of the site")
        return self

    @property
    def address(self) -> tuple[str, int]:
        """The address and the port of `listen`."""
        return read_address(self.listen)


class GatewayWebTable(Table):
    """Where a gateway's own page is served: for who is on the gateway alone."""

    listen: Listen = f"127.0.0.1:{GATEWAY_PORT}"

    @field_validator("listen")
    @classmethod
    def _check_loopback(cls, listen: str) -> str:
        host, port = read_address(listen)
        if not is_loopback(host):
            raise ValueError(
                f"a gateway's page asks nobody who they are, so it is served on the gateway alone, got {listen!r}; "
                f"expected an address such as 127.0.0.1:{port}, and from elsewhere 'ssh -L {port}:127.0.0.1:{port}'"
            )
        return listen


class MetricsTable(Table):
    """Where `cloud-aggregator metrics --listen` serves; it is a process beside the aggregator's."""

    listen: Listen | None = None  # None: nowhere


def locate_folder(web: WebTable, store: Path | DatabaseUrl) -> Path:
    """Return the folder of the users and the socket; raises `ValueError` where the settings name none."""
    if web.folder is not None:
        return web.folder
    if isinstance(store, Path):
        return store.parent
    raise ValueError("web.folder: with a store on a server expected the folder of the page's users and its socket")


def locate_socket(web: WebTable, store: Path | DatabaseUrl) -> Path:
    """Return where the service takes orders of the page; raises `ValueError` as `locate_folder` does."""
    return locate_folder(web, store) / SOCKET
