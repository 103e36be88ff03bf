"""A Director: fetches matches for each game mode, and assigns each to a server.

Usage: director.py OPEN_MATCH_ADDRESS MATCH_FUNCTION_ADDRESS [ROUNDS]

It fetches matches of all modes every second, ROUNDS times or until it is stopped.
"""

import random
import sys
import time
from concurrent import futures

from open_match import channel, grpc, log

from openmatch import backend_pb2, backend_pb2_grpc, messages_pb2

MODES = ["mode.demo", "mode.ctf", "mode.battleroyale"]


def profile(mode):
    pool = messages_pb2.Pool(name=f"pool_{mode}", tag_present_filters=[messages_pb2.TagPresentFilter(tag=mode)])
    return messages_pb2.MatchProfile(name=f"profile_{mode}", pools=[pool])


def fetch(backend, function, mode):
    host, port = function.rsplit(":", 1)
    config = backend_pb2.FunctionConfig(host=host, port=int(port), type=backend_pb2.FunctionConfig.GRPC)
    request = backend_pb2.FetchMatchesRequest(config=config, profile=profile(mode))
    return [response.match for response in backend.FetchMatches(request)]


def assign(backend, match):
    """A real Director asks its server allocator for a server here."""
    server = f"10.{random.randrange(256)}.{random.randrange(256)}.{random.randrange(256)}:2222"
    group = backend_pb2.AssignmentGroup(
        ticket_ids=[ticket.id for ticket in match.tickets], assignment=messages_pb2.Assignment(connection=server)
    )
    response = backend.AssignTickets(backend_pb2.AssignTicketsRequest(assignments=[group]))
    for failure in response.failures:
        log(f"could not assign ticket {failure.ticket_id}: {failure.cause}")


def direct(backend, function, mode):
    try:
        matches = fetch(backend, function, mode)
    except grpc.RpcError as error:
        log(f"cannot fetch matches of {mode}: {error.details()}")
        return 0
    for match in matches:
        assign(backend, match)
    return len(matches)


def main():
    open_match, function, rounds = (sys.argv[1:] + ["0"])[:3]
    backend = backend_pb2_grpc.BackendServiceStub(channel(open_match))
    left = int(rounds) or float("inf")
    with futures.ThreadPoolExecutor(max_workers=len(MODES)) as calls:
        while left > 0:
            left -= 1
            made = sum(calls.map(lambda mode: direct(backend, function, mode), MODES))
            if made:
                log(f"assigned {made} matches")
            time.sleep(1)


if __name__ == "__main__":
    main()
