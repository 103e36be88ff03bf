//! One rule of a rule set.

use std::sync::Arc;

use super::{find_attribute, schedule, statement};
use crate::document::{Data, Node};
use crate::expression::{Expression, Kind, Shape};
use crate::fields::Fields;
use crate::model::{
    Age, AttributeKind, CollectionOperation, LatencyReference, MapKey, Operator, Party, Reference, Rule,
    RuleKind, RuleSet, Schedule, Scope, SortBy,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Type {
    Comparison,
    Distance,
    BatchDistance,
    Collection,
    Latency,
    AbsoluteSort,
    DistanceSort,
    Compound,
    Total,
    PremadeSimilarity,
    BlockList,
}

const TYPES: &[(&str, Type)] = &[
    ("comparison", Type::Comparison),
    ("distance", Type::Distance),
    ("batch-distance", Type::BatchDistance),
    ("collection", Type::Collection),
    ("latency", Type::Latency),
    ("absolute-sort", Type::AbsoluteSort),
    ("distance-sort", Type::DistanceSort),
    ("compound", Type::Compound),
    ("total", Type::Total),
    ("premade-similarity", Type::PremadeSimilarity),
    ("block-list", Type::BlockList),
];

pub(super) fn read_all(fields: &Fields<'_>, rules: &mut RuleSet) {
    for (name, rule) in fields.tables("rules") {
        super::check_name(&rule, name);
        if let Some(rule) = read(name, &rule, rules) {
            if let RuleKind::Compound { statement } = &rule.kind {
                let mut parts = Vec::new();
                statement::rules_of(statement, &mut parts);
                parts.iter().for_each(|part| rules.rules[*part].is_part = true);
            }
            rules.rules.push(rule);
        }
    }
}

fn read(name: &str, fields: &Fields<'_>, rules: &RuleSet) -> Option<Rule> {
    fields.required("type")?;
    let type_ = fields.choice("type", TYPES)?;
    let mut reference_number = None;
    let kind = read_kind(type_, fields, rules, &mut reference_number);
    let first = |name: &'static str| (name, fields.number(name).map(Schedule::fixed).unwrap_or_default());
    let nothing = |name: &'static str| (name, Schedule::default());
    let off = ("off", Schedule::fixed(if fields.flag("off").unwrap_or(false) { 1.0 } else { 0.0 }));
    let reference = ("reference", reference_number.map(Schedule::fixed).unwrap_or_default());
    let age = fields.choice("age", Age::WORDS).unwrap_or_default();
    let party = read_party(type_, fields);
    // Each type reads the limits that it has, so that `finish` finds the others.
    let [min, max, max_distance, reference, off] = match type_ {
        Type::Comparison => {
            let mut all = [reference, off];
            schedule::read(fields, &mut all);
            let [(_, reference), (_, off)] = all;
            [Schedule::default(), Schedule::default(), Schedule::default(), reference, off]
        }
        Type::Latency => {
            let mut all = [first("max"), first("max_distance"), off];
            schedule::read(fields, &mut all);
            let [(_, max), (_, max_distance), (_, off)] = all;
            if max.is_absent() && max_distance.is_absent() {
                fields.add("`max` or `max_distance` is required");
            }
            [Schedule::default(), max, max_distance, Schedule::default(), off]
        }
        Type::Distance | Type::Collection => {
            let mut all = [first("min"), first("max"), reference, off];
            schedule::read(fields, &mut all);
            let [(_, min), (_, max), (_, reference), (_, off)] = all;
            [min, max, Schedule::default(), reference, off]
        }
        Type::Total => {
            let mut all = [first("min"), first("max"), off];
            schedule::read(fields, &mut all);
            let [(_, min), (_, max), (_, off)] = all;
            [min, max, Schedule::default(), Schedule::default(), off]
        }
        Type::BatchDistance | Type::PremadeSimilarity => {
            let mut all = [first("max"), off];
            schedule::read(fields, &mut all);
            let [(_, max), (_, off)] = all;
            [Schedule::default(), max, Schedule::default(), Schedule::default(), off]
        }
        Type::AbsoluteSort | Type::DistanceSort | Type::Compound | Type::BlockList => {
            let mut all = [nothing("off")];
            if type_ == Type::BlockList {
                all = [off];
                schedule::read(fields, &mut all);
            }
            let [(_, off)] = all;
            [Schedule::default(), Schedule::default(), Schedule::default(), Schedule::default(), off]
        }
    };
    check_limits(type_, fields, &min, &max, kind.as_ref(), rules);
    fields.finish();
    let position = fields.position();
    Some(Rule {
        name: name.into(),
        kind: kind?,
        party,
        age,
        min,
        max,
        max_distance,
        reference,
        off,
        is_part: false,
        position,
    })
}

fn read_party(type_: Type, fields: &Fields<'_>) -> Party {
    const NUMBERS: &[(&str, Party)] =
        &[("each", Party::Each), ("avg", Party::Average), ("min", Party::Min), ("max", Party::Max)];
    const LISTS: &[(&str, Party)] =
        &[("each", Party::Each), ("union", Party::Union), ("intersection", Party::Intersection)];
    match type_ {
        Type::Comparison | Type::Distance | Type::BatchDistance | Type::AbsoluteSort | Type::DistanceSort => {
            fields.choice("party", NUMBERS).unwrap_or(Party::Average)
        }
        Type::Collection => fields.choice("party", LISTS).unwrap_or(Party::Each),
        _ => Party::Each,
    }
}

fn check_limits(
    type_: Type,
    fields: &Fields<'_>,
    min: &Schedule,
    max: &Schedule,
    kind: Option<&RuleKind>,
    rules: &RuleSet,
) {
    if matches!(type_, Type::Distance | Type::Collection | Type::Total) && min.is_absent() && max.is_absent()
    {
        fields.add("`min` or `max` is required");
    }
    let is_text = matches!(kind, Some(RuleKind::BatchDistance { attribute }) if rules.attributes[*attribute].kind == AttributeKind::Text);
    if matches!(type_, Type::BatchDistance | Type::PremadeSimilarity) && max.is_absent() && !is_text {
        fields.add("`max` is required");
    }
    if let (Some(min), Some(max)) = (min.base, max.base)
        && min > max
    {
        fields.add(format!("min ({min}) is larger than max ({max})"));
    }
}

fn read_kind(
    type_: Type,
    fields: &Fields<'_>,
    rules: &RuleSet,
    reference_number: &mut Option<f64>,
) -> Option<RuleKind> {
    let attribute = |kinds: &[AttributeKind]| {
        fields.required("attribute")?;
        find_attribute(fields, rules, "attribute", fields.text("attribute")?, kinds)
    };
    Some(match type_ {
        Type::Comparison => {
            let measurements = expressions(fields, rules, "measurements")?;
            fields.required("operation")?;
            let operator = fields.choice("operation", Operator::WORDS);
            let reference =
                fields.get("reference").map(|node| reference(fields, rules, node, reference_number));
            let operator = operator?;
            match &reference {
                None if !matches!(operator, Operator::Equal | Operator::NotEqual) => {
                    fields.add(format!(
                        "without a reference only = and != are possible, found {}",
                        operator.word()
                    ));
                }
                Some(Some(Reference::Texts(_)))
                    if !matches!(operator, Operator::Equal | Operator::NotEqual) =>
                {
                    fields
                        .add(format!("texts can only be compared with = and !=, found {}", operator.word()));
                }
                _ => {}
            }
            let reference = match reference {
                None => None,
                Some(reference) => Some(reference?),
            };
            check_kinds(fields, &measurements, reference.as_ref());
            RuleKind::Comparison { measurements, operator, reference }
        }
        Type::Distance => {
            let measurements = expressions(fields, rules, "measurements")?;
            for measurement in
                measurements.iter().filter(|measurement| measurement.shape.kind != Kind::Number)
            {
                fields.add(format!("measurements: {measurement} does not yield numbers"));
            }
            let reference = reference(fields, rules, fields.required("reference")?, reference_number)?;
            check_kinds(fields, &measurements, Some(&reference));
            RuleKind::Distance { measurements, reference }
        }
        Type::BatchDistance => {
            RuleKind::BatchDistance { attribute: attribute(&[AttributeKind::Number, AttributeKind::Text])? }
        }
        Type::Collection => {
            let measurements = expressions(fields, rules, "measurements")?;
            for measurement in
                measurements.iter().filter(|found| found.shape.kind != Kind::Text || found.shape.depth == 0)
            {
                fields.add(format!("measurements: {measurement} does not yield lists of texts"));
            }
            const WORDS: &[(&str, CollectionOperation)] = &[
                ("intersection", CollectionOperation::Intersection),
                ("contains", CollectionOperation::Contains),
                ("reference_intersection_count", CollectionOperation::ReferenceIntersectionCount),
            ];
            fields.required("operation")?;
            let operation = fields.choice("operation", WORDS);
            let reference =
                fields.get("reference").map(|node| reference(fields, rules, node, reference_number));
            let operation = operation?;
            let needs = operation != CollectionOperation::Intersection;
            if needs && reference.is_none() {
                fields.add("`reference` is required");
                return None;
            }
            let reference = match reference {
                None => None,
                Some(reference) => Some(reference?),
            };
            check_kinds(fields, &measurements, reference.as_ref());
            RuleKind::Collection { measurements, operation, reference }
        }
        Type::Latency => {
            const WORDS: &[(&str, LatencyReference)] =
                &[("min", LatencyReference::Min), ("avg", LatencyReference::Average)];
            RuleKind::Latency { distance_from: fields.choice("distance_from", WORDS).unwrap_or_default() }
        }
        Type::AbsoluteSort | Type::DistanceSort => {
            const KEYS: &[(&str, MapKey)] = &[("min", MapKey::Min), ("max", MapKey::Max)];
            const DIRECTIONS: &[(&str, bool)] = &[("ascending", false), ("descending", true)];
            let attribute =
                attribute(&[AttributeKind::Number, AttributeKind::NumberMap, AttributeKind::Text])?;
            let key = fields.choice("key", KEYS);
            if rules.attributes[attribute].kind == AttributeKind::NumberMap && key.is_none() {
                fields.add("a number-map needs `key`: min or max");
            }
            RuleKind::Sort {
                by: if type_ == Type::AbsoluteSort { SortBy::Value } else { SortBy::Distance },
                attribute,
                key: key.unwrap_or(MapKey::Min),
                is_descending: fields.choice("direction", DIRECTIONS).unwrap_or(false),
            }
        }
        Type::Compound => {
            let text = fields.required("statement").and(fields.text("statement"))?;
            match statement::parse(text, &rules.rules) {
                Ok(statement) => RuleKind::Compound { statement },
                Err(why) => {
                    let position = fields.get("statement").map_or(fields.position(), |node| node.position);
                    fields.add_at(position, format!("statement: {why}"));
                    return None;
                }
            }
        }
        Type::Total => RuleKind::Total { attribute: attribute(&[AttributeKind::Number])? },
        Type::PremadeSimilarity => RuleKind::PremadeSimilarity,
        Type::BlockList => {
            const WORDS: &[(&str, Scope)] = &[("match", Scope::Match), ("team", Scope::Team)];
            RuleKind::BlockList {
                attribute: attribute(&[AttributeKind::TextList])?,
                scope: fields.choice("scope", WORDS).unwrap_or_default(),
            }
        }
    })
}

fn expressions(fields: &Fields<'_>, rules: &RuleSet, name: &'static str) -> Option<Vec<Expression>> {
    fields.required(name)?;
    let texts = fields.texts(name);
    let position = fields.get(name).map_or(fields.position(), |node| node.position);
    if texts.is_empty() {
        fields.add_at(position, format!("{name}: expected at least one expression"));
    }
    let parsed: Vec<_> =
        texts.iter().filter_map(|text| expression(fields, rules, name, text, position)).collect();
    (parsed.len() == texts.len() && !parsed.is_empty()).then_some(parsed)
}

fn expression(
    fields: &Fields<'_>,
    rules: &RuleSet,
    name: &str,
    text: &str,
    position: crate::mistake::Position,
) -> Option<Expression> {
    match Expression::parse(text, rules) {
        Ok(found) if found.shape.kind == Kind::Player => {
            fields
                .add_at(position, format!("{name}: {text} yields players: count them, or read an attribute"));
            None
        }
        Ok(found) => Some(found),
        Err(why) => {
            fields.add_at(position, format!("{name}: {why}"));
            None
        }
    }
}

fn reference(
    fields: &Fields<'_>,
    rules: &RuleSet,
    node: &Node,
    number: &mut Option<f64>,
) -> Option<Reference> {
    match &node.data {
        Data::Number(found) => {
            *number = Some(*found);
            Some(Reference::Number)
        }
        Data::Text(text) if text.contains("teams[") => {
            Some(Reference::Expression(expression(fields, rules, "reference", text, node.position)?))
        }
        Data::Text(text) => Some(Reference::Texts(vec![text.as_str().into()])),
        Data::List(_) => {
            Some(Reference::Texts(fields.texts("reference").into_iter().map(Arc::from).collect()))
        }
        _ => {
            fields.add_at(
                node.position,
                format!(
                    "reference: expected a number, a text, texts or an expression, found {}",
                    node.kind()
                ),
            );
            None
        }
    }
}

/// Records measurements whose kind differs from the reference's.
fn check_kinds(fields: &Fields<'_>, measurements: &[Expression], reference: Option<&Reference>) {
    let expected = match reference {
        None => measurements.first().map(|first| first.shape.kind),
        Some(Reference::Number) => Some(Kind::Number),
        Some(Reference::Texts(_)) => Some(Kind::Text),
        Some(Reference::Expression(expression)) => {
            let Shape { kind, .. } = expression.shape;
            Some(kind)
        }
    };
    for measurement in measurements.iter().filter(|found| Some(found.shape.kind) != expected) {
        fields.add(format!("measurements: {measurement} and the reference are of different types"));
    }
}
