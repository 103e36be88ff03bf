//! How the console offers the routes of notifications.

use screens::{FieldKind, FormField, Operation};

use crate::dead_letters::DEAD_LETTER_KINDS;

const KIND: FormField =
    FormField::query("kind", "Kind", FieldKind::OneOf(&DEAD_LETTER_KINDS)).optional().hint("Empty: any kind");
const DESTINATION: FormField =
    FormField::query("destination", "Destination", FieldKind::Text).optional().hint("webhook:NAME");
const USER: FormField = FormField::query("user", "User", FieldKind::Text).optional().hint("The id of a user");
const CAUSE: FormField =
    FormField::query("cause", "Cause contains", FieldKind::Text).optional().hint("Empty: any cause");
const SINCE: FormField =
    FormField::query("since", "Given up since", FieldKind::Text).optional().hint("2026-03-01T12:00:00Z");
const RATE: FormField =
    FormField::query("rate", "Per second", FieldKind::Number).optional().hint("Empty: 100 per second");
const EXPECTED: FormField =
    FormField::query("expected", "Number that you saw", FieldKind::HiddenNumber).optional();

pub(super) const REPLAY: Operation = Operation::new(
    "Replay",
    "Delivers these dead letters again, with all their attempts, as a job. An event is taken in again. Newer dead letters are left alone.",
    "playhouse dlq replay [--kind {kind}] [--destination {destination}] [--user {user}] [--cause {cause}] [--since {since}] \
     [--rate {rate}] [--expected {expected}]",
)
.fields(&[KIND, DESTINATION, USER, CAUSE, SINCE, RATE, EXPECTED]);
pub(super) const DISCARD: Operation = Operation::new(
    "Discard",
    "Deletes these dead letters for good: their content is never delivered. Runs as a job. Newer dead letters are left alone.",
    "playhouse dlq discard --yes [--kind {kind}] [--destination {destination}] [--user {user}] [--cause {cause}] \
     [--since {since}] [--expected {expected}]",
)
.dangerous()
.fields(&[KIND, DESTINATION, USER, CAUSE, SINCE, EXPECTED]);
pub(super) const REPLAY_ONE: Operation = Operation::new(
    "Replay",
    "Delivers this dead letter again, with all its attempts. An event is taken in again.",
    "playhouse dlq replay {letter}",
);
pub(super) const DISCARD_ONE: Operation = Operation::new(
    "Discard",
    "Deletes this dead letter for good: its content is never delivered.",
    "playhouse dlq discard {letter}",
)
.dangerous();
pub(super) const ENABLE: Operation = Operation::new(
    "Enable",
    "Deliveries to this destination are sent again. Those that were given up meanwhile are dead letters: recover them afterwards.",
    "playhouse webhooks enable {name}",
);
pub(super) const TEST: Operation = Operation::new(
    "Send a test message",
    "Sends a signed message of the type \"test\" to the destination now, and shows its response. No delivery changes.",
    "playhouse webhooks test {name}",
);
pub(super) const RECOVER: Operation = Operation::new(
    "Recover",
    "Delivers everything again that was given up for this destination since this time, as a job. The destination may receive a message \
     twice, under the same id.",
    "playhouse webhooks recover {name} --since {since} [--rate {rate}] [--expected {expected}]",
)
.fields(&[
    FormField::query("since", "Given up since", FieldKind::Text).hint("2026-03-01T12:00:00Z"),
    RATE,
    EXPECTED,
]);
pub(super) const SEND: Operation = Operation::new(
    "Send to all players",
    "Every player gets this message in their inbox, and on its channels. You can stop it, but you cannot take back what was sent.",
    "playhouse broadcasts send [--template {template}] [--language {language}] [--title {title}] [--body {body}] [--texts {texts}] \
     [--channels {channels}] [--data {data}] [--expires-at {expires_at}] [--expected {expected}] [--key {key}]",
)
.dangerous()
.fields(&[
    FormField::body("template", "Template", FieldKind::Text).optional().hint("Or a title"),
    FormField::body("language", "Language", FieldKind::Text).optional().hint("Empty: en"),
    FormField::body("title", "Title", FieldKind::Text).optional(),
    FormField::body("body", "Text", FieldKind::LongText).optional(),
    FormField::body("texts", "Texts by language", FieldKind::Json)
        .optional()
        .hint("{\"en\": {\"title\": \"…\", \"body\": \"…\"}, \"ja\": …}"),
    FormField::body("channels", "Channels", FieldKind::Text).optional().hint("Empty: live"),
    FormField::body("data", "Data", FieldKind::Json).optional().hint("JSON for the client and for the template"),
    FormField::body("expires_at", "Expires", FieldKind::Text).optional().hint("2026-03-01T12:00:00Z"),
    FormField::body("expected", "Recipients that you saw", FieldKind::HiddenNumber).optional(),
    FormField::body("key", "Key", FieldKind::Hidden).optional(),
]);
pub(super) const STOP: Operation = Operation::new(
    "Stop",
    "No further player gets it until you resume it. Players who have it keep it.",
    "playhouse broadcasts stop {broadcast}",
);
pub(super) const RESUME: Operation = Operation::new(
    "Resume",
    "Continues after the last player who got it. Nobody gets it twice.",
    "playhouse broadcasts resume {broadcast}",
);
