"""An Open Match client in Python, generated with Python's own tools.

Usage: client.py ADDRESS FOLDER_OF_GENERATED_CODE
"""

import sys

import grpc

address, generated = sys.argv[1:]
sys.path.insert(0, generated)

from google.protobuf import descriptor_pb2, wrappers_pb2
from openmatch import frontend_pb2, frontend_pb2_grpc, messages_pb2

channel = grpc.insecure_channel(address)
frontend = frontend_pb2_grpc.FrontendServiceStub(channel)


def refused(call, code, words=""):
    try:
        call()
    except grpc.RpcError as error:
        assert error.code() == code, error
        assert words in error.details(), error.details()
    else:
        raise AssertionError(f"expected {code}")


def create(tag="", **fields):
    ticket = messages_pb2.Ticket(**fields)
    if tag:
        ticket.search_fields.tags.append(tag)
    return frontend.CreateTicket(frontend_pb2.CreateTicketRequest(ticket=ticket))


def by_id(request, id):
    return request(ticket_id=id)


# Two players are matched and get the same connection.
extension = messages_pb2.Ticket()
extension.extensions["level"].Pack(wrappers_pb2.Int32Value(value=7))
first = create(extensions=extension.extensions, id="not mine to choose")
assert len(first.id) == 20 and first.HasField("create_time"), first
watching = frontend.WatchAssignments(by_id(frontend_pb2.WatchAssignmentsRequest, first.id), timeout=20)
second = create()
connection = next(watching).assignment.connection
watching.cancel()
assert connection, "an assignment without a connection"
read = frontend.GetTicket(by_id(frontend_pb2.GetTicketRequest, second.id))
assert read.assignment.connection == connection, read
level = wrappers_pb2.Int32Value()
assert frontend.GetTicket(by_id(frontend_pb2.GetTicketRequest, first.id)).extensions["level"].Unpack(level)
assert level.value == 7
refused(
    lambda: frontend.DeleteTicket(by_id(frontend_pb2.DeleteTicketRequest, first.id)),
    grpc.StatusCode.FAILED_PRECONDITION,
    "already assigned",
)

# A deleted ticket is gone, and deleting it again succeeds.
alone = create()
frontend.DeindexTicket(by_id(frontend_pb2.DeindexTicketRequest, alone.id))
assert frontend.GetTicket(by_id(frontend_pb2.GetTicketRequest, alone.id)).id == alone.id
watching = frontend.WatchAssignments(by_id(frontend_pb2.WatchAssignmentsRequest, alone.id), timeout=20)
frontend.DeleteTicket(by_id(frontend_pb2.DeleteTicketRequest, alone.id))
refused(lambda: next(watching), grpc.StatusCode.NOT_FOUND, alone.id)
frontend.DeleteTicket(by_id(frontend_pb2.DeleteTicketRequest, alone.id))
refused(lambda: frontend.GetTicket(by_id(frontend_pb2.GetTicketRequest, alone.id)), grpc.StatusCode.NOT_FOUND)

# Invalid requests are explained.
for odd in ["", "no/such id", "x" * 200]:
    words = f"Ticket id: {odd} not found"
    refused(lambda: frontend.GetTicket(by_id(frontend_pb2.GetTicketRequest, odd)), grpc.StatusCode.NOT_FOUND, words)
    watching = frontend.WatchAssignments(by_id(frontend_pb2.WatchAssignmentsRequest, odd), timeout=20)
    refused(lambda: next(watching), grpc.StatusCode.NOT_FOUND, words)
    frontend.DeleteTicket(by_id(frontend_pb2.DeleteTicketRequest, odd))


def refused_ticket(words, **fields):
    request = frontend_pb2.CreateTicketRequest(**fields)
    refused(lambda: frontend.CreateTicket(request), grpc.StatusCode.INVALID_ARGUMENT, words)


refused_ticket(".ticket is required")
assigned = messages_pb2.Ticket(assignment=messages_pb2.Assignment())
refused_ticket("tickets cannot be created with an assignment", ticket=assigned)
dated = messages_pb2.Ticket()
dated.create_time.GetCurrentTime()
refused_ticket("tickets cannot be created with create time set", ticket=dated)
refused(lambda: create(tag="x" * 200_000), grpc.StatusCode.RESOURCE_EXHAUSTED)
refused(
    lambda: next(frontend.WatchAssignments(by_id(frontend_pb2.WatchAssignmentsRequest, "nobody"))),
    grpc.StatusCode.NOT_FOUND,
)
refused(
    lambda: frontend.CreateBackfill(frontend_pb2.CreateBackfillRequest()),
    grpc.StatusCode.INVALID_ARGUMENT,
    ".backfill is required",
)

# Reflection, as grpcurl uses it: the list of services and the file that describes one. The messages are encoded by hand:
# ServerReflectionRequest {list_services = 7, file_containing_symbol = 4}.
reflect = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")


def field(number, data):
    return bytes([number << 3 | 2, len(data)]) + data


services = next(reflect(iter([field(7, b"*")])))
assert b"openmatch.FrontendService" in services and b"grpc.health.v1.Health" in services, services
files = next(reflect(iter([field(4, b"openmatch.FrontendService")])))
assert b"WatchAssignments" in files and b"DeindexTicket" in files, files
for service, method in [(b"openmatch.BackendService", b"FetchMatches"), (b"openmatch.QueryService", b"QueryBackfills")]:
    assert service in services, services
    assert method in next(reflect(iter([field(4, service)]))), service
assert descriptor_pb2.FileDescriptorProto.DESCRIPTOR is not None

# Health, as load balancers check it: HealthCheckRequest {service = 1}, and SERVING is 1.
check = channel.unary_unary("/grpc.health.v1.Health/Check")
for service in [b"FrontendService", b"BackendService", b"QueryService"]:
    assert check(field(1, b"openmatch." + service)) == b"\x08\x01", service
assert check(b"") == b"\x08\x01"

print("passed")
