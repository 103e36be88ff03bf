package com.example.shop;

import com.example.playhouse.ApiClient;
import com.example.playhouse.ApiException;
import com.example.playhouse.ApiResponse;
import com.example.playhouse.api.DropsApi;
import com.example.playhouse.api.EntitlementsApi;
import com.example.playhouse.api.NotificationsApi;
import com.example.playhouse.api.UsersApi;
import com.example.playhouse.model.Batch;
import com.example.playhouse.model.BatchChange;
import com.example.playhouse.model.ChangeAction;
import com.example.playhouse.model.ChangeResult;
import com.example.playhouse.model.Drop;
import com.example.playhouse.model.DropAdmission;
import com.example.playhouse.model.DropAudience;
import com.example.playhouse.model.DropDetails;
import com.example.playhouse.model.DropPrice;
import com.example.playhouse.model.DropRequest;
import com.example.playhouse.model.DropTerms;
import com.example.playhouse.model.Entitlement;
import com.example.playhouse.model.Grant;
import com.example.playhouse.model.NotificationRequest;
import com.example.playhouse.model.NotificationResult;
import com.example.playhouse.model.NotificationText;
import com.example.playhouse.model.Problem;
import com.example.playhouse.model.Recipients;
import com.example.playhouse.model.SignInRequest;
import com.example.playhouse.model.SignInResult;
import com.example.playhouse.model.User;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.time.ZoneOffset;
import java.util.List;
import java.util.Map;
import java.util.UUID;

/**
 * A shop that uses the service API of Playhouse through a generated client.
 *
 * <p>docs/guides/service-clients.md has the commands that generate the client and run this program.
 */
public final class Shop {
    private static final String ISSUER = "https://id.example.com";

    public static void main(String[] args) throws Exception {
        run(connect(System.getenv("SERVICE_API_URL"), System.getenv("SERVICE_API_TOKEN")));
    }

    private static ApiClient connect(String url, String token) {
        ApiClient client = new ApiClient();
        client.updateBaseUri(url);
        client.setReadTimeout(Duration.ofSeconds(10));
        client.setRequestInterceptor(request -> request.header("Authorization", "Bearer " + token));
        return client;
    }

    private static void run(ApiClient client) throws Exception {
        UsersApi users = new UsersApi(client);
        EntitlementsApi entitlements = new EntitlementsApi(client);
        NotificationsApi notifications = new NotificationsApi(client);
        DropsApi drops = new DropsApi(client);

        // The first sign-in of an identity creates the user with an account.
        SignInResult signedIn =
                users.signIn(new SignInRequest().issuer(ISSUER).subject("ada").displayName("Ada"));
        print("signed in %s, a new user: %b", signedIn.getUser().getDisplayName(), signedIn.getCreated());

        User user = users.findUser(ISSUER, "ada");
        var accounts = users.listAccounts(user.getUserId()).getAccounts();
        UUID account = accounts.get(0).getAccountId();
        print("found %s, %s, with %d account", user.getDisplayName(), user.getState(), accounts.size());

        // The number of the order is the idempotency key: after a timeout, send the same request again.
        OffsetDateTime bought = OffsetDateTime.now(ZoneOffset.UTC).minusMinutes(1);
        Grant grant = new Grant()
                .userId(user.getUserId())
                .accountId(account)
                .resource("skin:dragon")
                .occurredAt(bought);
        for (int attempt = 0; attempt < 2; attempt++) {
            ApiResponse<ChangeResult> response = entitlements.grantEntitlementWithHttpInfo("order-1001", grant);
            ChangeResult result = response.getData();
            boolean replayed = response.getHeaders().containsKey("idempotency-replayed");
            print("granted %s: %s, replayed: %b", result.getEntitlement().getResource(), result.getEffect(), replayed);
        }

        // A key belongs to one request. An error has the problem document of the service API.
        try {
            entitlements.grantEntitlement("order-1001", grant.resource("skin:phoenix"));
        } catch (ApiException error) {
            Problem problem = client.getObjectMapper().readValue(error.getResponseBody(), Problem.class);
            print("refused with %d %s: %s", problem.getStatus(), problem.getType(), problem.getDetail());
        }

        // Both changes are applied, or none of them.
        OffsetDateTime traded = OffsetDateTime.now(ZoneOffset.UTC);
        BatchChange revoke = new BatchChange()
                .action(ChangeAction.REVOKE)
                .userId(user.getUserId())
                .accountId(account)
                .resource("skin:dragon")
                .occurredAt(traded);
        BatchChange exchange = new BatchChange()
                .action(ChangeAction.GRANT)
                .userId(user.getUserId())
                .accountId(account)
                .resource("skin:phoenix")
                .occurredAt(traded);
        entitlements.changeEntitlements("trade-7", new Batch().changes(List.of(revoke, exchange)));

        var owned = entitlements.listEntitlements(user.getUserId(), account, true, null, null);
        for (Entitlement entitlement : owned.getEntitlements()) {
            print("owns %s, version %d", entitlement.getResource(), entitlement.getVersion());
        }

        NotificationText text = new NotificationText().title("A phoenix!").body("Your trade is done.");
        NotificationResult sent = notifications.sendNotification("trade-7-done", new NotificationRequest()
                .to(new Recipients().userId(user.getUserId()))
                .texts(Map.of("en", text))
                .data(Map.of("trade", 7)));
        print("notified %d user", sent.getNotified());

        DropTerms terms = new DropTerms()
                .price(new DropPrice().amount(1999L).currency("EUR"))
                .perPlayer(1)
                .who(new DropAudience().owns("season-pass"))
                .reservationMs(300_000L)
                .admission(new DropAdmission()
                        .batch(50)
                        .capacity(500)
                        .lifetimeMs(600_000L)
                        .arriveWithinMs(60_000L));
        DropRequest draft = new DropRequest().name("summer-skins").resource("skin:summer").stock(1000L).terms(terms);
        Drop created = drops.createDrop("summer-skins", draft);
        DropDetails drop = drops.getDrop(created.getDropId());
        print("created %s, %s, with %d units for owners of %s",
                drop.getName(), drop.getState(), drop.getStock().getAvailable(), drop.getTerms().getWho().getOwns());
    }

    private static void print(String format, Object... values) {
        System.out.printf(format + "%n", values);
    }
}
