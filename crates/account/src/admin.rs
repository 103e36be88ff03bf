//! The admin API of users: `/users`.

use axum::Json;
use axum::http::header::{CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::IntoResponse;
use base::Code;
use http_server::{JsonBody, Problem, Query};
use screens::{FieldKind, FormField, Operation, Step, Subject};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use service::{Open, Operator, OperatorRoute};

use crate::console::PlayerConsole;
use crate::http::{AccountsAnswer, AuditAnswer, BanRequest, UserAnswer, UserPath, problem};
use crate::{Accounts, Error, LinkedIdentity, Note, UserId};

/// The default number of listed users.
const DEFAULT_LIMIT: u32 = 100;
const MAX_LIMIT: u32 = 1_000;
/// How many audit records are shown with a user.
const AUDIT_LIMIT: u32 = 20;

/// How many notes are shown with a user.
const NOTE_LIMIT: u32 = 20;

const ADD_NOTE: Operation = Operation::new(
    "Add note",
    "Other operators see the note with the player. It is removed when the player is erased.",
    "playhouse users note {user_id} {note}",
)
.fields(&[FormField::body("note", "Note", FieldKind::LongText).hint("What other operators should know")]);

const END_SESSIONS: Operation = Operation::new(
    "End sessions",
    "The player must sign in again in every browser. Access tokens of the issuer stay valid: revoke them there.",
    "playhouse users end-sessions {user_id}",
);

const BAN: Operation = Operation::new(
    "Ban",
    "All sessions of the player end, and sign-ins are refused until you unban the player. Nothing that the player owns is lost.",
    "playhouse users ban {user_id} --reason {reason}",
)
.fields(&[FormField::body("reason", "Reason", FieldKind::Text).hint("The player sees it at every sign-in")]);

const UNBAN: Operation = Operation::new(
    "Unban",
    "The player may sign in again. Sessions that the ban ended stay ended.",
    "playhouse users unban {user_id}",
);

const ERASE: Operation = Operation::new(
    "Erase",
    "Removes all personal data of the player permanently: name, identities, accounts, notes, notifications and sessions. Revokes \
     everything that the player owns. This cannot be undone.",
    "playhouse users erase {user_id} --yes",
)
.dangerous();

/// Returns the routes below `/users`, and the download of the export for the console.
pub(crate) fn operator_routes() -> Vec<OperatorRoute> {
    vec![
        OperatorRoute::get("/users", find),
        OperatorRoute::get("/users/{user_id}", show),
        OperatorRoute::get("/users/{user_id}/export", export),
        OperatorRoute::page("/console/players/{user_id}/export", download),
        OperatorRoute::post("/users/{user_id}/notes", add_note).operation(ADD_NOTE),
        OperatorRoute::post("/users/{user_id}/end-sessions", end_sessions).operation(END_SESSIONS),
        OperatorRoute::post("/users/{user_id}/ban", ban).operation(BAN),
        OperatorRoute::post("/users/{user_id}/unban", unban).operation(UNBAN),
        OperatorRoute::post("/users/{user_id}/erase", erase).operation(ERASE),
    ]
}

#[derive(Deserialize)]
struct FindQuery {
    /// A user's id, the id of an account, a subject or a display name.
    find: Option<String>,
    /// The `next` of the previous page.
    after: Option<String>,
    limit: Option<u32>,
}

#[derive(Serialize)]
struct UserPage {
    users: Vec<UserAnswer>,
    /// The `after` of the next page, if there is one.
    next: Option<String>,
}

/// A user with identities, accounts and the newest audit records.
#[derive(Serialize)]
struct UserDetails {
    #[serde(flatten)]
    user: UserAnswer,
    identities: Vec<IdentityAnswer>,
    #[serde(flatten)]
    accounts: AccountsAnswer,
    notes: Vec<NoteAnswer>,
    audit: AuditAnswer,
}

#[derive(Serialize)]
struct NoteAnswer {
    at: String,
    author: String,
    note: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NoteRequest {
    note: String,
}

impl From<Note> for NoteAnswer {
    fn from(note: Note) -> Self {
        Self { at: note.at.to_rfc3339(), author: note.author, note: note.text }
    }
}

impl From<LinkedIdentity> for IdentityAnswer {
    fn from(identity: LinkedIdentity) -> Self {
        let LinkedIdentity { issuer, subject, linked_at } = identity;
        Self { issuer, subject, linked_at: linked_at.to_rfc3339() }
    }
}

#[derive(Serialize)]
struct IdentityAnswer {
    issuer: String,
    subject: String,
    linked_at: String,
}

async fn find(
    Open(accounts): Open<Accounts>,
    Query(query): Query<FindQuery>,
) -> Result<Json<UserPage>, Problem> {
    let text = query.find.as_deref().map(str::trim).filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| {
        invalid("Set find to a user id, an account id, a subject of the issuer, or a display name.")
    })?;
    let after = query.after.as_deref().map(|after| {
        after.parse::<UserId>().map_err(|_| invalid("after must be the `next` of an earlier response."))
    });
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT).clamp(1, MAX_LIMIT);
    let users = accounts.search(text, after.transpose()?, limit).await.map_err(problem)?;
    let next = users.last().filter(|_| users.len() as u32 == limit).map(|last| last.id.to_string());
    Ok(Json(UserPage { users: users.into_iter().map(Into::into).collect(), next }))
}

async fn show(
    Open(accounts): Open<Accounts>,
    UserPath(user): UserPath,
) -> Result<Json<UserDetails>, Problem> {
    Ok(Json(details(&accounts, user, NOTE_LIMIT, AUDIT_LIMIT).await?))
}

async fn details(accounts: &Accounts, user: UserId, notes: u32, audit: u32) -> Result<UserDetails, Problem> {
    let view = accounts.user(user).await.map_err(problem)?;
    let identities = accounts.identities(user).await.map_err(problem)?;
    let audit = match accounts.audit(user, audit).await {
        Err(Error::NotFound(_)) => Vec::new(),
        records => records.map_err(problem)?,
    };
    Ok(UserDetails {
        user: view.into(),
        identities: identities.into_iter().map(Into::into).collect(),
        accounts: accounts.accounts(user).await.map_err(problem)?.into(),
        notes: accounts.notes(user, notes).await.map_err(problem)?.into_iter().map(Into::into).collect(),
        audit: audit.into(),
    })
}

async fn export(
    Open(console): Open<PlayerConsole>,
    UserPath(user): UserPath,
) -> Result<Json<Value>, Problem> {
    Ok(Json(console.export(user).await?))
}

/// Answers the export as a file, for browsers.
async fn download(
    Open(console): Open<PlayerConsole>,
    UserPath(user): UserPath,
) -> Result<impl IntoResponse, Problem> {
    let export = console.export(user).await?;
    let name = format!("attachment; filename=\"player-{user}.json\"");
    // It is personal data: no browser or proxy keeps it.
    Ok((
        [
            (CONTENT_TYPE, "application/json".to_owned()),
            (CONTENT_DISPOSITION, name),
            (CACHE_CONTROL, "no-store".to_owned()),
        ],
        format!("{export:#}\n"),
    ))
}

impl PlayerConsole {
    /// Returns everything that the services know about a user. Fails if a service cannot read its data: an export is complete.
    async fn export(&self, user: UserId) -> Result<Value, Problem> {
        let details = details(&self.accounts, user, MAX_LIMIT, MAX_LIMIT).await?;
        let encode = |error: serde_json::Error| problem(error.into());
        let mut export = serde_json::to_value(details).map_err(encode)?;
        for data in self.services.player_data() {
            export[data.name] = data.export(self.provided.clone(), *user.as_uuid()).await?;
        }
        let subject = Subject::User(*user.as_uuid());
        let (steps, failed) = self.services.steps(&self.provided, &subject, MAX_LIMIT).await;
        if !failed.is_empty() {
            let detail = format!("These parts do not answer: {}. Try again.", failed.join(", "));
            return Err(Problem::new(Code::Unavailable).detail(detail));
        }
        let step = |step: Step| json!({ "at": step.at.to_rfc3339(), "part": step.part, "what": step.what });
        export["timeline"] = steps.into_iter().map(step).collect();
        Ok(export)
    }
}

async fn add_note(
    operator: Operator,
    Open(accounts): Open<Accounts>,
    UserPath(user): UserPath,
    JsonBody(request): JsonBody<NoteRequest>,
) -> Result<Json<UserAnswer>, Problem> {
    accounts.add_note(user, &request.note, &actor(&operator)).await.map_err(problem)?;
    answer(&accounts, user).await
}

async fn end_sessions(
    operator: Operator,
    Open(accounts): Open<Accounts>,
    UserPath(user): UserPath,
) -> Result<Json<UserAnswer>, Problem> {
    accounts.end_sessions(user, &actor(&operator)).await.map_err(problem)?;
    answer(&accounts, user).await
}

async fn ban(
    operator: Operator,
    Open(accounts): Open<Accounts>,
    UserPath(user): UserPath,
    JsonBody(request): JsonBody<BanRequest>,
) -> Result<Json<UserAnswer>, Problem> {
    accounts.ban(user, &request.reason, &actor(&operator)).await.map_err(problem)?;
    answer(&accounts, user).await
}

async fn unban(
    operator: Operator,
    Open(accounts): Open<Accounts>,
    UserPath(user): UserPath,
) -> Result<Json<UserAnswer>, Problem> {
    accounts.unban(user, &actor(&operator)).await.map_err(problem)?;
    answer(&accounts, user).await
}

async fn erase(
    operator: Operator,
    Open(accounts): Open<Accounts>,
    UserPath(user): UserPath,
) -> Result<Json<UserAnswer>, Problem> {
    accounts.erase(user, &actor(&operator)).await.map_err(problem)?;
    answer(&accounts, user).await
}

/// Returns the user after a change.
async fn answer(accounts: &Accounts, user: UserId) -> Result<Json<UserAnswer>, Problem> {
    Ok(Json(accounts.user(user).await.map_err(problem)?.into()))
}

/// Returns the name under which the operator is recorded.
fn actor(operator: &Operator) -> String {
    format!("operator/{}", operator.name)
}

fn invalid(detail: &str) -> Problem {
    Problem::new(Code::InvalidArgument).detail(detail)
}
