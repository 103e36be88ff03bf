"""What the programs of this example share: generated code and connections."""

import os
import sys
import time

# Where `make-stubs.sh` writes the generated code.
GENERATED = os.environ.get("OPEN_MATCH_STUBS", os.path.join(os.path.dirname(__file__), "generated"))
sys.path.insert(0, GENERATED)

import grpc  # noqa: E402


def log(text):
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


def channel(address):
    return grpc.insecure_channel(address)


def serve(server, address):
    """Serves until the program is stopped. Prints the port, which may be any free one."""
    port = server.add_insecure_port(address)
    server.start()
    log(f"listening on port {port}")
    server.wait_for_termination()
