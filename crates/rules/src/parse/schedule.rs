//! Relaxations: how a value changes while players wait.

use crate::document::Data;
use crate::fields::Fields;
use crate::model::{Change, Schedule, Step};

/// Reads `relax` into the schedules, which have their first values. `off` is a flag, all others are numbers.
pub(super) fn read<const N: usize>(fields: &Fields<'_>, schedules: &mut [(&'static str, Schedule); N]) {
    let mut last = f64::NEG_INFINITY;
    for item in fields.items("relax") {
        let Some(after) = item.required("after").and(item.number("after")) else { continue };
        if after < 0.0 {
            item.add("after must not be negative");
        }
        if after <= last {
            item.add(format!("after ({after}) must be later than in the item before"));
        }
        last = after;
        let mut has_change = false;
        for (name, schedule) in schedules.iter_mut() {
            let Some(node) = item.get(name) else { continue };
            has_change = true;
            let change = match &node.data {
                Data::Bool(flag) if *name == "off" => Change::Set(f64::from(u8::from(*flag))),
                _ if *name == "off" => {
                    item.add_at(node.position, format!("off: expected true or false, found {}", node.kind()));
                    continue;
                }
                Data::Number(number) => Change::Set(*number),
                Data::Table(_) => {
                    let growth = Fields::open(item.report(), node, format!("{}: {name}", item.path()));
                    for field in ["by", "every", "limit"] {
                        growth.required(field);
                    }
                    let number = |name| growth.number(name).unwrap_or(1.0);
                    let (by, every, limit) = (number("by"), number("every"), number("limit"));
                    if by == 0.0 || every <= 0.0 {
                        growth.add("by must not be 0, and every must be more than 0");
                        continue;
                    }
                    if schedule.base.is_none() && schedule.steps.is_empty() {
                        growth.add(format!("needs a value to grow from: set `{name}` of {}", fields.path()));
                    }
                    growth.finish();
                    Change::Grow { by, every, limit }
                }
                _ => {
                    item.add_at(
                        node.position,
                        format!(
                            "{name}: expected a number, or a table with by, every and limit; found {}",
                            node.kind()
                        ),
                    );
                    continue;
                }
            };
            schedule.steps.push(Step { after, change });
        }
        if !has_change && item.names().all(|name| name == "after") {
            let names: Vec<&str> = schedules.iter().map(|(name, _)| *name).collect();
            item.add(format!("changes nothing: set one of {}", names.join(", ")));
        }
        item.finish();
    }
}
