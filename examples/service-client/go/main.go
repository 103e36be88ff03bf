// A shop that uses the service API of Playhouse through a generated client.
//
// docs/guides/service-clients.md has the commands that generate the client and run this program.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"example.com/shop/playhouse"
)

const issuer = "https://id.example.com"

func main() {
	client := connect(os.Getenv("SERVICE_API_URL"), os.Getenv("SERVICE_API_TOKEN"))
	if err := run(context.Background(), client); err != nil {
		log.Fatal(err)
	}
}

func connect(url, token string) *playhouse.APIClient {
	config := playhouse.NewConfiguration()
	config.Servers = playhouse.ServerConfigurations{{URL: url}}
	config.AddDefaultHeader("Authorization", "Bearer "+token)
	config.HTTPClient = &http.Client{Timeout: 10 * time.Second}
	return playhouse.NewAPIClient(config)
}

func run(ctx context.Context, client *playhouse.APIClient) error {
	// The first sign-in of an identity creates the user with an account.
	name := "Ada"
	signIn := playhouse.SignInRequest{Issuer: issuer, Subject: "ada", DisplayName: &name}
	signedIn, _, err := client.UsersAPI.SignIn(ctx).SignInRequest(signIn).Execute()
	if err != nil {
		return err
	}
	fmt.Printf("signed in %s, a new user: %t\n", signedIn.User.GetDisplayName(), signedIn.Created)

	user, _, err := client.UsersAPI.FindUser(ctx).Issuer(issuer).Subject("ada").Execute()
	if err != nil {
		return err
	}
	accounts, _, err := client.UsersAPI.ListAccounts(ctx, user.UserId).Execute()
	if err != nil {
		return err
	}
	account := accounts.Accounts[0].AccountId
	fmt.Printf("found %s, %s, with %d account\n", user.GetDisplayName(), user.State, len(accounts.Accounts))

	// The number of the order is the idempotency key: after a timeout, send the same request again.
	bought := time.Now().Add(-time.Minute)
	grant := playhouse.Grant{UserId: user.UserId, AccountId: account, Resource: "skin:dragon", OccurredAt: bought}
	for range 2 {
		result, response, err := client.EntitlementsAPI.GrantEntitlement(ctx).IdempotencyKey("order-1001").Grant(grant).Execute()
		if err != nil {
			return err
		}
		replayed := response.Header.Get("Idempotency-Replayed") == "true"
		fmt.Printf("granted %s: %s, replayed: %t\n", result.Entitlement.Resource, result.Effect, replayed)
	}

	// A key belongs to one request. An error has the problem document of the service API.
	grant.Resource = "skin:phoenix"
	_, _, err = client.EntitlementsAPI.GrantEntitlement(ctx).IdempotencyKey("order-1001").Grant(grant).Execute()
	problem, ok := problemOf(err)
	if !ok {
		return fmt.Errorf("expected a problem, not %v", err)
	}
	fmt.Printf("refused with %d %s: %s\n", problem.Status, problem.Type, problem.GetDetail())

	// Both changes are applied, or none of them.
	trade := func(action playhouse.ChangeAction, resource string) playhouse.BatchChange {
		return playhouse.BatchChange{
			Action: action, UserId: user.UserId, AccountId: account, Resource: resource, OccurredAt: time.Now(),
		}
	}
	batch := playhouse.Batch{Changes: []playhouse.BatchChange{
		trade(playhouse.CHANGEACTION_REVOKE, "skin:dragon"),
		trade(playhouse.CHANGEACTION_GRANT, "skin:phoenix"),
	}}
	if _, _, err = client.EntitlementsAPI.ChangeEntitlements(ctx).IdempotencyKey("trade-7").Batch(batch).Execute(); err != nil {
		return err
	}

	owned, _, err := client.EntitlementsAPI.ListEntitlements(ctx, user.UserId, account).InForce(true).Execute()
	if err != nil {
		return err
	}
	for _, entitlement := range owned.Entitlements {
		fmt.Printf("owns %s, version %d\n", entitlement.Resource, entitlement.Version)
	}

	body := "Your trade is done."
	notification := playhouse.NotificationRequest{
		To:    playhouse.Recipients{UserId: &user.UserId},
		Texts: map[string]playhouse.NotificationText{"en": {Title: "A phoenix!", Body: &body}},
		Data:  map[string]any{"trade": 7},
	}
	sent, _, err := client.NotificationsAPI.SendNotification(ctx).IdempotencyKey("trade-7-done").NotificationRequest(notification).Execute()
	if err != nil {
		return err
	}
	fmt.Printf("notified %d user\n", sent.GetNotified())

	pass := "season-pass"
	draft := playhouse.DropRequest{
		Name: "summer-skins", Resource: "skin:summer", Stock: 1000,
		Terms: playhouse.DropTerms{
			Price:         playhouse.DropPrice{Amount: 1999, Currency: "EUR"},
			PerPlayer:     1,
			Who:           &playhouse.DropAudience{Owns: &pass},
			ReservationMs: 300_000,
			Admission:     playhouse.DropAdmission{Batch: 50, Capacity: 500, LifetimeMs: 600_000, ArriveWithinMs: 60_000},
		},
	}
	created, _, err := client.DropsAPI.CreateDrop(ctx).IdempotencyKey("summer-skins").DropRequest(draft).Execute()
	if err != nil {
		return err
	}
	drop, _, err := client.DropsAPI.GetDrop(ctx, created.DropId).Execute()
	if err != nil {
		return err
	}
	fmt.Printf("created %s, %s, with %d units for owners of %s\n",
		drop.Name, drop.State, drop.Stock.Available, drop.Terms.Who.GetOwns())
	return nil
}

// problemOf returns the problem document of an error, if the service API answered with one.
func problemOf(err error) (playhouse.Problem, bool) {
	var failed *playhouse.GenericOpenAPIError
	if !errors.As(err, &failed) {
		return playhouse.Problem{}, false
	}
	problem, ok := failed.Model().(playhouse.Problem)
	return problem, ok
}
