//! Notes on the program itself, on the daemon, and on what surrounds it.

use super::{NONE, Notes};

pub(super) const NOTES: &[Notes] = &[
    Notes {
        name: "dripd",
        examples: &[
            ("A daemon with its built-in Redis", "dripd run"),
            ("A producer and a worker, in other terminals", "dripd push acme hello\ndripd work --print"),
            ("Help for one command, with examples", "dripd push --help"),
        ],
        exits: &[
            (1, "failed; also: the outcome of a push is not known"),
            (75, "rejected, or Redis refuses writes now: try again later"),
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
                    (
                        "DRIPD_REDIS_URL",
                        "overrides redis.url of the configuration: redis://, rediss:// (TLS) or unix://",
                    ),
                    (
                        "DRIPD_<SECTION>_<KEY>",
                        "sets any key, over the file: DRIPD_LIMITS_BATCH=50, DRIPD_BUCKET_2_RATE=5/s",
                    ),
                    ("RUST_LOG", "how much is logged: error, warn, info or debug"),
                    ("NO_COLOR", "when it is set and not empty, nothing is coloured"),
                ],
            ),
        ],
        ..NONE
    },
    Notes {
        name: "run",
        examples: &[
            ("With the built-in Redis on 127.0.0.1:7379, its data in ./dripd-data", "dripd run"),
            ("With a Redis of your own", "DRIPD_REDIS_URL=redis://10.0.0.5:6379 dripd run"),
            (
                "The same by TLS, with a CA that this system trusts",
                "DRIPD_REDIS_URL=rediss://redis.example.com:6380 dripd run",
            ),
            ("For a log collector", "dripd --config /etc/dripd/config.toml run --log-format json"),
        ],
        exits: &[
            (0, "stopped by TERM or INT"),
            (1, "the system does not give what a daemon needs"),
            (69, "Redis could not be used once within 30 s of the start"),
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
        ..NONE
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
            (69, "Redis is away, or partition 0: it will be live when that is back"),
            (78, "it is bad: every problem is named, and the old one stays"),
        ],
        ..NONE
    },
    Notes {
        name: "healthcheck",
        about: "It asks where http.listen says, so it needs the configuration of the daemon, or its variables; where systemd passes the \
                socket, DRIPD_HTTP_LISTEN names it.",
        examples: &[
            ("The health check of a container", "healthcheck: { test: [CMD, dripd, healthcheck] }"),
            ("Whether it serves Redis", "dripd healthcheck --ready"),
            ("Where dripd.socket listens", "DRIPD_HTTP_LISTEN=unix:/run/dripd-http.sock dripd healthcheck"),
        ],
        exits: &[
            (0, "it is well"),
            (1, "it is not, or does not answer within 3 s"),
            (78, "http.listen is \"\", or the file cannot be read"),
        ],
        without: &[69],
        ..NONE
    },
    Notes {
        name: "check",
        examples: &[
            ("The configuration that every command finds here", "dripd check"),
            ("Another file", "dripd check new.toml && mv new.toml config.toml && dripd reload"),
        ],
        exits: &[(0, "it is good")],
        without: &[1, 69],
        ..NONE
    },
    Notes {
        name: "functions",
        examples: &[("Load the library by hand", "dripd functions | redis-cli -x FUNCTION LOAD REPLACE")],
        exits: &[(0, "printed"), (1, "it could not be written")],
        without: &[69, 78],
        ..NONE
    },
    Notes {
        name: "acl",
        about: "It is one line for redis-cli: put a password in place of PASSWORD. If a user of that name exists, the line replaces all its \
                rights and passwords. Save the users, or a restart of Redis forgets them: ACL SAVE if Redis has an aclfile, else \
                CONFIG REWRITE. Run it again after an upgrade, before the new daemons start. In an aclfile begin the line with \
                `user` in place of ACL SETUSER. Limiters get the keys that begin with `limit:`; write your own pattern in place of \
                that. A producer may only LPUSH; a submitter may push by function, and ask limiters; a worker may take jobs and \
                say what became of them; an observer may read everything, jobs too; an operator may also change settings, purge \
                buckets, and retry or drop dead jobs; a daemon may do all of that.",
        examples: &[
            ("The rights of a worker", "dripd acl worker"),
            (
                "Make a user, with the password of a file: Redis keeps its SHA-256",
                "hash=$(tr -d '\\n' < pw | sha256sum | cut -c1-64)\n\
                 dripd acl producer --user billing | sed \"s/>PASSWORD/#$hash/\" | redis-cli",
            ),
        ],
        exits: &[(0, "printed"), (1, "it could not be written")],
        without: &[69],
        ..NONE
    },
    Notes {
        name: "partition",
        about: "With redis.partitions the keys of a system are cut into so many partitions, and a bucket lives in one of them: CRC16 of its \
                tag, modulo their number. The tag is the name, or with redis.partition_by its first parts. So a cluster client, or \
                CLUSTER KEYSLOT, tells the same. Redis is not asked. The number of partitions is chosen once: to change it, \
                docs/partitions.md has the steps.",
        examples: &[
            ("The number of a bucket's partition", "dripd partition acme"),
            ("A plain push", "redis-cli LPUSH \"$(dripd partition --key acme)\" '{\"to\":1}'"),
            ("The key slot of each partition, to deal slots out evenly", "dripd partition --slots"),
        ],
        exits: &[(0, "printed")],
        without: &[1, 69],
        ..NONE
    },
    Notes {
        name: "completions",
        examples: &[
            ("bash", "dripd completions bash > ~/.local/share/bash-completion/completions/dripd"),
            ("zsh, in a directory of $fpath", "dripd completions zsh > ~/.zfunc/_dripd"),
            ("fish", "dripd completions fish > ~/.config/fish/completions/dripd.fish"),
        ],
        exits: &[(0, "printed"), (1, "it could not be written")],
        without: &[69, 78],
        ..NONE
    },
    Notes {
        name: "man",
        examples: &[("Read a page without installing it", "dripd man /tmp/man && man /tmp/man/dripd-push.1")],
        exits: &[(0, "written"), (1, "they could not be written")],
        without: &[69, 78],
        ..NONE
    },
    Notes {
        name: "demo",
        about: "It takes 18 seconds and starts a Redis and daemons of its own, which end with it; nothing else is \
                touched. A pipe, TERM=dumb or NO_COLOR: plain lines, one a second.",
        examples: &[
            ("Watch it", "dripd demo"),
            ("As plain lines", "dripd demo | cat"),
            ("Budgets: three accounts share a provider", "dripd demo tree"),
        ],
        exits: DEMO_EXITS,
        without: &[78],
        ..NONE
    },
    Notes {
        name: "demo tree",
        about: "A provider takes 60 jobs a second, and three accounts want more. A flood comes for one of them, then the \
                provider answers 429. It takes 15 seconds and starts a Redis and a daemon of its own, which end with it.",
        examples: &[("Watch it", "dripd demo tree"), ("As plain lines", "dripd demo tree | cat")],
        exits: DEMO_EXITS,
        without: &[78],
        ..NONE
    },
];

/// The exit codes of a demo.
const DEMO_EXITS: &[(u8, &str)] = &[
    (0, "all promises were kept"),
    (1, "one was broken"),
    (69, "there is no Redis to run"),
    (130, "interrupted (Ctrl-C)"),
];
