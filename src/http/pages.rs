//! The files that a browser loads: the dashboard, from the binary. They hold no data, so they need no token.

use std::sync::OnceLock;

use axum::extract::Path;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};

use super::fallback::not_found;

/// The path below which all files but the page itself are served.
const ASSETS: &str = "/assets/";

/// The content security policy: scripts and styles from this server alone, nothing inline, no frame around the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// A file: its name, its media type, its content.
struct File(&'static str, &'static str, &'static [u8]);

macro_rules! file {
    ($name:literal, $kind:expr) => {
        File($name, $kind, include_bytes!(concat!("pages/", $name)))
    };
}

/// All files. A file that is missing here does not exist for a browser.
static FILES: &[File] = &[
    file!("index.html", HTML),
    file!("style.css", CSS),
    file!("icon.svg", IMAGE),
    file!("uplot.min.css", CSS),
    file!("uplot.min.js", SCRIPT),
    file!("app.js", SCRIPT),
    file!("actions.js", SCRIPT),
    file!("api.js", SCRIPT),
    file!("budgets.js", SCRIPT),
    file!("changes.js", SCRIPT),
    file!("charts.js", SCRIPT),
    file!("dead.js", SCRIPT),
    file!("dialog.js", SCRIPT),
    file!("dom.js", SCRIPT),
    file!("drips.js", SCRIPT),
    file!("format.js", SCRIPT),
    file!("live.js", SCRIPT),
    file!("node.js", SCRIPT),
    file!("overview.js", SCRIPT),
    file!("tabs.js", SCRIPT),
];

fn file(name: &str) -> Option<&'static File> {
    FILES.iter().find(|file| file.0 == name)
}

/// Whether a path is the page or one of its files.
pub(super) fn is_page(path: &str) -> bool {
    path == "/" || path.strip_prefix(ASSETS).is_some_and(|name| file(name).is_some())
}

/// The entity tag of a file: while it is the same, a browser need not load the file again.
fn tag(file: &File) -> HeaderValue {
    static TAGS: OnceLock<Vec<String>> = OnceLock::new();
    let known_as = |file: &File| digest(&SHA256, file.2).as_ref().iter().take(12).copied().collect::<Vec<u8>>();
    let of = |file: &File| format!("\"{}\"", BASE64_URL_SAFE_NO_PAD.encode(known_as(file)));
    let tags = TAGS.get_or_init(|| FILES.iter().map(of).collect());
    let tag = FILES.iter().zip(tags).find_map(|(other, tag)| (other.0 == file.0).then_some(tag));
    // A tag is base64 in quotes, which is a valid header. Without a tag a file would be loaded each time.
    tag.and_then(|tag| HeaderValue::from_str(tag).ok()).unwrap_or_else(|| HeaderValue::from_static("\"\""))
}

fn served(file: &File, asked: &HeaderMap) -> Response {
    let tag = tag(file);
    let known = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let is_known = known.flat_map(|list| list.split(',')).any(|one| one.trim().trim_start_matches("W/") == tag);
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(file.1)),
        (header::ETAG, tag),
        // Browsers ask each time, and get a short answer while nothing changed: after an update all files are of one
        // version.
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
        (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    ];
    if is_known { (StatusCode::NOT_MODIFIED, headers).into_response() } else { (headers, file.2).into_response() }
}

/// `GET /`.
pub(super) async fn page(asked: HeaderMap) -> Response {
    match file("index.html") {
        Some(index) => served(index, &asked),
        None => StatusCode::NOT_FOUND.into_response(),
    }
}

/// `GET /assets/<file>`.
pub(super) async fn asset(Path(name): Path<String>, uri: Uri, asked: HeaderMap) -> Response {
    match file(&name) {
        Some(file) => served(file, &asked),
        None => not_found(uri).await.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_page_weighs_less_than_200_kb() {
        let bytes: usize = FILES.iter().map(|file| file.2.len()).sum();
        assert!(bytes < 200_000, "{bytes} bytes");
    }

    #[test]
    fn every_script_that_the_page_names_is_one_of_its_files() {
        for file in FILES {
            let Ok(text) = std::str::from_utf8(file.2) else { continue };
            let quoted = text
                .split(['"', '\''])
                .filter_map(|part| part.strip_prefix("./").or_else(|| part.strip_prefix(ASSETS)));
            for name in quoted.filter(|name| !file.0.starts_with("uplot") && !name.is_empty()) {
                assert!(super::file(name).is_some(), "{} names {name}", file.0);
            }
        }
    }

    #[test]
    fn every_file_of_the_folder_is_served_but_the_licence_and_version_of_the_charts() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/http/pages");
        for entry in std::fs::read_dir(folder).expect("the folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("text");
            assert!(
                is_page(&format!("{ASSETS}{name}")) || name.starts_with("uplot.LICENSE") || name == "uplot.md",
                "{name}"
            );
        }
        assert!(is_page("/") && !is_page("/assets/") && !is_page("/assets/x.js") && !is_page("/v1/status"));
    }
}
