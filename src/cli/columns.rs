//! Text that fits a terminal of 80 columns.

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use crate::model::escape::{alone, line as one_line};

/// The columns that every terminal has.
pub(super) const COLUMNS: usize = 80;

/// The columns of the label before a text.
const LABEL: usize = 12;

/// A label, and a text behind it, wrapped at 80 columns. A word longer than a line stays whole, so that it can be
/// copied.
pub(super) fn labelled(label: &str, text: &str) -> String {
    let (mut out, mut line) = (String::new(), format!("{label:<LABEL$}"));
    let mut is_empty = true;
    for word in one_line(text).split(' ') {
        if !is_empty && line.width() + 1 + word.width() > COLUMNS {
            out += &(line + "\n");
            line = " ".repeat(LABEL);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line += word;
        is_empty = false;
    }
    out + &line + "\n"
}

/// A name as it can be shown: characters that a terminal would not print, or would obey, are escaped, and a name that
/// is wider than `columns` is cut and ends in `…`.
pub(super) fn name(name: &str, columns: usize) -> String {
    let (mut shown, mut width) = (String::new(), 0);
    let mut before_last = 0;
    for c in name.chars() {
        let piece = alone(c);
        width += piece.chars().filter_map(char::width).sum::<usize>();
        shown += &piece;
        if width > columns {
            shown.truncate(before_last);
            return shown + "…";
        }
        if width < columns {
            before_last = shown.len();
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_broken_between_words_and_goes_on_below_its_text() {
        let text = "a ".repeat(40);
        let shown = labelled("policies", text.trim());
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("policies    a a") && lines[1].starts_with("            a a"));
        assert!(lines.iter().all(|line| line.width() <= COLUMNS), "{shown}");
        let long = "x".repeat(100);
        assert_eq!(labelled("x", &format!("in {long}")), format!("x           in\n            {long}\n"));
    }

    #[test]
    fn a_name_is_cut_to_its_columns_and_cannot_command_the_terminal() {
        assert_eq!(name("sms:alice", 9), "sms:alice");
        assert_eq!(name("sms:alice", 8), "sms:ali…");
        assert_eq!(name("短信短信", 8), "短信短信");
        assert_eq!(name("短信短信", 7), "短信短…");
        assert_eq!(name("短信短信", 6), "短信…", "a wide one is not cut in half");
        assert_eq!(name("it's\\\"so\"", 20), "it's\\\"so\"");
        assert_eq!(name("a\u{202e}b", 20), "a\\u{202e}b", "it would turn the line round");
        assert!((0..12).all(|n| name("sms:\u{200d}é短信", n.max(1)).width() <= n.max(1)));
    }
}
