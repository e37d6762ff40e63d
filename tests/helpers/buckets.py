"""A server of S3's protocol."""

from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "perennial"
VARIABLES = {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "1"}


@contextmanager
def server() -> Iterator[int]:
    """The port of a server with an empty bucket, BUCKET. The variables of its clients: AWS_ENDPOINT_URL, VARIABLES."""
    import boto3
    from moto.server import ThreadedMotoServer

    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    port = int(running.get_host_and_port()[1])
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", **keys).create_bucket(Bucket=BUCKET)
    try:
        yield port
    finally:
        running.stop()
