"""A match function: pairs the players of each pool, those who have waited longest first.

Usage: match_function.py OPEN_MATCH_ADDRESS [LISTEN_ADDRESS]
"""

import sys
import uuid
from concurrent import futures

from open_match import channel, grpc, log, serve

from openmatch import extensions_pb2, matchfunction_pb2, matchfunction_pb2_grpc, messages_pb2, query_pb2, query_pb2_grpc

PLAYERS = 2


def score(tickets):
    """The longer the two have waited, the better the match: an evaluator prefers it."""
    return -sum(ticket.create_time.ToMilliseconds() for ticket in tickets)


class PairUp(matchfunction_pb2_grpc.MatchFunctionServicer):
    def __init__(self, query):
        self.query = query

    def Run(self, request, context):
        profile = request.profile
        for pool in profile.pools:
            pages = self.query.QueryTickets(query_pb2.QueryTicketsRequest(pool=pool))
            tickets = [ticket for page in pages for ticket in page.tickets]
            tickets.sort(key=lambda ticket: ticket.create_time.ToNanoseconds())
            for at in range(0, len(tickets) - PLAYERS + 1, PLAYERS):
                players = tickets[at : at + PLAYERS]
                match = messages_pb2.Match(
                    match_id=f"{profile.name}-{uuid.uuid4()}",
                    match_profile=profile.name,
                    match_function="pair-up",
                    tickets=players,
                )
                match.extensions["evaluation_input"].Pack(
                    extensions_pb2.DefaultEvaluationCriteria(score=score(players))
                )
                yield matchfunction_pb2.RunResponse(proposal=match)


def main():
    open_match, listen = (sys.argv[1:] + ["127.0.0.1:50502"])[:2]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    query = query_pb2_grpc.QueryServiceStub(channel(open_match))
    matchfunction_pb2_grpc.add_MatchFunctionServicer_to_server(PairUp(query), server)
    serve(server, listen)


if __name__ == "__main__":
    main()
