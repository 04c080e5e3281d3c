"""The embedded MQTT broker as a process: `python -m fedgate.firmware_sim.embedded_broker --port N`, for `broker.py`
alone.

amqtt is loaded here and nowhere else, so that what runs beside the broker neither waits for it nor depends on it. It
speaks MQTT 3.1.1 alone, and means to refuse other versions, but first waits for a client id where another has none.
"""

import argparse
import asyncio
import importlib.metadata
import logging
import sys
from collections.abc import Iterator
from typing import Any

from amqtt.adapters import ReaderAdapter
from amqtt.broker import Broker
from amqtt.errors import BrokerError
from amqtt.mqtt.connect import ConnectPayload, ConnectVariableHeader
from amqtt.mqtt.packet import MQTTFixedHeader

HOST = "127.0.0.1"
MQTT_3 = 4  # as version 3.1.1 calls itself

logger = logging.getLogger("fedgate.firmware_sim.embedded_broker")  # the module's own name is __main__ when it is run


read_payload = ConnectPayload.from_stream


class Subscriptions(dict[str, Any]):
    """Subscriptions by filter, which may change while somebody goes over them: amqtt waits for clients in between, and
    one that subscribed meanwhile ended the handling of another, which was connected and heard nothing any more.
    """

    def __iter__(self) -> Iterator[str]:
        return iter([*super().keys()])

    def items(self) -> Any:
        """Return the filters with their subscriptions as they are now."""
        return [*super().items()]


async def read_own_version(
    reader: ReaderAdapter, fixed_header: MQTTFixedHeader, variable_header: ConnectVariableHeader
) -> ConnectPayload:
    """Return what a client says when it connects; of another version nothing, which amqtt then refuses in words."""
    if variable_header.proto_level == MQTT_3:
        return await read_payload(reader, fixed_header, variable_header)
    await reader.read(fixed_header.remaining_length - len(variable_header.to_bytes()))
    variable_header.flags = 0
    return ConnectPayload(client_id="other-version")


async def serve(port: int) -> None:
    """Be a broker on loopback until a signal ends the process.

    Raises:
        SystemExit: the port cannot be had; the message is amqtt's.
    """
    ConnectPayload.from_stream = read_own_version
    # allow_anonymous=False is what makes sessions last: it takes any user name, and refuses a client without one.
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": False}}
    listeners = {"default": {"type": "tcp", "bind": f"{HOST}:{port}"}}
    try:
        broker = Broker({"listeners": listeners, "plugins": plugins})
        broker._subscriptions = Subscriptions()
        await broker.start()
    except BrokerError as error:
        raise SystemExit(str(error)) from error
    logger.info("amqtt version %s running", importlib.metadata.version("amqtt"))
    await asyncio.Event().wait()  # it keeps nothing that would need a tidy end


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m fedgate.firmware_sim.embedded_broker", description=serve.__doc__)
    parser.add_argument("--port", type=int, required=True, help=f"port on {HOST}")
    port: int = parser.parse_args().port
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)
    asyncio.run(serve(port))


if __name__ == "__main__":
    main()
