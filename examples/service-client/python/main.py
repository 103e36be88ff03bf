"""A shop that uses the service API of Playhouse through a generated client.

docs/guides/service-clients.md has the commands that generate the client and run this program.
"""

import os
from datetime import datetime, timedelta, timezone

import playhouse
from playhouse import BatchChange, ChangeAction

ISSUER = "https://id.example.com"


def main() -> None:
    config = playhouse.Configuration(
        host=os.environ["SERVICE_API_URL"], access_token=os.environ["SERVICE_API_TOKEN"]
    )
    with playhouse.ApiClient(config) as client:
        run(client)


def run(client: playhouse.ApiClient) -> None:
    users = playhouse.UsersApi(client)
    entitlements = playhouse.EntitlementsApi(client)
    notifications = playhouse.NotificationsApi(client)
    drops = playhouse.DropsApi(client)

    # The first sign-in of an identity creates the user with an account.
    signed_in = users.sign_in(playhouse.SignInRequest(issuer=ISSUER, subject="ada", display_name="Ada"))
    print(f"signed in {signed_in.user.display_name}, a new user: {text(signed_in.created)}")

    user = users.find_user(issuer=ISSUER, subject="ada")
    accounts = users.list_accounts(user.user_id).accounts
    account = accounts[0].account_id
    print(f"found {user.display_name}, {user.state.value}, with {len(accounts)} account")

    # The number of the order is the idempotency key: after a timeout, send the same request again.
    bought = datetime.now(timezone.utc) - timedelta(minutes=1)
    grant = playhouse.Grant(user_id=user.user_id, account_id=account, resource="skin:dragon", occurred_at=bought)
    for _ in range(2):
        response = entitlements.grant_entitlement_with_http_info("order-1001", grant, _request_timeout=10)
        result, headers = response.data, response.headers or {}
        replayed = headers.get("idempotency-replayed") == "true"
        print(f"granted {result.entitlement.resource}: {result.effect}, replayed: {text(replayed)}")

    # A key belongs to one request. An error has the problem document of the service API.
    grant.resource = "skin:phoenix"
    try:
        entitlements.grant_entitlement("order-1001", grant)
    except playhouse.ApiException as error:
        problem = error.data
        assert isinstance(problem, playhouse.Problem)
        print(f"refused with {problem.status} {problem.type}: {problem.detail}")

    # Both changes are applied, or none of them.
    def change(action: ChangeAction, resource: str) -> BatchChange:
        return BatchChange(
            action=action,
            user_id=user.user_id,
            account_id=account,
            resource=resource,
            occurred_at=datetime.now(timezone.utc),
        )

    trade = [change(ChangeAction.REVOKE, "skin:dragon"), change(ChangeAction.GRANT, "skin:phoenix")]
    entitlements.change_entitlements("trade-7", playhouse.Batch(changes=trade))

    for entitlement in entitlements.list_entitlements(user.user_id, account, in_force=True).entitlements:
        print(f"owns {entitlement.resource}, version {entitlement.version}")

    sent = notifications.send_notification(
        "trade-7-done",
        playhouse.NotificationRequest(
            to=playhouse.Recipients(user_id=user.user_id),
            texts={"en": playhouse.NotificationText(title="A phoenix!", body="Your trade is done.")},
            data={"trade": 7},
        ),
    )
    print(f"notified {sent.notified} user")

    terms = playhouse.DropTerms(
        price=playhouse.DropPrice(amount=1999, currency="EUR"),
        per_player=1,
        who=playhouse.DropAudience(owns="season-pass"),
        reservation_ms=300_000,
        admission=playhouse.DropAdmission(batch=50, capacity=500, lifetime_ms=600_000, arrive_within_ms=60_000),
    )
    draft = playhouse.DropRequest(name="summer-skins", resource="skin:summer", stock=1000, terms=terms)
    created = drops.create_drop("summer-skins", draft)
    drop = drops.get_drop(created.drop_id)
    audience = drop.terms.who.owns if drop.terms.who else "nobody"
    print(f"created {drop.name}, {drop.state}, with {drop.stock.available} units for owners of {audience}")


def text(value: bool) -> str:
    return "true" if value else "false"


if __name__ == "__main__":
    main()
