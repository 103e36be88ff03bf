//! The gateway, as players, their browsers and the issuer meet it.

mod flows;
mod flows_refresh;
mod flows_sign_in;
