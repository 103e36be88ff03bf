//! Notifications across several processes and real servers, including the failures between them.

mod crashes;
mod duplicates;
mod inbox;
mod long_poll;
mod matches;
mod outages;
mod receiver;
mod resume;
mod setup;
mod slow;
mod stream_client;
mod streams;
mod webhooks;
