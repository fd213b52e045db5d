"""Run a real server of the S3 API on loopback, with one bucket, `bag`."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# In a process of its own: a client that waits without releasing Python's lock would wait for ever
# for a server in the same process.
SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://{}:{}".format(*server.get_host_and_port()), flush=True)
sys.stdin.read()
server.stop()
"""


@dataclass(frozen=True)
class Bucket:
    endpoint: str
    client: Any

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment variables that every client of S3 reads."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "user",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def upload(self, folder: Path, prefix: str) -> None:
        """Upload every file below a folder, under its path in the folder."""
        for file in folder.rglob("*"):
            if file.is_file():
                self.client.upload_file(str(file), "bag", f"{prefix}/{file.relative_to(folder)}")


@contextmanager
def serving() -> Iterator[Bucket]:
    pytest.importorskip("moto.server", reason="no S3 server here: install moto[server]")
    import boto3
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()  # clients of an earlier server
    with subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdin
        assert server.stdout
        endpoint = server.stdout.readline().strip()
        keys = {
            "aws_access_key_id": "user",
            "aws_secret_access_key": "secret",
            "region_name": "us-east-1",
        }
        client = boto3.client("s3", endpoint_url=endpoint, **keys)
        client.create_bucket(Bucket="bag")
        yield Bucket(endpoint, client)
        server.stdin.close()  # this ends it
