//! HTML escaping.

/// Escapes a text for use in element content and in quoted attributes.
pub fn escape(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '"' => html.push_str("&quot;"),
            '\'' => html.push_str("&#39;"),
            c => html.push(c),
        }
    }
    html
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_break_out_of_an_element_or_attribute() {
        assert_eq!(escape("<b a='1' c=\"2\">&ä"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;ä");
    }
}
