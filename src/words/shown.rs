//! Any bytes as a text that is safe on a terminal: one line, no control characters, nothing that turns the reading direction.

/// All of some bytes. What is no UTF-8 is shown as `\xff`; control characters, marks that turn the reading direction and others
/// that cannot be seen as `\n` or `\u{202e}`; and a backslash as two, so that nothing else looks the same.
#[must_use]
pub fn shown(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        // Quotes need no escape here, which is all that this splitting is for.
        for part in chunk.valid().split_inclusive(['"', '\'']) {
            let plain = part.strip_suffix(['"', '\'']).unwrap_or(part);
            text.extend(plain.escape_debug());
            text += &part[plain.len()..];
        }
        for byte in chunk.invalid() {
            text += &format!("\\x{byte:02x}");
        }
    }
    text
}

/// A name or glob as it is written on a command line.
#[must_use]
pub fn shell(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | ':' | '_' | '-' | '/' | '@' | '+' | ',');
    if text.chars().all(is_plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

/// The beginning of some bytes, about `most` of them, and how many they are where that is not all.
#[must_use]
pub fn excerpt(bytes: &[u8], most: usize) -> String {
    if bytes.is_empty() {
        return "(0 bytes)".to_owned();
    }
    if bytes.len() <= most {
        return shown(bytes);
    }
    // Not in the middle of a character: its other bytes begin with the bits 10, and there are three at most.
    let is_middle = |at: usize| bytes[at] & 0b1100_0000 == 0b1000_0000;
    let end = (most.saturating_sub(3)..=most).rev().find(|at| !is_middle(*at)).unwrap_or(most);
    format!("{}… ({} bytes)", shown(&bytes[..end]), bytes.len())
}

/// A text of JSON in which everything that [`shown`] would not show as it is stands as an escape of JSON. It says the same.
#[must_use]
pub fn shown_json(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_ascii() && !c.is_ascii_control() || !c.is_ascii() && c.escape_debug().len() == 1 {
            text.push(c);
        } else {
            text.extend(c.encode_utf16(&mut [0; 2]).iter().map(|unit| format!("\\u{unit:04x}")));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_that_moves_the_cursor_or_hides_itself_is_shown_as_it_is() {
        for (bytes, text) in [
            (&b"{\"to\": 'x'}"[..], "{\"to\": 'x'}"),
            ("Zürich \u{928}\u{92e}\u{938}\u{94d}\u{924}\u{947} 🙂".as_bytes(), "Zürich नमस्ते 🙂"),
            (b"a\nb\r\t\0\x1b[2J\x7f", r"a\nb\r\t\0\u{1b}[2J\u{7f}"),
            ("\u{9b}2J\u{85}".as_bytes(), r"\u{9b}2J\u{85}"),
            ("\u{202e}abc\u{2066}\u{200f}\u{feff}\u{2028}".as_bytes(), r"\u{202e}abc\u{2066}\u{200f}\u{feff}\u{2028}"),
            (b"\xff\xfeok\xc3", r"\xff\xfeok\xc3"),
            (br"\n", r"\\n"),
            (b"", ""),
        ] {
            assert_eq!(shown(bytes), text);
        }
    }

    #[test]
    fn an_excerpt_ends_between_two_characters_and_says_how_much_there_is() {
        assert_eq!(excerpt(b"", 5), "(0 bytes)");
        assert_eq!(excerpt(b"12345", 5), "12345");
        assert_eq!(excerpt(b"123456", 5), "12345… (6 bytes)");
        assert_eq!(excerpt("aé🙂🙂".as_bytes(), 5), "aé… (11 bytes)");
        assert_eq!(excerpt(&[0x80; 9], 5), format!("{}… (9 bytes)", r"\x80".repeat(5)));
    }

    #[test]
    fn json_says_the_same_in_bytes_that_are_safe_to_show() {
        let json = "{\"a\":\"\u{202e}é🙂\u{7f}\u{9b}\u{e0041}\"}";
        let safe = shown_json(json);
        assert_eq!(safe, r#"{"a":"\u202eé🙂\u007f\u009b\udb40\udc41"}"#);
    }
}
