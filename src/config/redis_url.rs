//! The URL of a Redis: what it says of a login, and how it may be shown.

use super::keys::URL_HINT;

/// Whether a URL asks for TLS.
pub fn asks_for_tls(url: &str) -> bool {
    ["rediss://", "valkeys://"].iter().any(|scheme| url.starts_with(scheme))
}

/// The reason why a text is not a Redis URL, and what would be right; `None` for a URL.
pub(super) fn not_a_url(url: &str) -> Option<String> {
    let is_clear = ["redis://", "valkey://", "unix://", "redis+unix://"].iter().any(|scheme| url.starts_with(scheme));
    if asks_for_tls(url) && url.contains('#') {
        let way_out = "if the certificate is signed by a CA of your own, name that in redis.tls.ca";
        return Some(format!(
            "asks for TLS and has a #: servers are always verified; leave out what begins with #; {way_out}"
        ));
    }
    (!is_clear && !asks_for_tls(url)).then(|| format!("is not a Redis URL; {URL_HINT}"))
}

/// The login in a URL: the text between `://` and the last `@`.
fn login(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    Some(rest.split('?').next()?.rsplit_once('@')?.0)
}

/// What the query of a URL says of a name: that of a Unix socket has its login there.
fn in_query<'a>(url: &'a str, name: &str) -> Option<&'a str> {
    let (_, query) = url.split_once('?').filter(|_| is_socket(url))?;
    let value = |part: &'a str| part.split_once('=').filter(|(found, _)| *found == name).map(|(_, value)| value);
    query.split('&').find_map(value).filter(|value| !value.is_empty())
}

fn is_socket(url: &str) -> bool {
    url.split_once("://").is_some_and(|(scheme, _)| scheme.ends_with("unix"))
}

/// Whether a URL names a user.
pub(super) fn names_user(url: &str) -> bool {
    in_query(url, "user").is_some() || login(url).is_some_and(|login| !login.is_empty() && !login.starts_with(':'))
}

/// Whether a URL holds a password.
pub(super) fn holds_password(url: &str) -> bool {
    let in_login = login(url).and_then(|login| login.split_once(':')).is_some_and(|(_, password)| !password.is_empty());
    in_login || in_query(url, "pass").is_some()
}

/// A URL as it may be shown. Of its login that is the name before a colon: a name alone may be a password in the wrong place. Of its query
/// it is nothing. Somebody may have written an `@`, `?`, `#` or `:` of a password as it is, or have left out what
/// follows it: what could be a part of one is hidden.
pub fn hide_password(url: &str) -> String {
    const HIDDEN: &str = "***";
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (&url[..scheme.len() + 3], rest));
    let (rest, query) = rest.split_once('?').map_or((rest, None), |(rest, query)| (rest, Some(query)));
    let tail = query.map_or("", |_| "?***");
    if scheme.is_empty() || is_socket(url) {
        return match rest.rsplit_once('@') {
            Some((login, host)) => format!("{scheme}{}***@{host}{tail}", name_of(login)),
            None => format!("{scheme}{rest}{tail}"),
        };
    }
    if query.is_some_and(|query| query.contains('@')) {
        return format!("{scheme}{HIDDEN}");
    }
    let (login, host) = match rest.rsplit_once('@') {
        Some((login, host)) => (format!("{}{HIDDEN}@", name_of(login)), host),
        None => (String::new(), rest),
    };
    // Behind an `@` it is no part of a password.
    let (host, tail) = match host.split_once('#') {
        Some((host, _)) if login.is_empty() => (host, format!("#{HIDDEN}")),
        Some((host, mark)) => (host, format!("#{mark}{tail}")),
        None => (host, tail.to_owned()),
    };
    // Behind the colon after a host stands its port, unless this is a login whose host is missing.
    let colon = host.find(']').map_or(0, |at| at + 1);
    let colon = host[colon..].find(':').map(|at| at + colon);
    match colon.map(|at| host.split_at(at + 1)) {
        Some((name, port)) if !port.starts_with(|c: char| c.is_ascii_digit()) || port.contains(char::is_alphabetic) => {
            format!("{scheme}{login}{name}{HIDDEN}{tail}")
        }
        _ => format!("{scheme}{login}{host}{tail}"),
    }
}

/// The name in a login with its colon, where a password follows.
fn name_of(login: &str) -> &str {
    login.split_inclusive(':').next().filter(|name| name.ends_with(':')).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        assert_eq!(hide_password("redis://user:se@cret@host:1/0"), "redis://user:***@host:1/0");
        assert_eq!(hide_password(":secret@host:1"), ":***@host:1");
        assert_eq!(hide_password("unix:///run/redis.sock?pass=secret"), "unix:///run/redis.sock?***");
        for plain in [
            "redis://host",
            "redis://host:1",
            "rediss://host:1/0",
            "valkey://[::1]:6379/2",
            "redis://a-b.example:6379",
            "unix:///run/redis:a.sock",
            "redis://user:***@host:1",
            "10.0.0.1:6379",
        ] {
            assert_eq!(hide_password(plain), plain);
        }
        for url in [
            "redis://secret@host:1/0",
            "redis://secret@host",
            "secret@host:1",
            "redis://:secret",
            "redis://user:secret",
            "redis://:secret@host",
            "rediss://user:%73secret@host:1?x=secret",
            "redis://user:pa?secret@host:1",
            "redis://user:1?secret@host:1",
            "redis://user:a@b?secret@host:1",
            "redis://user:pa#secret@host:1",
            "redis://user:pa/secret@host:1",
            "redis://user:pa:secret@host:1",
            "redis://host:1/#secret",
            "redis://host:1/?password=secret",
            "unix:///run/redis.sock?user=u&pass=secret@x",
            "unix://user:secret@/run/redis.sock",
            "redis:/user:secret@host",
        ] {
            let shown = hide_password(url);
            assert!(!shown.contains("secret") && shown.contains("***"), "{url}: {shown}");
        }
    }
}
