//! Notifications as players, services and operators meet them: several processes, real servers, and all that goes wrong between them.

mod crashes;
mod duplicates;
mod inbox;
mod matches;
mod outages;
mod receiver;
mod resume;
mod slow;
mod stage;
mod streams;
mod tape;
mod webhooks;
