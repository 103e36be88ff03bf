//! How the console offers the routes that change something.

use screens::{FieldKind, FormField, Operation};

pub(super) const CREATE: Operation = Operation::new(
    "Create a drop",
    "The drop is created as a draft. Players do not see it until you schedule or open it.",
    "playhouse drops create --name {name} --item {resource} --stock {stock} --price {terms.price.amount} \
     --currency {terms.price.currency} --per-player {terms.per_player} --batch {terms.admission.batch} \
     --capacity {terms.admission.capacity} [--period {terms.admission.period_ms}ms] --lifetime {terms.admission.lifetime_ms}ms \
     --arrive-within {terms.admission.arrive_within_ms}ms --reservation {terms.reservation_ms}ms [--order {terms.order}] \
     [--without-redis {terms.without_redis}] [--when-sold-out {terms.when_sold_out}] [--who {terms.who}] [--lanes {terms.lanes}] \
     [--message {terms.message}]",
)
.fields(&[
    FormField::body("name", "Name", FieldKind::Text).hint("Unique among all drops, such as summer-skins"),
    FormField::body("resource", "Item", FieldKind::Text).hint("What a buyer's account is granted, such as skin:summer"),
    FormField::body("stock", "Units for sale", FieldKind::Number),
    FormField::body("terms.price.amount", "Price", FieldKind::Number)
        .hint("In the smallest unit of the currency: 1999 is 19.99 EUR"),
    FormField::body("terms.price.currency", "Currency", FieldKind::Text).hint("Three capital letters, such as EUR"),
    FormField::body("terms.per_player", "Units per player", FieldKind::Number).hint("At most"),
    FormField::body("terms.admission.batch", "Players per period", FieldKind::Number)
        .hint("How many should arrive per period, such as 50"),
    FormField::body("terms.admission.period_ms", "Period in milliseconds", FieldKind::Number)
        .optional()
        .hint("Empty: 3000"),
    FormField::body("terms.admission.capacity", "Capacity", FieldKind::Number)
        .hint("How many players may be inside at once, such as 500"),
    FormField::body("terms.admission.lifetime_ms", "Length of an admission in milliseconds", FieldKind::Number)
        .hint("Such as 600000, which is 10 minutes"),
    FormField::body("terms.admission.arrive_within_ms", "Time to arrive in milliseconds", FieldKind::Number)
        .hint("An admission that is unused by then ends. Such as 60000"),
    FormField::body("terms.reservation_ms", "Length of a reservation in milliseconds", FieldKind::Number)
        .hint("Such as 300000, which is 5 minutes"),
    ORDER,
    WITHOUT_REDIS,
    WHEN_SOLD_OUT,
    FormField::body("terms.who", "Who may join", FieldKind::Json)
        .optional()
        .hint(r#"Empty: anyone. {"role": "beta"} or {"owns": "season-pass"}"#),
    FormField::body("terms.lanes", "Priority lanes", FieldKind::Json)
        .optional()
        .hint(r#"Entitlements, the best lane first: ["founder"]"#),
    FormField::body("terms.message", "Message to players who wait", FieldKind::LongText).optional(),
]);

const ORDER: FormField = FormField::body(
    "terms.order",
    "Order of players who join before the opening",
    FieldKind::OneOf(&["first_come", "shuffle"]),
)
.optional();
const WITHOUT_REDIS: FormField = FormField::body(
    "terms.without_redis",
    "Admissions while Redis is unreachable",
    FieldKind::OneOf(&["continue", "pause"]),
)
.optional();
const WHEN_SOLD_OUT: FormField = FormField::body(
    "terms.when_sold_out",
    "Once all units are sold",
    FieldKind::OneOf(&["close", "stay_open"]),
)
.optional();

pub(super) const TERMS: Operation = Operation::new(
    "Change the terms",
    "Replaces all terms of the drop: a field that you leave empty gets its default. Order and lanes are fixed once players can join, price and \
     limit once the drop is open.",
    "playhouse drops terms {drop_id} --price {price.amount} --currency {price.currency} --per-player {per_player} \
     --batch {admission.batch} --capacity {admission.capacity} [--period {admission.period_ms}ms] --lifetime {admission.lifetime_ms}ms \
     --arrive-within {admission.arrive_within_ms}ms --reservation {reservation_ms}ms [--order {order}] [--without-redis {without_redis}] \
     [--when-sold-out {when_sold_out}] [--who {who}] [--lanes {lanes}] [--message {message}]",
)
.fields(&[
    FormField::body("price.amount", "Price", FieldKind::Number)
        .hint("In the smallest unit of the currency: 1999 is 19.99 EUR"),
    FormField::body("price.currency", "Currency", FieldKind::Text).hint("Three capital letters, such as EUR"),
    FormField::body("per_player", "Units per player", FieldKind::Number).hint("At most"),
    FormField::body("admission.batch", "Players per period", FieldKind::Number),
    FormField::body("admission.period_ms", "Period in milliseconds", FieldKind::Number).optional().hint("Empty: 3000"),
    FormField::body("admission.capacity", "Capacity", FieldKind::Number).hint("How many players may be inside at once"),
    FormField::body("admission.lifetime_ms", "Length of an admission in milliseconds", FieldKind::Number),
    FormField::body("admission.arrive_within_ms", "Time to arrive in milliseconds", FieldKind::Number)
        .hint("An admission that is unused by then ends"),
    FormField::body("reservation_ms", "Length of a reservation in milliseconds", FieldKind::Number),
    FormField { name: "order", ..ORDER },
    FormField { name: "without_redis", ..WITHOUT_REDIS },
    FormField { name: "when_sold_out", ..WHEN_SOLD_OUT },
    FormField::body("who", "Who may join", FieldKind::Json)
        .optional()
        .hint(r#"Empty: anyone. {"role": "beta"} or {"owns": "season-pass"}"#),
    FormField::body("lanes", "Priority lanes", FieldKind::Json)
        .optional()
        .hint(r#"Entitlements, the best lane first: ["founder"]"#),
    FormField::body("message", "Message to players who wait", FieldKind::LongText).optional(),
]);

pub(super) const SCHEDULE: Operation = Operation::new(
    "Schedule",
    "Players can join from now on. The drop opens and closes on its own at these times.",
    "playhouse drops schedule {drop_id} --opens-at {opens_at} [--closes-at {closes_at}]",
)
.fields(&[
    FormField::body("opens_at", "Opens at", FieldKind::Text).hint("Such as 2026-12-01T18:00:00Z"),
    FormField::body("closes_at", "Closes at", FieldKind::Text)
        .optional()
        .hint("Empty: it stays open until you close it"),
]);

pub(super) const OPEN: Operation = Operation::new(
    "Open now",
    "Players are admitted and can buy. The seed of the shuffle becomes public. A drop opens only once.",
    "playhouse drops open {drop_id}",
);

pub(super) const PAUSE: Operation = Operation::new(
    "Pause",
    "No player is admitted and nobody can reserve until you resume it. Players keep their places, more can join, and reserved units can still \
     be paid for.",
    "playhouse drops pause {drop_id}",
);

pub(super) const RESUME: Operation = Operation::new(
    "Resume",
    "Admissions and reservations continue where they stopped.",
    "playhouse drops resume {drop_id}",
);

const FORCE: &[FormField] = &[FormField::body("force", "Even while units are reserved", FieldKind::Flag)
    .hint("Reserved units can be paid for until their reservation ends")];

pub(super) const CLOSE: Operation = Operation::new(
    "Close",
    "Ends the drop for good. Players who wait lose their places and are notified. Refused while units are reserved, unless forced.",
    "playhouse drops close {drop_id} [--force={force}]",
)
.dangerous()
.fields(FORCE);

pub(super) const CANCEL: Operation = Operation::new(
    "Cancel",
    "Calls the drop off for good. Players who wait lose their places and are notified. Units that are sold stay sold. Refused while units are \
     reserved, unless forced.",
    "playhouse drops cancel {drop_id} [--force={force}]",
)
.dangerous()
.fields(FORCE);

pub(super) const EVERYONE_WAITS: Operation = Operation::new(
    "Everyone waits",
    "While it is on, no player is admitted. Players inside stay and can buy, and everybody keeps their place.",
    "playhouse drops everyone-waits {drop_id} {on}",
)
.fields(&[FormField::body("on", "Everyone waits", FieldKind::Json).hint("true: nobody is admitted. false: players are admitted again")]);

pub(super) const MESSAGE: Operation = Operation::new(
    "Change the message",
    "Players who wait see it at once.",
    "playhouse drops message {drop_id} [{message}]",
)
.fields(&[FormField::body("message", "Message", FieldKind::LongText)
    .optional()
    .hint("At most 1,000 characters. Empty: removes the message; the command needs --clear for that")]);

pub(super) const PACE: Operation = Operation::new(
    "Change the pace",
    "Applies from the next admission cycle on. With a capacity below the number of players inside, nobody is admitted until enough have left.",
    "playhouse drops pace {drop_id} [--batch {batch}] [--period {period_ms}ms] [--capacity {capacity}]",
)
.fields(&[
    FormField::body("batch", "Players per period", FieldKind::Number).optional().hint("Empty: as it is"),
    FormField::body("period_ms", "Period in milliseconds", FieldKind::Number).optional().hint("Empty: as it is"),
    FormField::body("capacity", "Capacity", FieldKind::Number).optional().hint("Empty: as it is"),
]);

pub(super) const ADJUST: Operation = Operation::new(
    "Adjust the stock",
    "Adds units, or removes available ones. Reserved and sold units are never removed. The ledger names you and the reason.",
    "playhouse drops stock {drop_id} --by {by} --reason {reason}",
)
.fields(&[
    FormField::body("by", "Units", FieldKind::Number).hint("How many to add; negative to remove, such as -10"),
    FormField::body("reason", "Reason", FieldKind::Text).hint("For the ledger, such as damaged"),
]);

pub(super) const REBUILD: Operation = Operation::new(
    "Rebuild the line",
    "Fills the line in Redis from the database again. No player loses a place; positions are unknown meanwhile.",
    "playhouse drops rebuild {drop_id}",
);

pub(super) const SETTLE: Operation = Operation::new(
    "Mark as refunded",
    "Records that you refunded this payment at the provider. It sends no money. A refunded order stays refunded.",
    "playhouse drops settle {order_id} --payment {payment_id}",
)
.fields(&[FormField::body("payment_id", "Payment", FieldKind::Text).hint("The provider's id of the payment that you refunded")]);
