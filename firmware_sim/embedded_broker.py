"""The embedded MQTT broker as a process: `python -m fedgate.firmware_sim.embedded_broker --port N`, for `broker.py`
alone.

amqtt is loaded here and nowhere else, so that what runs beside the broker neither waits for it nor depends on it.
"""

import argparse
import asyncio
import importlib.metadata
import logging
import sys

from amqtt.broker import Broker
from amqtt.errors import BrokerError

HOST = "127.0.0.1"

logger = logging.getLogger("fedgate.firmware_sim.embedded_broker")  # the module's own name is __main__ when it is run


async def serve(port: int) -> None:
    """Be a broker on loopback until a signal ends the process.

    Raises:
        SystemExit: the port cannot be had; the message is amqtt's.
    """
    # allow_anonymous=False is what makes sessions last: it takes any user name, and refuses a client without one.
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": False}}
    listeners = {"default": {"type": "tcp", "bind": f"{HOST}:{port}"}}
    try:
        await Broker({"listeners": listeners, "plugins": plugins}).start()
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
