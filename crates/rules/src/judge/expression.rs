//! The values of expressions for a lineup.

use std::sync::Arc;

use super::{Judge, Lineup, range};
use crate::expression::{Expression, Function, Node, Property};
use crate::model::{AttributeKind, Party, Value};

/// A value without parts.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Leaf {
    Number(f64),
    Text(Arc<str>),
}

impl Leaf {
    pub(super) fn into_text(self) -> Option<Arc<str>> {
        match self {
            Self::Text(text) => Some(text),
            Self::Number(_) => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Tree {
    Leaf(Leaf),
    List(Vec<Self>),
}

/// What an expression is evaluated for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope<'a> {
    pub(super) judge: &'a Judge<'a>,
    pub(super) lineup: &'a Lineup,
    pub(super) party: Party,
    /// Whether a party counts once, not once per player.
    pub(super) once: bool,
}

impl Scope<'_> {
    /// Returns all values of the expression, whatever lists they are in.
    pub(super) fn leaves(&self, expression: &Expression) -> Vec<Leaf> {
        let mut leaves = Vec::new();
        if let Some(tree) = self.evaluate(&expression.node) {
            collect_leaves(tree, &mut leaves);
        }
        leaves
    }

    /// Returns the innermost lists of texts. A flat list of texts that are not lists counts as a list per text.
    pub(super) fn lists(&self, expression: &Expression) -> Vec<Vec<Arc<str>>> {
        let Some(tree) = self.evaluate(&expression.node) else { return Vec::new() };
        let is_flat = expression.shape.depth == 1
            && !matches!(expression.node, Node::Call(Function::SetIntersection, _));
        let mut lists = Vec::new();
        collect_lists(tree, is_flat, &mut lists);
        lists
    }

    fn evaluate(&self, node: &Node) -> Option<Tree> {
        match node {
            Node::Property { slots, is_single, property } => {
                let mut lists =
                    slots.iter().map(|slot| Tree::List(self.property(&self.lineup[*slot], *property)));
                if *is_single { lists.next() } else { Some(Tree::List(lists.collect())) }
            }
            Node::Call(function, inner) => apply(*function, self.evaluate(inner)?),
        }
    }

    fn property(&self, tickets: &[usize], property: Property) -> Vec<Tree> {
        let mut values = Vec::new();
        for ticket in tickets.iter().map(|ticket| &self.judge.pool[*ticket]) {
            let each = ticket.players.iter();
            match property {
                Property::Players => values.extend(each.map(|_| Tree::Leaf(Leaf::Number(1.0)))),
                Property::PlayerId => {
                    values.extend(each.map(|player| Tree::Leaf(Leaf::Text(player.id.clone()))))
                }
                Property::Attribute(at) => match self.judge.rules.attributes[at].kind {
                    AttributeKind::Number if self.party == Party::Each => {
                        values.extend(each.map(|player| {
                            Tree::Leaf(Leaf::Number(crate::ticket::number(&player.values[at])))
                        }));
                    }
                    AttributeKind::Number => {
                        let (value, _) = range(ticket, at, self.party);
                        let times = if self.once { 1 } else { ticket.players.len() };
                        values.extend((0..times).map(|_| Tree::Leaf(Leaf::Number(value))));
                    }
                    _ => values.extend(self.lists_of(ticket.players.iter().map(|player| &player.values[at]))),
                },
            }
        }
        values
    }

    /// Returns the texts or lists of a ticket's players, as the party counts.
    fn lists_of<'b>(&self, values: impl Iterator<Item = &'b Value>) -> Vec<Tree> {
        let tree = |texts: &[Arc<str>]| {
            Tree::List(texts.iter().cloned().map(|text| Tree::Leaf(Leaf::Text(text))).collect())
        };
        let mut joined: Option<Vec<Arc<str>>> = None;
        let mut trees = Vec::new();
        for value in values {
            match value {
                Value::Text(text) => trees.push(Tree::Leaf(Leaf::Text(text.clone()))),
                Value::TextList(texts) => match (self.party, &mut joined) {
                    (Party::Union, Some(joined)) => joined.extend(
                        texts.iter().filter(|text| !joined.contains(text)).cloned().collect::<Vec<_>>(),
                    ),
                    (Party::Intersection, Some(joined)) => joined.retain(|text| texts.contains(text)),
                    (Party::Union | Party::Intersection, joined @ None) => *joined = Some(texts.clone()),
                    _ => trees.push(tree(texts)),
                },
                _ => {}
            }
        }
        trees.extend(joined.map(|joined| tree(&joined)));
        trees
    }
}

fn collect_leaves(tree: Tree, leaves: &mut Vec<Leaf>) {
    match tree {
        Tree::Leaf(leaf) => leaves.push(leaf),
        Tree::List(items) => items.into_iter().for_each(|item| collect_leaves(item, leaves)),
    }
}

fn collect_lists(tree: Tree, is_flat: bool, lists: &mut Vec<Vec<Arc<str>>>) {
    let Tree::List(items) = tree else { return };
    if items.iter().any(|item| matches!(item, Tree::List(_))) {
        items.into_iter().for_each(|item| collect_lists(item, is_flat, lists));
        return;
    }
    let texts = items.into_iter().filter_map(|item| match item {
        Tree::Leaf(leaf) => leaf.into_text(),
        Tree::List(_) => None,
    });
    if is_flat { lists.extend(texts.map(|text| vec![text])) } else { lists.push(texts.collect()) }
}

/// Applies a function to each innermost list that it fits. Returns none for an aggregate of nothing: such a rule does not
/// count yet.
fn apply(function: Function, argument: Tree) -> Option<Tree> {
    let Tree::List(items) = argument else { return None };
    let nested = items.first().is_some_and(|item| matches!(item, Tree::List(_)));
    match function {
        Function::Flatten if nested => {
            let parts = items.into_iter().flat_map(|item| match item {
                Tree::List(inner) => inner,
                leaf @ Tree::Leaf(_) => vec![leaf],
            });
            Some(Tree::List(parts.collect()))
        }
        Function::Flatten => Some(Tree::List(items)),
        Function::SetIntersection => {
            let is_innermost = |item: &Tree| matches!(item, Tree::List(inner) if !inner.iter().any(|item| matches!(item, Tree::List(_))));
            if items.iter().all(is_innermost) { intersect(items) } else { per_part(function, items) }
        }
        _ if nested => per_part(function, items),
        _ => aggregate(function, &items).map(|number| Tree::Leaf(Leaf::Number(number))),
    }
}

fn per_part(function: Function, items: Vec<Tree>) -> Option<Tree> {
    Some(Tree::List(items.into_iter().filter_map(|item| apply(function, item)).collect()))
}

fn intersect(items: Vec<Tree>) -> Option<Tree> {
    let mut lists = Vec::new();
    items.into_iter().for_each(|item| collect_lists(item, false, &mut lists));
    let (first, others) = lists.split_first()?;
    let mut common: Vec<Tree> = Vec::new();
    let mut seen: Vec<&Arc<str>> = Vec::new();
    for text in first.iter().filter(|text| others.iter().all(|list| list.contains(text))) {
        if !seen.contains(&text) {
            seen.push(text);
            common.push(Tree::Leaf(Leaf::Text(text.clone())));
        }
    }
    Some(Tree::List(common))
}

fn aggregate(function: Function, items: &[Tree]) -> Option<f64> {
    if function == Function::Count {
        return Some(items.len() as f64);
    }
    let mut numbers: Vec<f64> = items
        .iter()
        .filter_map(|item| match item {
            Tree::Leaf(Leaf::Number(number)) => Some(*number),
            _ => None,
        })
        .collect();
    if numbers.is_empty() {
        return None;
    }
    let count = numbers.len() as f64;
    let sum: f64 = numbers.iter().sum();
    Some(match function {
        Function::Min => numbers.iter().copied().fold(f64::INFINITY, f64::min),
        Function::Max => numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Function::Sum => sum,
        Function::Avg => sum / count,
        Function::Median => {
            numbers.sort_by(f64::total_cmp);
            let middle = numbers.len() / 2;
            if numbers.len() % 2 == 1 {
                numbers[middle]
            } else {
                f64::midpoint(numbers[middle - 1], numbers[middle])
            }
        }
        Function::Stddev => {
            let mean = sum / count;
            (numbers.iter().map(|number| (number - mean).powi(2)).sum::<f64>() / count).sqrt()
        }
        Function::Count | Function::Flatten | Function::SetIntersection => return None,
    })
}
