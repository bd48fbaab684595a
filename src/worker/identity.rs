//! The identity of a job outside its stream.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_the_id_and_the_beginning_of_the_bucket_s_digest() {
        let name = BucketName::parse(b"acme").expect("a name");
        // printf acme | sha256sum
        assert_eq!(identity("1700000000000-3", &name), "1700000000000-3-822b33ad87c148a0");
    }
}
