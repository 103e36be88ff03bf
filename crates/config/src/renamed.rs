//! Keys that had another name in an earlier version.

use crate::document::TEMPLATE;
use crate::layers::env_name;

/// A key that was renamed, as `(old, new)`. `NAME` stands for a table that users name.
pub type RenamedKey = (&'static str, &'static str);

/// Returns the new name of a key of the file or of a flag. Also knows the `KEY_file` form of secrets.
pub(crate) fn new_key(renamed: &[RenamedKey], key: &str) -> Option<String> {
    let pairs = renamed.iter().map(|(old, new)| ((*old).to_owned(), (*new).to_owned()));
    find(pairs, key, "_file")
}

/// Returns the new name of an environment variable.
pub(crate) fn new_variable(renamed: &[RenamedKey], variable: &str) -> Option<String> {
    let pairs = renamed.iter().map(|(old, new)| (env_name(old), env_name(new)));
    find(pairs, variable, "_FILE")
}

fn find(pairs: impl Iterator<Item = (String, String)>, given: &str, file: &str) -> Option<String> {
    let of_file = given.strip_suffix(file);
    pairs.into_iter().find_map(|(old, new)| {
        let renamed = rename(&old, &new, given);
        renamed.or_else(|| Some(format!("{}{file}", rename(&old, &new, of_file?)?)))
    })
}

fn rename(old: &str, new: &str, given: &str) -> Option<String> {
    let Some((before, after)) = old.split_once(TEMPLATE) else {
        return (given == old).then(|| new.to_owned());
    };
    let name = given.strip_prefix(before)?.strip_suffix(after)?;
    let is_name = !name.is_empty() && !name.contains('.');
    is_name.then(|| new.replacen(TEMPLATE, name, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RENAMED: &[RenamedKey] = &[("hot.url", "redis.url"), ("queues.NAME.beside", "queues.NAME.others")];

    #[test]
    fn old_keys_lead_to_new_ones() {
        for (old, new) in [
            ("hot.url", Some("redis.url")),
            ("hot.url_file", Some("redis.url_file")),
            ("hot.urls", None),
            ("queues.duel.beside", Some("queues.duel.others")),
            ("queues.beside", None),
            ("queues.a.b.beside", None),
        ] {
            assert_eq!(new_key(RENAMED, old).as_deref(), new, "{old}");
        }
    }

    #[test]
    fn old_variables_lead_to_new_ones() {
        for (old, new) in [
            ("PLAYHOUSE_HOT_URL", Some("PLAYHOUSE_REDIS_URL")),
            ("PLAYHOUSE_HOT_URL_FILE", Some("PLAYHOUSE_REDIS_URL_FILE")),
            ("PLAYHOUSE_QUEUES_DUEL_BESIDE", Some("PLAYHOUSE_QUEUES_DUEL_OTHERS")),
            ("PLAYHOUSE_QUEUES", None),
        ] {
            assert_eq!(new_variable(RENAMED, old).as_deref(), new, "{old}");
        }
    }
}
