//! Settings of parties.

use std::time::Duration;

use ::config::{Reader, Section};

use crate::parties::PartyConfig;

impl Section for PartyConfig {
    fn read(reader: &mut Reader<'_>) -> Self {
        let (minute, day) = (Duration::from_secs(60), Duration::from_secs(86_400));
        Self {
            ttl: reader.get_within("ttl", minute..=day * 7),
            max_members: reader.get_within("max_members", 2..=100) as usize,
            invitation_ttl: reader.get_within("invitation_ttl", Duration::from_secs(1)..=day),
        }
    }
}
