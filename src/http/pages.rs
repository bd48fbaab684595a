//! What a browser loads. It holds nothing of anybody's.

/// Whether a path is one of a page or of what belongs to it.
pub(super) fn is_page(path: &str) -> bool {
    path == "/"
}
