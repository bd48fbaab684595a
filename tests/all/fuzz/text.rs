//! Texts: configurations, rates, durations, names, parents, quotas, globs, settings.

use dripd::config::{Config, Environment, settings};
use dripd::model::bucket::BucketName;
use dripd::model::glob::Glob;
use dripd::model::parent::Parent;
use dripd::model::quota::Quota;
use dripd::model::rate::Rate;
use dripd::model::subject::Subject;
use dripd::model::{duration, glob};
use proptest::prelude::*;

use super::{bytes_like, cases, damage, damaged, text_like};
use crate::rig::Case;

/// The file that is installed, with each key in it switched on.
fn whole_file() -> Vec<u8> {
    let lines = include_str!("../../../config.toml").lines();
    let on = |line: &str| line.strip_prefix("# ").filter(|rest| rest.contains(" = ")).unwrap_or(line).to_owned();
    lines.map(on).collect::<Vec<_>>().join("\n").into_bytes()
}

const TREE: &str = "[defaults]\nrate = '5/s'\ncapacity = 10\n[[budget]]\nmatch = 'a:*'\nrate = '50/s'\nweight = 2\n\
    concurrency = 5\nquota = ['100/d', '5/m']\n[[bucket]]\nmatch = 'a:*:*'\nwithin = 'a:{2}'\nroute = 'r'\noverflow = 'drop-oldest'\n\
    backoff = { initial = '1s', max = '9s' }\nadmit = { fixed-window = '5/s' }\n[http]\nlisten = '127.0.0.1:0'\nhosts = ['x']\n\
    [redis]\nurl = 'redis://u:p@h:1/2'\nprefix = 'p'\n[limits]\nbatch = 5\n[slow]\ncap = '1m'\n";

proptest! {
    #![proptest_config(cases(1_500))]

    /// A configuration is good, or every problem is a line. What is good is taken by the functions, too.
    #[test]
    fn a_configuration_is_taken_whole_or_refused_in_words(
        is_tree in any::<bool>(), damages in prop::collection::vec(damage(), 0..4)
    ) {
        thread_local!(static CASE: std::cell::RefCell<Case> = std::cell::RefCell::new(Case::new()));
        let bytes = damaged(if is_tree { TREE.as_bytes().to_vec() } else { whole_file() }, &damages);
        let text = String::from_utf8_lossy(&bytes);
        match Config::parse(&text, None, &Environment::default()) {
            Ok(config) => CASE.with_borrow_mut(|case| {
                let id = format!("{:016x}", crate::rig::rand_u64());
                let taken: i64 = case.fcall("drip__policy", &["policy"], &["", &id, &config.record.to_json(), "replace"]);
                prop_assert_eq!(taken, 1);
                Ok(())
            })?,
            Err(why) => {
                let said = why.to_string();
                prop_assert!(said.lines().count() > 1 && said.lines().all(|line| !line.trim().is_empty()), "{}", said);
            }
        }
    }

    /// A rate, a duration, a quota, a parent that is read is written so that it is read again as the same.
    #[test]
    fn what_is_read_is_written_as_it_is_read(
        rate in text_like(&["5/s", "30/60s", "1/500ms", "50000000/366d", "1/1ms"]),
        time in text_like(&["1us", "20ms", "366d", "0s", "999999999999999h"]),
        quota in text_like(&["100/d", "5/m", "1000/month", "5/30d"]),
        parent in text_like(&["a", "{1}", "a:{2}:b", "{name}", "twilio:{2}", "{", "{0}", "{99999999999999999999}"]),
    ) {
        if let Ok(read) = Rate::parse(&rate) {
            prop_assert_eq!(Rate::parse(&read.to_string()), Ok(read), "{}", rate);
        }
        if let Some(read) = duration::parse(&time) {
            prop_assert_eq!(duration::parse(&duration::show(read)), Some(read), "{}", time);
            let _ = (duration::about(read), duration::say(read), duration::rough(read));
        }
        if let Ok(read) = Quota::parse(&quota) {
            prop_assert_eq!(Quota::parse(&read.to_string()), Ok(read), "{}", quota);
        }
        if let Ok(read) = Parent::parse(&parent) {
            prop_assert_eq!(read.as_str(), &parent);
            let _ = (read.highest(), read.glob());
        }
    }

    /// The program and the functions agree on what is a name.
    #[test]
    fn a_name_is_one_for_the_program_and_for_the_functions(name in bytes_like(&["a", "sms:acme", "é", "a b", "{x}", "\u{7f}", "\u{85}"])) {
        thread_local!(static CASE: std::cell::RefCell<Case> = std::cell::RefCell::new(Case::with("")));
        let is_good = BucketName::parse(&name).is_ok();
        CASE.with_borrow_mut(|case| {
            let key = [case.key("queue:").as_bytes(), &name].concat();
            let peeked: Result<Vec<i64>, _> = redis::cmd("FCALL").arg("drip_peek").arg(1).arg(&key).query(&mut case.redis);
            match peeked {
                Ok(_) => prop_assert!(is_good, "{:?}", name),
                Err(why) => {
                    prop_assert!(!is_good, "{:?}: {}", name, why);
                    prop_assert!(matches!(why.code(), Some("BADBUCKET" | "BADARG")), "{}", why);
                }
            }
            Ok(())
        })?;
    }

    /// A glob of any bytes is matched as Redis would, or at least without a word and at once.
    #[test]
    fn any_glob_meets_any_name(
        pattern in text_like(&["*", "a*b*c", "[a-z]", "[^", "\\", "a?[", "********************a"]),
        name in bytes_like(&["a", "abc", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"]),
    ) {
        let parsed = Glob::parse(&pattern);
        let _ = (parsed.matches(&name), parsed.meets(&Glob::parse("a*")), Glob::stars(&pattern));
        if let Ok(text) = std::str::from_utf8(&name) {
            prop_assert!(Glob::parse(&glob::of_name(text)).matches(&name), "{:?}", text);
        }
    }

    /// Settings as they are typed.
    #[test]
    fn settings_are_read_whole_or_refused_in_words(
        words in prop::collection::vec(text_like(&[
            "rate=5/s", "capacity=10", "quota=['5/m']", "backoff={initial='1s'}", "within=a:{2}", "slow.cap=1m", "rate", "=", "admit={}",
        ]), 0..4),
        is_budget in any::<bool>(),
    ) {
        let subject = Subject { pattern: "a:b:c", is_budget };
        if let Err(why) = settings::parse(&words, &subject) {
            prop_assert!(why.to_string().lines().count() > 1, "{}", why);
        }
        let _ = settings::parse_keys(&words, is_budget);
    }
}
