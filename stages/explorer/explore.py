"""Explore the tables and models of this project in a local app, which only reads.

bag explore
bag explore --port 8080 --no-browser
"""

import argparse
import logging
import os
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterable
from typing import Any, NoReturn

from stages.explorer.project import ExplorerError, Project
from stages.lib.core.settings import ParamsError
from stages.lib.sql.database import ERRORS

HOST = "127.0.0.1"  # this machine alone
PORT = 8765
PORTS = range(PORT, PORT + 20)  # tried in this order
LARGEST_PORT = 65535


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    summary, _, _ = (__doc__ or "").partition("\n")
    result = argparse.ArgumentParser(prog="bag explore", description=summary)
    ports = f"port to listen on (default: the first free port from {PORT}; 0: any free port)"
    result.add_argument("--port", type=_port, help=ports)
    no_browser = "print the address without opening a browser"
    result.add_argument("--no-browser", action="store_true", help=no_browser)
    return result


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > LARGEST_PORT:
        message = f"invalid port {text!r}; choose a whole number from 0 to {LARGEST_PORT}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def main(arguments: list[str] | None = None) -> None:
    """Serve the app until Ctrl-C, and open a browser on it."""
    options = parser().parse_args(arguments)
    try:
        server = served(Project(), options.port)
    except (ExplorerError, ParamsError, OSError, *ERRORS) as error:
        raise SystemExit(f"bag explore: {error}") from None
    address = f"http://localhost:{server.port}/"
    print(f"bag explore: {address}  (Ctrl-C ends it)", flush=True)
    if not options.no_browser:
        threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGTERM, _end)
    server.serve_forever()


def served(project: Project, port: int | None) -> Any:
    """Return a server of the app, already listening on a port, by default on the first free one.

    Raises ExplorerError if no model under study has predictions, or if no port can be had.
    """
    from werkzeug.serving import make_server  # imported late, as is the app: it takes a second

    from stages.explorer.app import made

    project.subjects  # noqa: B018 raises if there are none, before anything starts
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = made(project).server
    # the app's own socket: werkzeug would report each port that it cannot have, and end the program
    with _listening(PORTS if port is None else [port]) as listener:
        return make_server(HOST, 0, app, threaded=True, fd=listener.fileno())


def _listening(ports: Iterable[int]) -> socket.socket:
    """Return a socket that listens on the first of these ports that can be had.

    Raises ExplorerError if none can.
    """
    problem = ""
    for port in ports:
        try:
            return socket.create_server((HOST, port))
        except OSError as error:
            problem = f"cannot listen on port {port}: {os.strerror(error.errno or 0)}"
    raise ExplorerError(f"{problem}; choose another with --port, or 0 for any free port.")


def _end(*_: object) -> NoReturn:
    """End at once, even while a model works: nothing is written, so nothing is left half done."""
    print(file=sys.stderr, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
