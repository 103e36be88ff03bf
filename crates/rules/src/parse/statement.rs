//! Statements of compound rules: `and(near, or(young, not(ranked)))`.

use crate::mistake::suggest;
use crate::model::{Rule, RuleKind, Statement};

const MAX_DEPTH: usize = 16;

/// Parses a statement over the rules above it.
pub(super) fn parse(text: &str, rules: &[Rule]) -> Result<Statement, String> {
    let mut rest = text;
    let statement = statement(&mut rest, rules, 0)?;
    if !rest.trim().is_empty() {
        return Err(format!("expected the end, found `{}`", rest.trim()));
    }
    Ok(statement)
}

fn statement(rest: &mut &str, rules: &[Rule], depth: usize) -> Result<Statement, String> {
    if depth > MAX_DEPTH {
        return Err(format!("more than {MAX_DEPTH} levels"));
    }
    let word = word(rest);
    if !rest.starts_with('(') {
        return reference(word, rules);
    }
    *rest = &rest[1..];
    let mut parts = vec![statement(rest, rules, depth + 1)?];
    loop {
        *rest = rest.trim_start();
        if let Some(after) = rest.strip_prefix(',') {
            *rest = after;
            parts.push(statement(rest, rules, depth + 1)?);
        } else if let Some(after) = rest.strip_prefix(')') {
            *rest = after.trim_start();
            break;
        } else {
            return Err(format!("expected `,` or `)`, found `{rest}`"));
        }
    }
    match (word, parts.len()) {
        ("and", 2..) => Ok(Statement::And(parts)),
        ("or", 2..) => Ok(Statement::Or(parts)),
        ("xor", 2..) => Ok(Statement::Xor(parts)),
        ("not", 1) => Ok(Statement::Not(Box::new(parts.remove(0)))),
        ("not", _) => Err("not: expected one rule".to_owned()),
        ("and" | "or" | "xor", _) => Err(format!("{word}: expected at least two rules")),
        _ => Err(format!("expected and, or, xor or not, found `{word}`")),
    }
}

fn word<'a>(rest: &mut &'a str) -> &'a str {
    let text = rest.trim_start();
    let end = text.find(['(', ')', ',']).unwrap_or(text.len());
    let (word, after) = text.split_at(end);
    *rest = after;
    word.trim()
}

fn reference(name: &str, rules: &[Rule]) -> Result<Statement, String> {
    let found = rules.iter().position(|rule| &*rule.name == name);
    let Some(at) = found else {
        let known: Vec<&str> = rules.iter().map(|rule| &*rule.name).collect();
        let help = suggest(name, known).map(|help| format!("; {help}")).unwrap_or_default();
        return Err(format!("no such rule above this one: {name}{help}"));
    };
    match rules[at].kind {
        RuleKind::Sort { .. } => Err(format!("{name} is a sort, not a condition")),
        RuleKind::BatchDistance { .. } => {
            Err(format!("{name}: a batch distance cannot be part of a compound rule"))
        }
        RuleKind::Compound { .. } => Err(format!("{name}: a compound rule cannot be part of another")),
        _ => Ok(Statement::Rule(at)),
    }
}

/// Lists the rules of a statement.
pub(super) fn rules_of(statement: &Statement, found: &mut Vec<usize>) {
    match statement {
        Statement::Rule(at) => found.push(*at),
        Statement::Not(part) => rules_of(part, found),
        Statement::And(parts) | Statement::Or(parts) | Statement::Xor(parts) => {
            parts.iter().for_each(|part| rules_of(part, found));
        }
    }
}
