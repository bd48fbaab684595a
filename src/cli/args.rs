//! Parsers of option values that several commands share. Their errors say what would be right.

use std::time::Duration;

use reqwest::Url;

use crate::model::duration;

/// A parser of whole numbers within bounds.
pub(super) fn whole<T: TryFrom<u64>>(least: u64, most: u64) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse().ok()).flatten().filter(|n| (least..=most).contains(n));
        number.and_then(|n| T::try_from(n).ok()).ok_or_else(|| {
            if most == u64::MAX {
                format!("write a whole number, {least} or more")
            } else {
                format!("write a whole number, {least} to {most}")
            }
        })
    }
}

/// Read a duration that is longer than zero.
pub(super) fn time(text: &str) -> Result<Duration, &'static str> {
    duration::parse(text)
        .filter(|limit| !limit.is_zero())
        .ok_or("write a whole number and a unit (us ms s m h d), as in 30s")
}

/// Read the URL of an address to post to.
pub(super) fn http_url(text: &str) -> Result<Url, String> {
    match Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") => Ok(url),
        Ok(url) => Err(format!("{}: is not a way to post; write http://host/path or https://host/path", url.scheme())),
        Err(why) => Err(format!("{why}; write http://host/path or https://host/path")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_whole_number_is_told_what_would_be() {
        let number = whole::<u16>(1, 1_000);
        assert_eq!((number("1"), number("1000")), (Ok(1), Ok(1_000)));
        for bad in ["", "0", "1001", "x", "-1", "+1", "1.5", " 1", "99999999999999999999"] {
            assert_eq!(number(bad), Err("write a whole number, 1 to 1000".to_owned()), "{bad:?}");
        }
        assert_eq!(whole::<u64>(1, u64::MAX)("x"), Err("write a whole number, 1 or more".to_owned()));
    }

    #[test]
    fn what_is_no_address_is_told_what_would_be() {
        assert!(http_url("https://example.org/hook?x=1").is_ok());
        for bad in ["example.org", "localhost:8000/hook", "ftp://example.org", "http://", ""] {
            let why = http_url(bad).expect_err(bad);
            assert!(why.ends_with("write http://host/path or https://host/path"), "{bad}: {why}");
        }
    }
}
