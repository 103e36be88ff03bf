"""Players: creates a ticket for each, and waits for their servers.

Usage: players.py OPEN_MATCH_ADDRESS COUNT
"""

import sys
from concurrent import futures

from open_match import channel, log

from director import MODES
from openmatch import frontend_pb2, frontend_pb2_grpc, messages_pb2


def play(frontend, number):
    fields = messages_pb2.SearchFields(tags=[MODES[number // 2 % len(MODES)]])
    ticket = frontend.CreateTicket(
        frontend_pb2.CreateTicketRequest(ticket=messages_pb2.Ticket(search_fields=fields))
    )
    request = frontend_pb2.WatchAssignmentsRequest(ticket_id=ticket.id)
    watching = frontend.WatchAssignments(request, timeout=60)
    connection = next(watching).assignment.connection
    watching.cancel()
    return connection


def main():
    open_match, count = sys.argv[1], int(sys.argv[2])
    frontend = frontend_pb2_grpc.FrontendServiceStub(channel(open_match))
    with futures.ThreadPoolExecutor(max_workers=count) as players:
        servers = list(players.map(lambda number: play(frontend, number), range(count)))
    alone = [server for server in set(servers) if servers.count(server) != 2]
    assert not alone, f"servers without two players: {alone}"
    log(f"{count} players play on {len(set(servers))} servers")


if __name__ == "__main__":
    main()
