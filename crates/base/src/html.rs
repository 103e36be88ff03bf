//! Texts in pages.

/// A text that means nothing to a browser, wherever in a page it stands.
pub fn escaped(text: &str) -> String {
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
    fn nothing_gets_out_of_a_text_or_an_attribute() {
        assert_eq!(escaped("<b a='1' c=\"2\">&ä"), "&lt;b a=&#39;1&#39; c=&quot;2&quot;&gt;&amp;ä");
    }
}
