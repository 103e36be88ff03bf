//! What happened to a user, as this service knows it.

use std::time::Duration;

use base::id::Uuid;
use screens::{Step, Subject, Tone};
use service::StatusError;

use crate::event::{SOURCE, key_of_user, user_of_key};
use crate::moderation::{BANNED, ERASED, SESSIONS_ENDED, UNBANNED};
use crate::service::{LINKED, UNLINKED};
use crate::{AccountId, Accounts, AuditRecord, Error, Note, UserId};

const STORE: &str = "sql";
const PART: &str = "account";
/// How close in time a change and its event are.
const SAME_CHANGE: Duration = Duration::from_secs(1);

impl Accounts {
    /// Returns the steps of a user, or of the user, account or event with this id.
    pub(crate) async fn steps(&self, subject: &Subject, limit: u32) -> Result<Vec<Step>, StatusError> {
        match subject {
            Subject::User(user) => Ok(self.steps_of(UserId::from_uuid(*user), limit).await?),
            Subject::Id(text) => {
                let Ok(user) = text.parse::<UserId>() else { return Ok(Vec::new()) };
                let steps = self.steps_of(user, limit).await?;
                if !steps.is_empty() {
                    return Ok(steps);
                }
                if let Some(account) = self.account(AccountId::from_uuid(*user.as_uuid())).await? {
                    let what = format!("Created the account {}", account.name);
                    let step = Step::new(account.created_at, STORE, PART, what);
                    return Ok(vec![step.link("Player", screen_of(account.user))]);
                }
                Ok(self.steps_of_event(*user.as_uuid(), limit).await?)
            }
        }
    }

    /// Returns the changes of a user that an event announces, while the outbox keeps it.
    async fn steps_of_event(&self, id: Uuid, limit: u32) -> Result<Vec<Step>, Error> {
        let event = self.outbox.find_event(id).await?.filter(|event| event.source == SOURCE);
        let Some(event) = event else { return Ok(Vec::new()) };
        let Some(user) = event.key.as_deref().and_then(user_of_key) else { return Ok(Vec::new()) };
        let steps = self.steps_of(user, limit).await?.into_iter();
        let is_cause = |step: &Step| step.at.distance(event.time) < SAME_CHANGE;
        Ok(steps.filter(is_cause).map(|step| Step { follow: Vec::new(), ..step }.of_event(id)).collect())
    }

    /// Returns the newest steps of a user. None if there is no such user.
    async fn steps_of(&self, user: UserId, limit: u32) -> Result<Vec<Step>, Error> {
        let view = match self.user(user).await {
            Err(Error::NotFound(_)) => return Ok(Vec::new()),
            view => view?,
        };
        // The outbox finds the user's events by their ordering key.
        let registered = Step::new(view.created_at, STORE, PART, "Registered").tone(Tone::Good);
        let registered = registered.follow(key_of_user(user));
        let mut steps = vec![registered];
        steps.extend(self.audit(user, limit).await.or_else(none_found)?.into_iter().map(audit_step));
        steps.extend(self.notes(user, limit).await?.into_iter().map(note_step));
        steps.sort_by_key(|step| std::cmp::Reverse(step.at));
        steps.truncate(limit as usize);
        Ok(steps.into_iter().map(|step| step.link("Player", screen_of(user))).collect())
    }
}

fn none_found(error: Error) -> Result<Vec<AuditRecord>, Error> {
    if matches!(error, Error::NotFound(_)) { Ok(Vec::new()) } else { Err(error) }
}

fn audit_step(record: AuditRecord) -> Step {
    let (what, tone) = match record.action.as_str() {
        BANNED => ("Banned", Tone::Bad),
        UNBANNED => ("Unbanned", Tone::Good),
        ERASED => ("Erased", Tone::Bad),
        SESSIONS_ENDED => ("All sessions ended", Tone::Warning),
        LINKED => ("Linked an identity", Tone::Neutral),
        UNLINKED => ("Unlinked an identity", Tone::Neutral),
        other => (other, Tone::Neutral),
    };
    Step::new(record.at, STORE, PART, format!("{what} by {}", record.actor)).tone(tone)
}

fn note_step(note: Note) -> Step {
    Step::new(note.at, STORE, PART, format!("Note by {}: {}", note.author, note.text))
}

/// Returns the path of the user's screen.
pub(crate) fn screen_of(user: UserId) -> String {
    format!("/console/players/{user}")
}
