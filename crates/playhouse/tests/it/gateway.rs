//! The gateway, as players, their browsers and the issuer meet it.

mod flows;
mod flows_back_channel;
mod flows_matchmaking;
mod flows_outages;
mod flows_refresh;
mod flows_restart;
mod flows_sign_in;
