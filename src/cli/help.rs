//! What every help ends with: examples and exit codes. One table, from which the helps and the man pages are made.

/// The notes of one command.
pub(super) struct Notes {
    /// The command; the program itself is `dripd`.
    pub(super) name: &'static str,
    /// What for, and the command lines.
    pub(super) examples: &'static [(&'static str, &'static str)],
    /// Exit codes and what they mean here.
    pub(super) exits: &'static [(u8, &'static str)],
    /// What only the man page has: headings, and under each terms and what they mean.
    pub(super) more: &'static [(&'static str, &'static [(&'static str, &'static str)])],
}

impl Notes {
    /// The notes of a command, by its name.
    pub(super) fn of(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|notes| notes.name == name)
    }

    /// As a help shows them.
    pub(super) fn text(&self) -> String {
        let mut text = "Examples:\n".to_owned();
        for (purpose, lines) in self.examples {
            text += &format!("  {purpose}:\n");
            lines.lines().for_each(|line| text += &format!("      {line}\n"));
        }
        text += "\nExit codes:\n";
        for (code, meaning) in self.exits {
            text += &format!("  {code:<4} {meaning}\n");
        }
        text
    }
}

const USAGE: (u8, &str) = (2, "the command line is wrong");
const NO_REDIS: (u8, &str) = (69, "Redis cannot be used: away, password refused, too old, a wrong key");
const BAD_CONFIG: (u8, &str) = (78, "the configuration is bad; every problem is named");

const ALL: &[Notes] = &[
    Notes {
        name: "dripd",
        examples: &[
            ("A daemon with its built-in Redis", "dripd run"),
            ("A producer and a worker, in other terminals", "dripd push acme hello\ndripd work --print"),
            ("Help for one command, with examples", "dripd push --help"),
        ],
        exits: &[
            (0, "done"),
            (1, "failed; also: the outcome of a push is not known"),
            USAGE,
            NO_REDIS,
            (75, "rejected: try again later"),
            BAD_CONFIG,
            (130, "interrupted"),
        ],
        more: &[
            (
                "FILES",
                &[
                    ("./config.toml, /etc/dripd/config.toml", "the configuration; the first of them that is there"),
                    ("./dripd-data, /var/lib/dripd", "the data of the built-in Redis, by hand and as a service"),
                    ("/etc/credstore/redis-password", "the password of Redis, for the service"),
                ],
            ),
            (
                "ENVIRONMENT",
                &[
                    ("DRIPD_CONFIG", "the configuration file, unless --config names one"),
                    ("DRIPD_REDIS_URL", "overrides redis.url of the configuration"),
                    ("RUST_LOG", "how much is logged: error, warn, info or debug"),
                    ("NO_COLOR", "when it is set and not empty, nothing is coloured"),
                ],
            ),
        ],
    },
    Notes {
        name: "run",
        examples: &[
            ("With the built-in Redis on 127.0.0.1:7379, its data in ./dripd-data", "dripd run"),
            ("With a Redis of your own", "DRIPD_REDIS_URL=redis://10.0.0.5:6379 dripd run"),
            ("For a log collector", "dripd --config /etc/dripd/config.toml run --log-format json"),
        ],
        exits: &[
            (0, "stopped by TERM or INT"),
            (1, "the system does not give what a daemon needs"),
            USAGE,
            (69, "Redis could not be used once within 30 s of the start"),
            BAD_CONFIG,
            (130, "a second TERM or INT ended it at once"),
        ],
        more: &[(
            "SIGNALS",
            &[
                ("TERM, INT", "finish the call in hand and stop within 5 s; a second one ends it at once"),
                ("HUP", "read the configuration again; a bad one is refused and the old one stays"),
                ("USR1", "say in the log how things stand"),
            ],
        )],
    },
    Notes {
        name: "push",
        examples: &[
            ("One job into the bucket acme", "dripd push acme hello"),
            ("A job from each line of a file", "dripd push acme --file jobs.txt --rejected rejected.txt"),
            ("The bucket is a field of each JSON line", "dripd push --file jobs.ndjson --bucket-from .tenant"),
            ("From a pipe of any length, waiting for room", "generate | dripd push acme --file - --wait"),
            ("Go on where an interrupted push stopped", "dripd push acme --file jobs.txt --from-line 5001"),
        ],
        exits: &[
            (0, "all jobs were accepted"),
            (1, "failed, lines were skipped, or the outcome of a call is not known"),
            USAGE,
            NO_REDIS,
            (75, "some jobs were rejected: try again later"),
            BAD_CONFIG,
            (130, "interrupted; it says what was accepted and where to go on"),
        ],
        more: &[],
    },
    Notes {
        name: "work",
        examples: &[
            ("A command for each job, four at a time", "dripd work --concurrency 4 --exec ./send-mail"),
            ("A line for the shell for each job", "dripd work --exec 'jq .to | xargs notify'"),
            (
                "Post each job, signed, with a header of your own",
                "dripd work --http https://example.org/hook --secret-file hook.secret \\\n    --header 'X-Team: mail'",
            ),
            ("See what drips out", "dripd work --print"),
        ],
        exits: &[
            (0, "stopped by TERM or INT; what was not finished is given back"),
            (1, "failed"),
            USAGE,
            NO_REDIS,
            BAD_CONFIG,
            (130, "a second TERM or INT ended it at once"),
        ],
        more: &[],
    },
    Notes {
        name: "status",
        examples: &[
            ("Everything", "dripd status"),
            ("One bucket", "dripd status acme"),
            ("For a script", "dripd status --json | jq .daemons"),
        ],
        exits: &[(0, "done"), (1, "failed"), USAGE, NO_REDIS, BAD_CONFIG],
        more: &[],
    },
    Notes {
        name: "limit",
        examples: &[
            ("At most five logins a minute", "dripd limit sliding-window login:alice 5/60s && login alice"),
            ("Wait until it is allowed", "dripd limit token-bucket api 10/s --capacity 50 --wait"),
            ("Only look", "dripd limit fixed-window mails 100/d --aligned --quantity 0 --json"),
        ],
        exits: &[
            (0, "allowed"),
            (1, "failed, or more at once than can ever pass"),
            USAGE,
            NO_REDIS,
            (75, "refused: try again later"),
            BAD_CONFIG,
        ],
        more: &[],
    },
    Notes {
        name: "reload",
        examples: &[
            ("The daemon that reads the configuration found here", "dripd reload"),
            ("The daemon that reads another file", "dripd reload --config /etc/dripd/config.toml"),
            ("As a service", "systemctl reload dripd"),
        ],
        exits: &[
            (0, "the new configuration is live"),
            (1, "no daemon reads it, or it is not live yet"),
            USAGE,
            (78, "it is bad: every problem is named, and the old one stays"),
        ],
        more: &[],
    },
    Notes {
        name: "check",
        examples: &[
            ("The configuration that every command finds here", "dripd check"),
            ("Another file", "dripd check new.toml && mv new.toml config.toml && dripd reload"),
        ],
        exits: &[(0, "it is good"), USAGE, BAD_CONFIG],
        more: &[],
    },
    Notes {
        name: "functions",
        examples: &[("Load the library by hand", "dripd functions | redis-cli -x FUNCTION LOAD REPLACE")],
        exits: &[(0, "printed"), (1, "it could not be written"), USAGE],
        more: &[],
    },
    Notes {
        name: "completions",
        examples: &[
            ("bash", "dripd completions bash > ~/.local/share/bash-completion/completions/dripd"),
            ("zsh, in a directory of $fpath", "dripd completions zsh > ~/.zfunc/_dripd"),
            ("fish", "dripd completions fish > ~/.config/fish/completions/dripd.fish"),
        ],
        exits: &[(0, "printed"), (1, "it could not be written"), USAGE],
        more: &[],
    },
    Notes {
        name: "man",
        examples: &[("Read a page without installing it", "dripd man /tmp/man && man /tmp/man/dripd-push.1")],
        exits: &[(0, "written"), (1, "they could not be written"), USAGE],
        more: &[],
    },
    Notes {
        name: "demo",
        examples: &[("Watch it for some seconds", "dripd demo"), ("As plain lines", "dripd demo | cat")],
        exits: &[
            (0, "all promises were kept"),
            (1, "one was broken"),
            USAGE,
            (69, "there is no Redis to run"),
            (130, "interrupted"),
        ],
        more: &[],
    },
];
