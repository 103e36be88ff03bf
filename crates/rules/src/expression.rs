//! Property expressions, as in FlexMatch: `avg(teams[red].players.attributes[skill])`.

use std::fmt;
use std::sync::Arc;

use crate::model::{AttributeKind, RuleSet};

/// A parsed and checked expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    pub(crate) node: Node,
    pub(crate) shape: Shape,
    text: Arc<str>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Node {
    Property {
        slots: Vec<usize>,
        /// Whether the result is one list, not a list per team.
        is_single: bool,
        property: Property,
    },
    Call(Function, Box<Self>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Property {
    Players,
    PlayerId,
    Attribute(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Min,
    Max,
    Avg,
    Median,
    Sum,
    Count,
    Stddev,
    Flatten,
    SetIntersection,
}

impl Function {
    const WORDS: [(&'static str, Self); 9] = [
        ("min", Self::Min),
        ("max", Self::Max),
        ("avg", Self::Avg),
        ("median", Self::Median),
        ("sum", Self::Sum),
        ("count", Self::Count),
        ("stddev", Self::Stddev),
        ("flatten", Self::Flatten),
        ("set_intersection", Self::SetIntersection),
    ];
}

/// What an expression yields: values of a kind, in lists of this depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) depth: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Number,
    Text,
    Player,
}

impl Expression {
    /// Parses an expression over the teams and attributes of a rule set.
    pub(crate) fn parse(text: &str, rules: &RuleSet) -> Result<Self, String> {
        let mut parser = Parser { rest: text, rules };
        let (node, shape) = parser.expression()?;
        parser.skip_blank();
        if !parser.rest.is_empty() {
            return Err(format!("{text}: expected the end, found `{}`", parser.rest));
        }
        Ok(Self { node, shape, text: text.trim().into() })
    }

    /// Returns whether the expression is one value per player, without aggregation.
    pub(crate) fn is_per_player(&self) -> bool {
        fn plain(node: &Node) -> bool {
            match node {
                Node::Property { property, .. } => !matches!(property, Property::Players),
                Node::Call(Function::Flatten, inner) => plain(inner),
                Node::Call(..) => false,
            }
        }
        plain(&self.node)
    }

    /// Calls `found` with every attribute that the expression reads.
    pub(crate) fn attributes(&self, found: &mut impl FnMut(usize)) {
        fn visit(node: &Node, found: &mut impl FnMut(usize)) {
            match node {
                Node::Property { property: Property::Attribute(attribute), .. } => found(*attribute),
                Node::Property { .. } => {}
                Node::Call(_, inner) => visit(inner, found),
            }
        }
        visit(&self.node, found);
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

struct Parser<'a> {
    rest: &'a str,
    rules: &'a RuleSet,
}

impl<'a> Parser<'a> {
    fn skip_blank(&mut self) {
        self.rest = self.rest.trim_start();
    }

    fn eat(&mut self, text: &str) -> bool {
        self.skip_blank();
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        if self.eat(text) {
            return Ok(());
        }
        let found = if self.rest.is_empty() { "the end".to_owned() } else { format!("`{}`", self.rest) };
        Err(format!("expected `{text}`, found {found}"))
    }

    fn word(&mut self) -> &'a str {
        self.skip_blank();
        let end = self.rest.find(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ')));
        let (word, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        word.trim()
    }

    fn expression(&mut self) -> Result<(Node, Shape), String> {
        self.skip_blank();
        if self.rest.starts_with("teams") {
            return self.property();
        }
        let word = self.word();
        let Some((_, function)) = Function::WORDS.into_iter().find(|(name, _)| *name == word) else {
            let names: Vec<&str> = Function::WORDS.iter().map(|(name, _)| *name).collect();
            return Err(format!(
                "expected `teams[…]` or a function ({}), found `{word}{}`",
                names.join(", "),
                self.rest
            ));
        };
        self.expect("(")?;
        let (inner, shape) = self.expression()?;
        self.expect(")")?;
        let shape = apply(function, shape).map_err(|why| format!("{word}: {why}"))?;
        Ok((Node::Call(function, Box::new(inner)), shape))
    }

    fn property(&mut self) -> Result<(Node, Shape), String> {
        self.expect("teams")?;
        self.expect("[")?;
        let (slots, is_single) = if self.eat("*") {
            ((0..self.rules.slots.len()).collect(), false)
        } else {
            let mut slots = Vec::new();
            loop {
                let name = self.word();
                let found = self.rules.slots_named(name);
                if found.is_empty() {
                    let known: Vec<&str> = self.rules.slots.iter().map(|slot| &*slot.name).collect();
                    let help = crate::mistake::suggest(name, known);
                    return Err(format!(
                        "no such team: {name}{}",
                        help.map(|help| format!("; {help}")).unwrap_or_default()
                    ));
                }
                slots.extend(found);
                if !self.eat(",") {
                    break;
                }
            }
            let is_single = slots.len() == 1;
            (slots, is_single)
        };
        self.expect("]")?;
        self.expect(".players")?;
        let (property, kind, inner) = if self.eat("[playerId]") {
            (Property::PlayerId, Kind::Text, 0)
        } else if self.eat(".attributes[") {
            let name = self.word();
            self.expect("]")?;
            let Some(at) = self.rules.attribute(name) else {
                let known: Vec<&str> =
                    self.rules.attributes.iter().map(|attribute| &*attribute.name).collect();
                let help = crate::mistake::suggest(name, known);
                return Err(format!(
                    "no such attribute: {name}{}",
                    help.map(|help| format!("; {help}")).unwrap_or_default()
                ));
            };
            let (kind, inner) = match self.rules.attributes[at].kind {
                AttributeKind::Number => (Kind::Number, 0),
                AttributeKind::Text => (Kind::Text, 0),
                AttributeKind::TextList => (Kind::Text, 1),
                AttributeKind::NumberMap => {
                    return Err(format!("{name} is a number-map: only sorts can use it"));
                }
            };
            (Property::Attribute(at), kind, inner)
        } else {
            (Property::Players, Kind::Player, 0)
        };
        let depth = 1 + usize::from(!is_single) + inner;
        Ok((Node::Property { slots, is_single, property }, Shape { kind, depth }))
    }
}

/// Returns what a function yields for an argument.
fn apply(function: Function, argument: Shape) -> Result<Shape, String> {
    let Shape { kind, depth } = argument;
    match function {
        Function::Count if depth > 0 => Ok(Shape { kind: Kind::Number, depth: depth - 1 }),
        Function::Count => Err("expected a list".to_owned()),
        // A flat list stays as it is.
        Function::Flatten if depth > 0 => Ok(Shape { kind, depth: (depth - 1).max(1) }),
        Function::Flatten => Err("expected a list".to_owned()),
        Function::SetIntersection if kind == Kind::Text && depth > 1 => Ok(Shape { kind, depth: depth - 1 }),
        Function::SetIntersection => Err("expected lists of texts".to_owned()),
        _ if kind == Kind::Number && depth > 0 => Ok(Shape { kind, depth: depth - 1 }),
        _ => Err("expected a list of numbers".to_owned()),
    }
}
