"""`bag explore`: a local app over the tables and the models of this project. Reads only; listens to this machine alone.

bag explore
bag explore --port 8080 --no-browser
"""

import argparse
import logging
import os
import signal
import sys
import threading
import webbrowser
from typing import Any, NoReturn

from stages.explorer.project import ExplorerError, Project
from stages.lib.core.settings import ParamsError
from stages.lib.sql.database import ERRORS

HOST, PORT = "127.0.0.1", 8765
MOST = 20  # ports that are tried


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="bag explore", description=__doc__.partition("\n")[0] if __doc__ else None)
    result.add_argument("--port", type=_port, help=f"where it listens (default: the first free one from {PORT} on; 0: any free one)")
    result.add_argument("--no-browser", action="store_true", help="print the address and open no browser")
    return result


def _port(text: str) -> int:
    if not text.isdecimal() or not 0 <= int(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text} is no port, 0 to 65535")
    return int(text)


def main(arguments: list[str] | None = None) -> None:
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
    """The server of a project's app, listening. Raises ExplorerError without a subject, or where the port is taken."""
    from werkzeug.serving import make_server  # only here, like the app: they take a second to import

    from stages.explorer.app import made

    project.subjects  # noqa: B018 says what is missing before anything starts
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = made(project).server
    for place in [port] if port is not None else range(PORT, PORT + MOST):
        try:
            return make_server(HOST, place, app, threaded=True)
        except (OSError, SystemExit):
            continue
    where = f"port {port} is" if port is not None else f"the ports {PORT} to {PORT + MOST - 1} are"
    raise ExplorerError(f"{where} taken; name a free one with --port, or 0 for any.")


def _end(*_: object) -> NoReturn:
    """Ends at once, whatever a model is in the midst of: nothing is written, so nothing is left half done."""
    print(file=sys.stderr, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
