//! The one door for game clients and web pages.
