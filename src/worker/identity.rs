//! The identity of a job outside its stream.

use std::borrow::Cow;

use ring::digest::{SHA256, digest};

use crate::model::bucket::BucketName;

/// How many bytes of the digest are shown, two digits each.
const DIGEST_CHARS: usize = 8;

/// `<id>-<h>`, h the first 16 hex digits of the SHA-256 of the bucket's name: the ids of entries are unique in one stream
/// only, and whoever gets jobs of several streams must be able to tell them apart.
pub fn identity(id: &str, bucket: &BucketName) -> String {
    let digest = digest(&SHA256, bucket.as_str().as_bytes());
    digest.as_ref()[..DIGEST_CHARS].iter().fold(format!("{id}-"), |text, byte| text + &format!("{byte:02x}"))
}

/// The id of a job in what is signed: its identity where that has no other characters than A-Z, a-z, 0-9, `_` and `-`, else the
/// SHA-256 of it, 64 hex digits. A producer chooses ids: with a full stop in it the signed text `<id>.<timestamp>.<body>` could be read
/// in several ways. The two forms never meet, for each identity has a `-`.
pub(super) fn signed_id(identity: &str) -> Cow<'_, str> {
    if identity.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-')) {
        return identity.into();
    }
    let hex = |text: String, byte: &u8| text + &format!("{byte:02x}");
    digest(&SHA256, identity.as_bytes()).as_ref().iter().fold(String::new(), hex).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_signed_has_no_full_stop_and_no_two_identities_share_one() {
        for plain in ["1700000000000-3-822b33ad87c148a0", "order_7-822b33ad87c148a0"] {
            assert_eq!(signed_id(plain), plain);
        }
        // printf a.1-822b33ad87c148a0 | sha256sum
        let hex = "8538fcc4996dcbbba94209d653aa3ef5be2dbcc8083a2eb4d96da20be52af3a2";
        assert_eq!(signed_id("a.1-822b33ad87c148a0"), hex);
        // Somebody whose id is that digest is somebody else.
        assert_ne!(signed_id(&format!("{hex}-822b33ad87c148a0")), hex);
        let odd = ["a.b", "a b", "a,b", "ü", "a\n", "a\u{0}", "", "a:b", "a/b", "a+b", "a=b"];
        let signed = odd.map(|id| signed_id(&format!("{id}-822b33ad87c148a0")).into_owned());
        let is_safe = |id: &String| id.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
        assert!(signed.iter().all(is_safe), "{signed:?}");
        assert_eq!(signed.iter().collect::<std::collections::HashSet<_>>().len(), odd.len());
    }

    #[test]
    fn an_identity_is_the_id_and_the_beginning_of_the_bucket_s_digest() {
        let name = BucketName::parse(b"acme").expect("a name");
        // printf acme | sha256sum
        assert_eq!(identity("1700000000000-3", &name), "1700000000000-3-822b33ad87c148a0");
    }
}
