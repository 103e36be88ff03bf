"""A Director over REST, for tests that kill it.

Usage: director.py PROFILE MATCH_FUNCTION_PORT PLACES

PLACES is a file with the addresses of the processes that serve BackendService. It is read before each call, so that a Director learns of
a new process as from a load balancer. Each call goes to the next one.
"""

import itertools
import json
import sys
import time
import urllib.error
import urllib.request

# More matches are assigned in several calls, so that a Director can be killed between them.
ASSIGNED_AT_ONCE = 50

profile, function, places = sys.argv[1:]
turns = itertools.count(hash(profile))
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(method, request):
    """Returns the lines of the response, or none if the process does not answer."""
    with open(places, encoding="utf-8") as file:
        addresses = file.read().split()
    address = addresses[next(turns) % len(addresses)]
    url = f"http://{address}/v1/backendservice/{method}"
    try:
        with direct.open(url, json.dumps(request).encode(), timeout=5) as response:
            return [json.loads(line) for line in response]
    except (OSError, ValueError):
        return []


def group(match):
    ids = [ticket["id"] for ticket in match["tickets"]]
    return {"ticket_ids": ids, "assignment": {"connection": f"{profile}/{match['match_id']}"}}


config = {"host": "127.0.0.1", "port": int(function), "type": "REST"}
while True:
    lines = call("matches:fetch", {"config": config, "profile": {"name": profile}})
    groups = [group(line["result"]["match"]) for line in lines if "result" in line]
    if not groups:
        time.sleep(0.05)
    for at in range(0, len(groups), ASSIGNED_AT_ONCE):
        call("tickets:assign", {"assignments": groups[at : at + ASSIGNED_AT_ONCE]})
