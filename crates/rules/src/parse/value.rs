//! Values of attributes in documents.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::document::{Data, Node};
use crate::model::Value;

/// Reads a value. Fails with what was expected.
pub(crate) fn read(node: &Node) -> Result<Value, &'static str> {
    Ok(match &node.data {
        Data::Number(number) => Value::Number(*number),
        Data::Text(text) => Value::Text(text.as_str().into()),
        Data::List(items) => {
            let texts = items.iter().map(|item| match &item.data {
                Data::Text(text) => Ok(Arc::from(text.as_str())),
                _ => Err("expected a list of texts"),
            });
            Value::TextList(texts.collect::<Result<_, _>>()?)
        }
        Data::Table(entries) => {
            let numbers = entries.iter().map(|(key, node)| match &node.data {
                Data::Number(number) => Ok((Arc::from(key.as_str()), *number)),
                _ => Err("expected a table of numbers"),
            });
            Value::NumberMap(numbers.collect::<Result<BTreeMap<_, _>, _>>()?)
        }
        Data::Bool(_) | Data::Other(_) => {
            return Err("expected a number, a text, a list of texts or a table of numbers");
        }
    })
}
