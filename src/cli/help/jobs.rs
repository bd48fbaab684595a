//! Notes on the commands that handle jobs.

use super::{NONE, Notes};

pub(super) const NOTES: &[Notes] = &[
    Notes {
        name: "push",
        examples: &[
            ("One job into the bucket acme", "dripd push acme hello"),
            ("A job from each line of a file", "dripd push acme --file jobs.txt --rejected rejected.txt"),
            ("The bucket is a field of each JSON line", "dripd push --file jobs.ndjson --bucket-from .tenant"),
            ("From a pipe of any length, waiting for room", "generate | dripd push acme --file - --wait"),
            ("Go on where an interrupted push stopped", "dripd push acme --file jobs.txt --from-line 5001"),
            (
                "Lines with ids and costs of their own: pushing the file again doubles nothing",
                "dripd push acme --file jobs.ndjson --id-from .order --cost-from .tokens",
            ),
            ("Once, however often it is sent", "dripd push acme hello --id order-7"),
            (
                "In ten minutes, and not if it cannot leave within a minute of that",
                "dripd push acme hello --delay 10m --ttl 1m",
            ),
        ],
        exits: &[
            (0, "all jobs were accepted"),
            (1, "failed, lines were skipped, or the outcome of a call is not known"),
            (75, "some jobs were rejected, or Redis takes none now: try again later"),
            (130, "interrupted; it says what was accepted and where to go on"),
        ],
        ..NONE
    },
    Notes {
        name: "job",
        about: "A job is known by the id that it was pushed with, as long as it waits, and after that for as long as `dedup` says.",
        examples: &[
            ("Whether it still waits", "dripd job find acme order-7"),
            ("Take it back", "dripd job cancel acme order-7"),
        ],
        ..NONE
    },
    Notes {
        name: "job find",
        examples: &[("As JSON", "dripd job find acme order-7 --json")],
        exits: &[(0, "it waits, or has left"), (1, "failed, or nothing is known of it")],
        ..NONE
    },
    Notes {
        name: "job cancel",
        examples: &[
            ("One job", "dripd job cancel acme order-7"),
            ("All that wait for their time", "dripd job cancel acme --delayed"),
        ],
        exits: &[(0, "cancelled"), (1, "failed, or it has left, or nothing is known of it")],
        ..NONE
    },
    Notes {
        name: "work",
        about: "What a command that is ended says by its exit code does not count: after --timeout the job has failed, and on a stop \
                it is given back. Up to 64 KiB of the answer to a post are read, so that its connection is used again. \
                Where `$OTEL_EXPORTER_OTLP_ENDPOINT` names a collector of OpenTelemetry, spans of reads and jobs are sent \
                there. Other variables of OpenTelemetry say how.",
        examples: &[
            ("A command for each job, four at a time", "dripd work --concurrency 4 --exec ./send-mail"),
            ("A line for the shell for each job", "dripd work --exec 'jq .to | xargs notify'"),
            (
                "Post each job, signed, with a header of your own",
                "dripd work --http https://example.org/hook --secret-file hook.secret \\\n    --header-file login --header 'X-Team: mail'",
            ),
            ("See what drips out", "dripd work --print"),
        ],
        exits: &[
            (0, "stopped by TERM or INT; what was not finished is given back"),
            (130, "a second TERM or INT ended it at once"),
        ],
        ..NONE
    },
    Notes {
        name: "status",
        examples: &[
            ("Everything", "dripd status"),
            ("One bucket", "dripd status acme"),
            ("For a script", "dripd status --json | jq .daemons"),
        ],
        exits: &[(0, "it says how all stands"), (1, "failed"), (75, "it does, and Redis refuses writes now")],
        ..NONE
    },
    Notes {
        name: "top",
        about: "The order is that of the last walk over all buckets, and the title says how old that is; the figures in the rows \
                are asked for each second. That is at most five short calls of Redis, whatever the number of buckets, and one more \
                for each 64 rows that a terminal has beyond the first. The first thousand of each order can be reached. \
                Keys: ? lists them, q ends.",
        examples: &[
            ("Which buckets take longest to be empty?", "dripd top"),
            ("Which of a customer's reject most?", "dripd top --match 'acme:*' --by rejected"),
            ("Which budgets hold others back?", "dripd top --budgets"),
        ],
        exits: &[
            (0, "ended by q, Esc or Ctrl-C"),
            (2, "the command line is wrong, or there is no terminal to draw on"),
            (130, "ended by TERM, INT or HUP"),
        ],
        more: &[(
            "KEYS",
            &[
                ("q, Esc, Ctrl-C", "end"),
                (
                    "Up, Down, k, j, PgUp, PgDn, Home, End",
                    "select a row; the selection keeps its name when the order changes",
                ),
                ("e, d, r, l; s", "the order: empty, depth, rejected, late; the next one"),
                ("/", "filter by a glob, or by a part of the name; an empty one shows all"),
                ("Space", "freeze the picture, go on"),
                ("p", "pause the selected one, or resume it; asks first"),
                ("Enter", "why it waits, whole, as `dripd explain` says it"),
                ("b", "budgets, and back"),
                ("?", "the keys"),
            ],
        )],
        ..NONE
    },
    Notes {
        name: "limit",
        examples: &[
            ("At most five logins a minute", "dripd limit sliding-window login:alice 5/60s && login alice"),
            ("Wait until it is allowed", "dripd limit token-bucket api 10/s --capacity 50 --wait"),
            ("Only look", "dripd limit fixed-window mails 100/d --aligned --quantity 0 --json"),
        ],
        exits: &[(0, "allowed"), (1, "failed, or more at once than can ever pass"), (75, "refused: try again later")],
        ..NONE
    },
    Notes {
        name: "purge",
        about: "It is one step: what is pushed afterwards stays. Jobs that are with workers, or ready for them, \
                are not called back.",
        examples: &[
            ("Ask first, naming the count", "dripd purge acme"),
            ("In a script, with the jobs that wait for another try", "dripd purge acme --retries --yes"),
        ],
        exits: &[(0, "done, or nothing was there"), NOT_DONE, NOBODY_TO_ASK],
        ..NONE
    },
    Notes {
        name: "dead",
        examples: &[
            ("The jobs that were given up, and why", "dripd dead list"),
            ("Another try for all that failed for one reason", "dripd dead retry --reason 'HTTP 5*'"),
            ("Drop what is older than a week, in a script", "dripd dead drop --before 7d --yes"),
        ],
        exits: &[NOT_DONE],
        ..NONE
    },
    Notes {
        name: "dead list",
        about: "--json prints an object a line: entry, at, malformed, bucket, attempt, id, identity (the id as workers \
                and logs know it), reason, job, bytes (of the job), others (fields that no dead letter of dripd's has). \
                What is no UTF-8 stands in base64 instead: job_base64, bucket_base64, reason_base64.",
        examples: &[
            ("The oldest of some buckets", "dripd dead list --bucket 'sms:*' --limit 20"),
            ("All of them, for a script", "dripd dead list --limit 1000000 --json | jq -r .reason"),
        ],
        exits: &[(0, "shown, also where there is none")],
        ..NONE
    },
    Notes {
        name: "dead retry",
        about: TWICE,
        examples: &[
            ("One job", "dripd dead retry --id 1750000000000-0"),
            ("All of one bucket, in a script", "dripd dead retry --bucket sms:acme --yes"),
        ],
        exits: &[
            (0, "done, also where there is none"),
            (1, "failed, not confirmed, or some could not be put back"),
            NOBODY_TO_ASK,
        ],
        ..NONE
    },
    Notes {
        name: "dead drop",
        about: TWICE,
        examples: &[("What died more than a month ago", "dripd dead drop --before 30d")],
        exits: &[(0, "done, also where there is none"), NOT_DONE, NOBODY_TO_ASK],
        ..NONE
    },
];

const NOT_DONE: (u8, &str) = (1, "failed, or not confirmed");
const NOBODY_TO_ASK: (u8, &str) = (2, "the command line is wrong, or nobody can be asked: --yes");

const TWICE: &str = "It asks first, naming the count, and acts on what was there when it counted. What it was killed in the \
                     middle of may be run again: each job is put back, or dropped, once.";
