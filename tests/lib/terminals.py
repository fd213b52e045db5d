"""A terminal of a known width for a command, so that tests see what a person sees."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path


class Terminal:
    """A command of this environment that runs in a folder, on a terminal `columns` wide; it imports the code that lies in `code`.

    streams: those of stdin, stdout and stderr that are to be something else, as subprocess.Popen takes them.
    """

    def __init__(
        self,
        code: Path,
        *command: str,
        folder: Path | None = None,
        columns: int = 80,
        **streams: int,
    ):
        self.own, side = pty.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment = {
            name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
        }
        environment |= {"PATH": path, "PYTHONPATH": str(code), "TERM": "xterm"}
        streams = {"stdin": side, "stdout": side, "stderr": side} | streams
        self.process = subprocess.Popen(command, cwd=folder or code, env=environment, **streams)
        os.close(side)

    def pieces(self) -> Iterator[str]:
        """What appears on the terminal, as it appears, until nothing writes to it any more."""
        while True:
            try:
                read = os.read(self.own, 4096)
            except OSError:  # how Linux says that the other side is closed
                read = b""
            if not read:
                return
            yield read.decode(errors="replace").replace("\r\n", "\n")

    def finish(self, typed: bytes = b"") -> tuple[int, str]:
        """Exit status and the rest of what appears, after `typed` has gone to a stdin that is a pipe."""
        if self.process.stdin:
            self.process.stdin.write(typed)
            self.process.stdin.close()
        text = "".join(self.pieces())
        os.close(self.own)
        return self.process.wait(), text
