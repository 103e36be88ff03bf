//! The text form of pool filters.

use std::time::Duration;

use ::config::{InvalidValue, Setting, Value};

use crate::model::{Bounds, Filter};

impl Setting for Filter {
    fn expected() -> String {
        "a filter such as \"mmr in [1000, 2000)\", \"mode = ranked\", \"mode != ranked\", \"tag beta\", \"waited >= 10s\", \"waited <= 1m\", \
         \"created before now-10s\" or \"created after now-1m\""
            .to_owned()
    }

    fn parse(value: &Value) -> Result<Self, InvalidValue> {
        let text = String::parse(value)?;
        parse_filter(text.trim()).ok_or_else(InvalidValue::default)
    }

    fn show(&self) -> String {
        format!("{:?}", self.to_string())
    }
}

fn parse_filter(text: &str) -> Option<Filter> {
    let duration = |text: &str| Duration::parse(&Value::Text(text.trim().to_owned())).ok();
    if let Some(wait) = text.strip_prefix("waited >=") {
        return duration(wait).map(Filter::MinWait);
    }
    if let Some(wait) = text.strip_prefix("waited <=") {
        return duration(wait).map(Filter::MaxWait);
    }
    // The words of Open Match's pools, relative to now. A ticket created before a moment has waited longer.
    let relative = |rest: &str| duration(rest.trim().strip_prefix("now")?.trim().strip_prefix('-')?);
    if let Some(moment) = text.strip_prefix("created before ") {
        return relative(moment).map(Filter::MinWait);
    }
    if let Some(moment) = text.strip_prefix("created after ") {
        return relative(moment).map(Filter::MaxWait);
    }
    if let Some(tag) = text.strip_prefix("tag ") {
        return Some(Filter::Tag(tag.trim().to_owned()));
    }
    let (field, filter) =
        match text.split_once(" in ").filter(|(_, range)| range.trim().starts_with(['[', '('])) {
            Some((field, range)) => (field, Range::parse(range.trim())?.of(field.trim())),
            None => text_filter(text)?,
        };
    let odd = |c: char| c.is_whitespace() || "<>=!()[],".contains(c);
    (!field.trim().is_empty() && !field.trim().contains(odd)).then_some(filter)
}

fn text_filter(text: &str) -> Option<(&str, Filter)> {
    let (field, value) = text.split_once('=')?;
    let (field, is_other) = match field.strip_suffix('!') {
        Some(field) => (field, true),
        None => (field, false),
    };
    let (field, value) = (field.trim(), value.trim());
    // `==` is not an operator.
    if value.starts_with('=') {
        return None;
    }
    let (field_name, value) = (field.to_owned(), value.to_owned());
    let filter = match is_other {
        true => Filter::OtherText { field: field_name, value },
        false => Filter::Text { field: field_name, value },
    };
    Some((field, filter))
}

struct Range {
    min: f64,
    max: f64,
    bounds: Bounds,
}

impl Range {
    fn parse(text: &str) -> Option<Self> {
        let bounds = match (text.chars().next()?, text.chars().last()?) {
            ('[', ']') => Bounds::Closed,
            ('(', ']') => Bounds::OpenMin,
            ('[', ')') => Bounds::OpenMax,
            ('(', ')') => Bounds::Open,
            _ => return None,
        };
        let (min, max) = text.get(1..text.len() - 1)?.split_once(',')?;
        let number = |text: &str| text.trim().parse::<f64>().ok();
        let (min, max) = (number(min)?, number(max)?);
        // False for NaN.
        (min <= max).then_some(Self { min, max, bounds })
    }

    fn of(self, field: &str) -> Filter {
        Filter::Double { field: field.to_owned(), min: self.min, max: self.max, bounds: self.bounds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_parse_from_their_display_form() {
        for text in [
            "mmr in [1000, 2000)",
            "mmr in (-5, 0.5]",
            "mmr in [1, 1]",
            "mmr in (0, inf)",
            "mode = ranked",
            "mode != ranked",
            "mode = ",
            "tag beta",
            "waited >= 10s",
            "waited <= 1m",
        ] {
            let filter = Filter::parse(&Value::Text(text.to_owned())).unwrap();
            assert_eq!(filter.show(), format!("{text:?}"));
        }
        for (text, same) in
            [("created before now-10s", "waited >= 10s"), ("created after now - 1m", "waited <= 1m")]
        {
            let filter = Filter::parse(&Value::Text(text.to_owned())).unwrap();
            assert_eq!(filter.show(), format!("{same:?}"));
        }
        for bad in [
            "",
            "mmr",
            "mmr in 1, 2",
            "mmr in [1]",
            "mmr in [a, 2]",
            "mmr in [nan, 2]",
            "mode !== ranked",
            "!= ranked",
            "waited >= soon",
            "created before 10s",
            "created after now+1s",
        ] {
            assert!(Filter::parse(&Value::Text(bad.to_owned())).is_err(), "{bad:?}");
        }
    }
}
