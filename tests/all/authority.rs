//! Certificates for tests: good ones and bad ones.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};

/// A CA of a test.
pub struct Authority(CertifiedIssuer<'static, KeyPair>);

/// Until when a certificate holds.
#[derive(Clone, Copy, PartialEq)]
pub enum Holds {
    Still,
    NoMore,
    NotYet,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Self(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    /// Write a certificate for these names and its key. Replies where they are.
    pub fn issue(&self, dir: &Path, file: &str, names: &[&str], holds: Holds) -> (PathBuf, PathBuf) {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name.push(DnType::CommonName, file);
        match holds {
            Holds::Still => {}
            Holds::NoMore => params.not_after = date_time_ymd(2020, 1, 1),
            Holds::NotYet => params.not_before = date_time_ymd(2200, 1, 1),
        }
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.0).expect("signed");
        let (cert_at, key_at) = (dir.join(format!("{file}.pem")), dir.join(format!("{file}.key")));
        std::fs::write(&cert_at, signed.pem()).expect("written");
        std::fs::write(&key_at, key.serialize_pem()).expect("written");
        (cert_at, key_at)
    }

    pub fn write(&self, dir: &Path, file: &str) -> PathBuf {
        let path = dir.join(file);
        std::fs::write(&path, self.0.pem()).expect("written");
        path
    }
}
