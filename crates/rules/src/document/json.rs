//! JSON as rule sets are published in: with `//` comments and with keys that occur several times in one object.

use super::{Data, Node};
use crate::mistake::{Mistake, Mistakes, Position};

/// How deep lists and objects may be nested.
const MAX_DEPTH: usize = 64;

pub(super) fn parse(text: &str) -> Result<Node, Mistakes> {
    let mut parser = Parser { text, at: 0, depth: 0 };
    let parsed = parser.value().and_then(|node| {
        parser.skip_blank();
        if parser.at == text.len() { Ok(node) } else { Err("expected the end of the document") }
    });
    parsed.map_err(|message| {
        let at = Position::of(text, parser.at..parser.at);
        Mistakes::new(vec![Mistake::new(at, format!("not valid JSON: {message}"))])
    })
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    depth: usize,
}

type Parsed<T> = Result<T, &'static str>;

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n', '\u{feff}']);
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn eat(&mut self, c: char) -> bool {
        self.skip_blank();
        let found = self.rest().starts_with(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn value(&mut self) -> Parsed<Node> {
        self.skip_blank();
        let position = Position::of(self.text, self.at..self.at);
        let rest = self.rest();
        let word = |word: &str| rest.starts_with(word);
        let data = match rest.chars().next() {
            Some('{') => self.nested(Self::table)?,
            Some('[') => self.nested(Self::list)?,
            Some('"') => Data::Text(self.text()?),
            _ if word("true") => self.word("true", Data::Bool(true)),
            _ if word("false") => self.word("false", Data::Bool(false)),
            _ if word("null") => self.word("null", Data::Other("null".to_owned())),
            Some('-' | '0'..='9') => self.number()?,
            _ => return Err("expected a value"),
        };
        Ok(Node { position, data })
    }

    fn nested(&mut self, parse: impl FnOnce(&mut Self) -> Parsed<Data>) -> Parsed<Data> {
        if self.depth == MAX_DEPTH {
            return Err("too many levels of lists and objects");
        }
        self.depth += 1;
        self.at += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn word(&mut self, word: &str, data: Data) -> Data {
        self.at += word.len();
        data
    }

    fn number(&mut self) -> Parsed<Data> {
        let rest = self.rest();
        let end = rest.find(|c: char| !matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9'));
        let digits = &rest[..end.unwrap_or(rest.len())];
        let number: f64 = digits.parse().map_err(|_| "expected a number")?;
        if !number.is_finite() {
            return Err("the number is too large");
        }
        self.at += digits.len();
        Ok(Data::Number(number))
    }

    fn list(&mut self) -> Parsed<Data> {
        let mut items = Vec::new();
        while !self.eat(']') {
            if !items.is_empty() && !self.eat(',') {
                return Err("expected `,` or `]`");
            }
            items.push(self.value()?);
        }
        Ok(Data::List(items))
    }

    fn table(&mut self) -> Parsed<Data> {
        let mut entries = Vec::new();
        while !self.eat('}') {
            if !entries.is_empty() && !self.eat(',') {
                return Err("expected `,` or `}`");
            }
            self.skip_blank();
            let position = Position::of(self.text, self.at..self.at);
            if !self.rest().starts_with('"') {
                return Err("expected a key in quotes");
            }
            let key = self.text()?;
            if !self.eat(':') {
                return Err("expected `:`");
            }
            let value = self.value()?;
            // A mistake in a scalar is shown at its key, as in TOML.
            entries.push((key, Node { position, data: value.data }));
        }
        Ok(Data::Table(entries))
    }

    fn text(&mut self) -> Parsed<String> {
        self.at += 1;
        let mut text = String::new();
        loop {
            let c = self.rest().chars().next().ok_or("expected `\"`")?;
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(text),
                '\\' => text.push(self.escaped()?),
                '\n' => return Err("expected `\"` before the end of the line"),
                _ => text.push(c),
            }
        }
    }

    fn escaped(&mut self) -> Parsed<char> {
        let c = self.rest().chars().next().ok_or("expected `\"`")?;
        self.at += c.len_utf8();
        Ok(match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            '"' | '\\' | '/' => c,
            'u' => {
                let first = self.four_digits()?;
                let code = if (0xd800..0xdc00).contains(&first) {
                    if !self.rest().starts_with("\\u") {
                        return Err("expected the second half of a surrogate pair");
                    }
                    self.at += 2;
                    let second = self.four_digits()?;
                    0x10000 + ((first - 0xd800) << 10) + (second.wrapping_sub(0xdc00) & 0x3ff)
                } else {
                    first
                };
                char::from_u32(code).ok_or("not a character")?
            }
            _ => return Err("unknown escape sequence"),
        })
    }

    fn four_digits(&mut self) -> Parsed<u32> {
        let digits = self.rest().get(..4).ok_or("expected four hexadecimal digits")?;
        let code = u32::from_str_radix(digits, 16).map_err(|_| "expected four hexadecimal digits")?;
        self.at += 4;
        Ok(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_repeated_keys_are_read() {
        let node = parse("{ \"a\": 1, // one\n \"a\": [true, \"\\u00e4\\ud83d\\ude00\"] }").unwrap();
        let Data::Table(entries) = node.data else { panic!() };
        assert_eq!(entries.len(), 2);
        assert_eq!(entries[1].1.position, Position { line: 2, column: 2 });
        let Data::List(items) = &entries[1].1.data else { panic!() };
        assert!(matches!(&items[1].data, Data::Text(text) if text == "ä😀"));
    }

    #[test]
    fn mistakes_have_a_position_and_deep_nesting_is_refused() {
        for (bad, line) in [
            ("{\"a\": }", "1:7"),
            ("{\n\"a\" 1}", "2:5"),
            ("{\"a\": \"x\n\"}", "2:1"),
            ("{} x", "1:4"),
            ("{\"a\":1e999}", "1:6"),
        ] {
            let mistakes = parse(bad).unwrap_err();
            assert!(mistakes.to_string().contains(line), "{bad}: {mistakes}");
        }
        assert!(parse(&"[".repeat(100_000)).is_err());
    }
}
