//! Matches: queues, answers ready checks, and waits for a server.

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Journey, expect};
use crate::api::{Call, GaveUp};
use crate::history::{Ticket, TicketOutcome};

impl Journey<'_> {
    /// Plays the matches of the scenario. Returns the tickets with an outcome, and why there is none for the last.
    pub(super) async fn play(&self) -> (Vec<Ticket>, Option<GaveUp>) {
        let mut tickets: Vec<Ticket> = Vec::new();
        let Some(queue) = self.player.world.queue.as_ref().filter(|_| self.player.plan.plays) else {
            return (tickets, None);
        };
        for _ in 0..self.player.world.scenario.matchmaking.matches {
            self.think().await;
            match self.find_match(queue, tickets.last()).await {
                Ok(ticket) => tickets.push(ticket),
                Err(why) => return (tickets, Some(why)),
            }
        }
        (tickets, None)
    }

    async fn find_match(&self, queue: &str, previous: Option<&Ticket>) -> Result<Ticket, GaveUp> {
        let mut body = json!({ "queue": queue });
        if let Some(Ticket { ticket_id, outcome: TicketOutcome::Assigned { .. } }) = previous {
            body["replaces"] = json!(ticket_id);
        }
        let mut changes = self.player.events.changes.subscribe();
        let absences = self.absences();
        let mut ticket =
            expect(self.call(&Call::post("ticket", "/v1/matchmaking/tickets").json(&body)).await?)?;
        let ticket_id = ticket["ticket_id"].as_str().unwrap_or_default().to_owned();
        let path = format!("/v1/matchmaking/tickets/{ticket_id}");
        let ended = |outcome| Ok(Ticket { ticket_id: ticket_id.clone(), outcome });
        let declines = self.player.plan.declines && previous.is_none();
        let gives_up = Instant::now() + self.player.world.scenario.matchmaking.patience;
        let (mut has_accepted, mut has_missed) = (false, false);
        loop {
            if let Some(connection) = ticket["assignment"]["connection"].as_str() {
                self.player.world.api.meter.count(|counts| counts.matched += 1);
                return ended(TicketOutcome::Assigned { connection: connection.to_owned() });
            }
            if ticket["state"] == "GONE" {
                let is_for_no_answer = matches!(ticket["reason"].as_str(), None | Some("no-answer"));
                if is_for_no_answer && (has_missed || self.absences() > absences) {
                    return ended(TicketOutcome::Missed);
                }
                let why = match ticket["reason"].as_str() {
                    Some("no-answer") if has_accepted => "for no answer, and the player has accepted",
                    Some("no-answer") => "for no answer, and the player was not asked",
                    _ => "and the player did not cancel it",
                };
                return Err(GaveUp(format!("{ticket_id} is gone, {why}")));
            }
            if ticket["state"] == "READY_CHECK" && ticket["ready_check"]["answer"].is_null() {
                let answer = if declines { "decline" } else { "accept" };
                match self.answer(&path, answer).await? {
                    Some(_) if declines => return ended(TicketOutcome::Declined),
                    Some(answered) => (ticket, has_accepted) = (answered, true),
                    None => {
                        // It ended before the answer arrived. The ticket says what came of it.
                        has_missed = true;
                        self.wait(&mut changes).await?;
                        ticket = self.state(&ticket_id, &path).await?;
                    }
                }
                continue;
            }
            if Instant::now() >= gives_up {
                let cancelled = self.call(&Call::new("cancel", Method::DELETE, &path)).await?;
                if cancelled.is_success() {
                    return ended(TicketOutcome::Cancelled);
                }
                // It was assigned at the same time.
                ticket = self.state(&ticket_id, &path).await?;
                continue;
            }
            let version = *changes.borrow_and_update();
            self.wait(&mut changes).await?;
            let is_told = *changes.borrow() != version;
            ticket = match self.player.events.ticket(&ticket_id) {
                Some(seen) if is_told => seen,
                _ => self.state(&ticket_id, &path).await?,
            };
        }
    }

    /// Answers a ready check. Returns the body, or none if the check has ended.
    async fn answer(&self, path: &str, answer: &'static str) -> Result<Option<Value>, GaveUp> {
        let answered = self.call(&Call::post(answer, format!("{path}/{answer}"))).await?;
        match answered.cause() {
            _ if answered.is_success() => Ok(Some(answered.body)),
            "no-ready-check" | "not-found" => Ok(None),
            _ => Err(GaveUp(format!("{answer} was answered with {}", answered.describe()))),
        }
    }

    /// Reads a ticket. One that is no longer there is gone; a stream says why.
    async fn state(&self, ticket_id: &str, path: &str) -> Result<Value, GaveUp> {
        let found = self.call(&Call::get("ticket state", path)).await?;
        if found.cause() != "not-found" {
            return expect(found);
        }
        let seen = self.player.events.ticket(ticket_id).filter(|seen| seen["state"] == "GONE");
        Ok(seen.unwrap_or_else(|| json!({ "state": "GONE" })))
    }
}
