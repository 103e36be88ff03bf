"""An evaluator: chooses the matches with the best scores, so that no player is in two of them.

Usage: evaluator.py [LISTEN_ADDRESS]
"""

import sys
from concurrent import futures

from open_match import grpc, log, serve

from openmatch import evaluator_pb2, evaluator_pb2_grpc, extensions_pb2


def score(match):
    criteria = extensions_pb2.DefaultEvaluationCriteria()
    match.extensions["evaluation_input"].Unpack(criteria)
    return criteria.score


class BestScores(evaluator_pb2_grpc.EvaluatorServicer):
    def Evaluate(self, requests, context):
        matches = [request.match for request in requests]
        taken = set()
        chosen = 0
        for match in sorted(matches, key=score, reverse=True):
            players = {ticket.id for ticket in match.tickets}
            if taken.isdisjoint(players):
                taken |= players
                chosen += 1
                yield evaluator_pb2.EvaluateResponse(match_id=match.match_id)
        log(f"chose {chosen} of {len(matches)} matches")


def main():
    listen = (sys.argv[1:] + ["127.0.0.1:50508"])[0]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=8))
    evaluator_pb2_grpc.add_EvaluatorServicer_to_server(BestScores(), server)
    serve(server, listen)


if __name__ == "__main__":
    main()
