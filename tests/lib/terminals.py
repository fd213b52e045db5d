"""Run commands on a terminal of a known width, so that tests see what a person sees."""

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
    """A command of this environment on a terminal `columns` wide.

    code: the folder from which it imports; folder: its working directory, by default `code`;
    streams: replacements for stdin, stdout or stderr, as subprocess.Popen takes them.
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
        own = {"PATH": path, "PYTHONPATH": str(code), "TERM": "xterm"}
        environment = {**os.environ, **own}
        for name in ("COLUMNS", "LINES"):
            environment.pop(name, None)
        streams = {"stdin": side, "stdout": side, "stderr": side} | streams
        self.process = subprocess.Popen(command, cwd=folder or code, env=environment, **streams)
        os.close(side)

    def pieces(self) -> Iterator[str]:
        """Yield what appears on the terminal until nothing writes to it any more."""
        while True:
            try:
                read = os.read(self.own, 4096)
            except OSError:  # on Linux, the other side is closed
                read = b""
            if not read:
                return
            yield read.decode(errors="replace").replace("\r\n", "\n")

    def finish(self, typed: bytes = b"") -> tuple[int, str]:
        """Write `typed` if stdin is a pipe. Return the exit status and the rest of the output."""
        if self.process.stdin:
            self.process.stdin.write(typed)
            self.process.stdin.close()
        text = "".join(self.pieces())
        os.close(self.own)
        return self.process.wait(), text
