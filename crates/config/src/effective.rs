//! What is in force.

use std::fmt;

use crate::problem::Origin;

/// What is in force, and where each value came from, as TOML with comments.
#[derive(Debug, Default)]
pub struct Effective(Vec<Group>);

/// One table. TOML allows each only once, so keys that are read apart from each other still stand together.
#[derive(Debug)]
struct Group {
    section: String,
    lines: Vec<Line>,
}

#[derive(Debug)]
struct Line {
    key: String,
    reference_key: String,
    shown: Option<String>,
    origin: Origin,
}

impl Effective {
    /// Every key that is read.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.lines().map(|line| line.key.as_str())
    }

    /// The same keys as the reference has them: with `NAME` where a user named a table.
    pub fn reference_keys(&self) -> impl Iterator<Item = &str> {
        self.lines().map(|line| line.reference_key.as_str())
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.0.iter().flat_map(|group| &group.lines)
    }

    /// Makes a table show even if no key of it is read.
    pub(crate) fn open(&mut self, section: &str) -> usize {
        let at = self.0.iter().position(|group| group.section == section);
        at.unwrap_or_else(|| {
            self.0.push(Group { section: section.to_owned(), lines: Vec::new() });
            self.0.len() - 1
        })
    }

    pub(crate) fn add(&mut self, key: String, reference_key: String, shown: Option<String>, origin: Origin) {
        let section = key.rsplit_once('.').map_or("", |(section, _)| section);
        let at = self.open(section);
        self.0[at].lines.push(Line { key, reference_key, shown, origin });
    }

    /// Sorts the tables by `rank`, which takes the first word of a table's name. Tables of equal rank keep their order.
    pub(crate) fn sort_by_rank(&mut self, rank: impl Fn(&str) -> usize) {
        self.0.sort_by_key(|group| rank(group.section.split('.').next().unwrap_or_default()));
    }
}

impl fmt::Display for Effective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, group) in self.0.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            if !group.section.is_empty() {
                writeln!(f, "[{}]", group.section)?;
            }
            for Line { key, shown, origin, .. } in &group.lines {
                let name = key.rsplit('.').next().unwrap_or(key);
                match shown {
                    Some(value) => writeln!(f, "{:<48} # {origin}", format!("{name} = {value}"))?,
                    None => writeln!(f, "{:<48} # not set", format!("# {name} ="))?,
                }
            }
        }
        Ok(())
    }
}
