//! `dripd acl`: the rights of a role, for `ACL SETUSER`.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};

use super::{Exit, Failure, print, say_err};
use crate::config::Config;
use crate::config::connection::Place;
use crate::store::acl::Role;

/// `dripd acl <role>`.
#[derive(Debug, Args)]
pub(super) struct Acl {
    /// What the user is for
    #[arg(value_parser = PossibleValuesParser::new(Role::ALL.map(Role::as_str)).map(|name| Role::parse(&name).expect("one of them")))]
    role: Role,
    /// The name of the user [default: the name of the role]
    #[arg(long, value_name = "NAME", value_parser = user)]
    user: Option<String>,
}

/// Check that a user's name is one word, for redis-cli and in an aclfile, and is not `default`.
fn user(text: &str) -> Result<String, &'static str> {
    let is_odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '"' | '\'');
    if text.is_empty() || text.contains(is_odd) {
        return Err("write a name without spaces, quotes and control characters");
    }
    if text == "default" {
        return Err(
            "default is the user of everybody who names none, and the command would lock you out; write another name",
        );
    }
    Ok(text.to_owned())
}

impl Acl {
    pub(super) fn run(&self, config: &Config) -> Result<Exit, Failure> {
        let user = self.user.as_deref().unwrap_or(self.role.as_str());
        if let Place::Cluster(_) = config.redis.place {
            say_err("load it on every node of the cluster, replicas too: a cluster does not pass users on");
        }
        print(format!("{}\n", self.role.set_user(user, &config.redis, &config.record.routes)).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::user;

    #[test]
    fn a_user_s_name_is_one_word_and_not_everybody_s() {
        assert_eq!(user("billing-1"), Ok("billing-1".to_owned()));
        for bad in ["", "a b", "a\nb", "\"a\"", "it's", "default"] {
            assert!(user(bad).is_err(), "{bad:?}");
        }
    }
}
