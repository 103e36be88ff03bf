//! The difference between two texts, line by line.

/// How many unchanged lines are shown around a change.
const CONTEXT: usize = 3;
/// Above this product of the numbers of changed lines the whole range counts as replaced.
const MAX_CELLS: usize = 4_000_000;

/// One line of a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line<'a> {
    Same(&'a str),
    Removed(&'a str),
    Added(&'a str),
}

/// Returns the difference in the unified format, without a header. Empty if the texts are the same.
pub(crate) fn diff(old: &str, new: &str) -> String {
    let lines = compare(&old.lines().collect::<Vec<_>>(), &new.lines().collect::<Vec<_>>());
    let is_changed = |line: &Line<'_>| !matches!(line, Line::Same(_));
    let mut text = String::new();
    // The numbers of the next line in both texts.
    let (mut at_old, mut at_new) = (1, 1);
    let mut is_open = false;
    for (at, line) in lines.iter().enumerate() {
        let near = &lines[at.saturating_sub(CONTEXT)..lines.len().min(at + CONTEXT + 1)];
        let is_shown = near.iter().any(is_changed);
        if is_shown && !is_open {
            text.push_str(&format!("@@ -{at_old} +{at_new} @@\n"));
        }
        is_open = is_shown;
        let (sign, content) = match line {
            Line::Same(content) => (' ', content),
            Line::Removed(content) => ('-', content),
            Line::Added(content) => ('+', content),
        };
        if is_shown {
            text.push(sign);
            text.push_str(content);
            text.push('\n');
        }
        at_old += usize::from(sign != '+');
        at_new += usize::from(sign != '-');
    }
    text
}

/// Finds a longest common subsequence of lines.
fn compare<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<Line<'a>> {
    let head = old.iter().zip(new).take_while(|(a, b)| a == b).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (a, b) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let mut lines: Vec<Line<'a>> = old[..head].iter().map(|line| Line::Same(line)).collect();
    if a.len().saturating_mul(b.len()) > MAX_CELLS {
        lines.extend(a.iter().map(|line| Line::Removed(line)));
        lines.extend(b.iter().map(|line| Line::Added(line)));
    } else {
        // The length of the longest common subsequence of a[i..] and b[j..].
        let width = b.len() + 1;
        let mut common = vec![0_u32; (a.len() + 1) * width];
        for i in (0..a.len()).rev() {
            for j in (0..b.len()).rev() {
                common[i * width + j] = if a[i] == b[j] {
                    common[(i + 1) * width + j + 1] + 1
                } else {
                    common[(i + 1) * width + j].max(common[i * width + j + 1])
                };
            }
        }
        let (mut i, mut j) = (0, 0);
        while i < a.len() || j < b.len() {
            if i < a.len() && j < b.len() && a[i] == b[j] {
                lines.push(Line::Same(a[i]));
                (i, j) = (i + 1, j + 1);
            } else if j == b.len()
                || (i < a.len() && common[(i + 1) * width + j] >= common[i * width + j + 1])
            {
                lines.push(Line::Removed(a[i]));
                i += 1;
            } else {
                lines.push(Line::Added(b[j]));
                j += 1;
            }
        }
    }
    lines.extend(old[old.len() - tail..].iter().map(|line| Line::Same(line)));
    lines
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn changed_lines_are_shown_with_their_surroundings() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n";
        let new = "a\nb\nc\nd\nE\nf\ng\nh\ni\nj\nk\n";
        let expected = "@@ -2 +2 @@\n b\n c\n d\n-e\n+E\n f\n g\n h\n i\n j\n+k\n";
        assert_eq!(diff(old, new), expected);
        assert_eq!(diff(old, old), "");
        assert_eq!(diff("", "a\n"), "@@ -1 +1 @@\n+a\n");
    }

    proptest! {
        #[test]
        fn both_texts_follow_from_the_comparison(
            old in proptest::collection::vec("[abc]", 0..12),
            new in proptest::collection::vec("[abc]", 0..12),
        ) {
            let (old, new): (Vec<&str>, Vec<&str>) =
                (old.iter().map(String::as_str).collect(), new.iter().map(String::as_str).collect());
            let lines = compare(&old, &new);
            let of = |left: bool| lines.iter().filter_map(|line| match line {
                Line::Same(line) => Some(*line),
                Line::Removed(line) => left.then_some(*line),
                Line::Added(line) => (!left).then_some(*line),
            }).collect::<Vec<_>>();
            prop_assert_eq!(of(true), old);
            prop_assert_eq!(of(false), new);
        }
    }
}
