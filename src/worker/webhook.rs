//! Signatures of Standard Webhooks: whoever gets a job can tell that it comes from here, unchanged and lately.
//!
//! The signed text is `<webhook-id>.<webhook-timestamp>.<body>`, and both sides know the key. No id has a full stop in it
//! (`identity::signed_id`), and no timestamp has, so that the text can be taken apart in one way only. A file may hold several keys, one a line: a
//! job is signed with all of them, so that a key can be replaced without an interruption.

use std::path::Path;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use ring::hmac::{HMAC_SHA256, Key, sign};
use tracing::warn;

/// Secrets are handed around with and without the `=` at their end.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The mark that a secret may begin with.
const MARK: &str = "whsec_";

/// How many bytes a secret should have by the specification. The common libraries take any number, and so does this one.
const BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// The form of a secret, and how to make one.
const HINT: &str = "a line is whsec_ and the base64 of 24 to 64 random bytes: echo whsec_$(openssl rand -base64 32)";

/// Signs jobs with the secrets of a file.
#[derive(Clone)]
pub struct Signer(Vec<Key>);

impl std::fmt::Debug for Signer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Signer({} secrets)", self.0.len()) // never the secrets
    }
}

impl Signer {
    /// Read the secrets of a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or holds no secret or something else. No error shows a secret.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|why| format!("cannot read {}: {why}", path.display()))?;
        Self::of(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn of(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).zip(1..).filter(|(line, _)| !line.is_empty());
        let keys: Vec<Key> = lines.map(|(line, number)| key(line, number)).collect::<Result<_, _>>()?;
        if keys.is_empty() { Err(format!("no secret is in it; {HINT}")) } else { Ok(Self(keys)) }
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let text = [id.as_bytes(), b".", timestamp.to_string().as_bytes(), b".", body].concat();
        let one = |key| format!("v1,{}", BASE64.encode(sign(key, &text)));
        self.0.iter().map(one).collect::<Vec<_>>().join(" ")
    }
}

fn key(line: &str, number: usize) -> Result<Key, String> {
    let secret = BASE64.decode(line.strip_prefix(MARK).unwrap_or(line));
    let secret = secret.map_err(|_| format!("line {number} is no secret; {HINT}"))?;
    if secret.is_empty() {
        return Err(format!("line {number} is an empty secret; {HINT}"));
    }
    if !BYTES.contains(&secret.len()) {
        warn!(
            line = number,
            bytes = secret.len(),
            "a webhook secret should have 24 to 64 bytes: a short one can be guessed"
        );
    }
    Ok(Key::new(HMAC_SHA256, &secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_that_of_the_specification() {
        // The example of the specification's reference libraries.
        let signer = Signer::of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw\n").expect("a secret");
        assert_eq!(
            signer.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b"{\"test\": 2432232314}"),
            "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
        );
    }

    #[test]
    fn a_file_may_hold_several_secrets_and_each_signs() {
        let (one, two) = ("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "C2FVsBQIhrscChlQIMV+b5sSYspob7oD8s4V5ZlHj0c=");
        let of = |text: &str| Signer::of(text).expect("secrets").sign("id", 1, b"\xff");
        assert_eq!(of(&format!("\n{one}\r\n\n {two}\n")), format!("{} {}", of(one), of(two)));
        assert_ne!(of(one), of(two));
    }

    #[test]
    fn what_is_no_secret_is_refused_without_being_shown() {
        for (text, why) in [
            ("\n\n", "no secret is in it"),
            ("swordfish!", "line 1 is no secret"),
            ("\nwhsec_", "line 2 is an empty secret"),
        ] {
            let said = Signer::of(text).expect_err(text);
            assert!(said.starts_with(why) && said.contains("openssl rand"), "{said}");
            assert!(!said.contains("swordfish"), "{said}");
        }
        assert!(Signer::of("whsec_c3dvcmRmaXNo").is_ok(), "a short one, without padding");
        assert_eq!(
            format!("{:?}", Signer::of("C2FVsBQIhrscChlQIMV+b5sSYspob7oD8s4V5ZlHj0c=")),
            "Ok(Signer(1 secrets))"
        );
    }
}
