//! Notes on the commands that change something at run time, and on those that explain or forecast.

use super::{NONE, Notes};

pub(super) const NOTES: &[Notes] = &[
    Notes {
        name: "set",
        about: "The value is as in config.toml; quotes may be left out for plain text. For one name it is in force when \
                the command returns; for a glob it reaches the buckets that have work within moments.",
        examples: &[
            ("One bucket", "dripd set sms:acme rate=1/s"),
            ("Many, for an hour", "dripd set 'sms:*' rate=1/s capacity=50 --for 1h --reason 'slow carrier'"),
            ("A budget", "dripd set twilio rate=1000/m --budget"),
        ],
        exits: &[(2, "wrong keys or values, or the command line is wrong")],
        ..NONE
    },
    Notes {
        name: "unset",
        examples: &[("Everything that was set", "dripd unset sms:acme"), ("One key", "dripd unset 'sms:*' rate")],
        exits: &[(0, "done, also when nothing was set"), (2, "wrong keys, or the command line is wrong")],
        ..NONE
    },
    Notes {
        name: "pause",
        about: "What it has of jobs stays, and it takes more until it is full. Going on gives no credit.",
        examples: &[
            ("Until `resume`", "dripd pause sms:acme --reason 'their gateway is down'"),
            ("For ten minutes", "dripd pause 'sms:*' --for 10m"),
            ("All that is below a budget", "dripd pause twilio --budget"),
        ],
        ..NONE
    },
    Notes {
        name: "resume",
        about: "It takes away exactly what was paused under that name or glob.",
        examples: &[("Let it go on", "dripd resume sms:acme")],
        exits: &[(1, "nothing was paused under it, or something else still stops the bucket")],
        ..NONE
    },
    Notes {
        name: "slow",
        about: "Jobs stay where they are, and then leave at their rate. It ends by itself, is only ever extended, and lasts \
                no longer than slow.cap of the policy; `pause` has no such bound. Workers that are told to wait do the same. \
                `dripd settings` lists what is in force, and why.",
        examples: &[
            ("The other side asks for half a minute", "dripd slow sms:acme 30s --reason 'HTTP 429'"),
            ("It asks that of all below a budget", "dripd slow sms:acme 30s --in twilio"),
            ("The same, by the name of the budget", "dripd slow twilio 30s --budget"),
            ("Go on now, at the full rate", "dripd slow sms:acme clear"),
        ],
        exits: &[(1, "failed, or there is no such budget")],
        ..NONE
    },
    Notes {
        name: "told",
        about: "Workers do this by themselves: `dripd work --http` reads it from the headers of each answer. What follows is \
                what `told` of the policy says: at 0 nothing leaves until the reset (\"stop\"), or what is left is spread over the \
                time left (\"spread\"). Of several reports the lower one counts until the reset. `dripd explain` shows what is known.",
        examples: &[
            ("Twelve more in the next half minute", "dripd told openai 12 30s --budget"),
            ("And a hundred after each reset", "dripd told sms:acme 12 30s --limit 100"),
            ("Forget it", "dripd told sms:acme clear"),
        ],
        exits: &[(1, "failed, or there is no such budget")],
        ..NONE
    },
    Notes {
        name: "close",
        about: "What waits stays, and leaves at its rate. What is pushed is rejected, reason `closed`.",
        examples: &[
            ("Until `open`", "dripd close sms:acme --reason 'contract ended'"),
            ("For ten minutes", "dripd close 'sms:*' --for 10m"),
        ],
        ..NONE
    },
    Notes {
        name: "open",
        about: "It takes away exactly what was closed under that name or glob.",
        examples: &[("Take jobs again", "dripd open 'sms:*'")],
        exits: &[(1, "nothing was closed under it, or something else still closes the bucket")],
        ..NONE
    },
    Notes {
        name: "settings",
        examples: &[
            ("All of them", "dripd settings"),
            ("Those of some buckets", "dripd settings 'sms:*'"),
            ("As entries for the file, to put before the others there", "dripd settings --toml"),
        ],
        ..NONE
    },
    Notes {
        name: "explain",
        about: "First each level with its rate and where that comes from: a line of the file, somebody who set it, or the \
                default. Then everything that says why the bucket waits. The last line says in words what binds.",
        examples: &[
            ("Why does this one wait?", "dripd explain sms:acme"),
            ("For a script", "dripd explain sms:acme --json | jq -r .binds"),
        ],
        ..NONE
    },
    Notes {
        name: "what-if",
        about: "Nothing is changed. The forecast is exact to one interval, or it says why it is only a lower bound.",
        examples: &[
            ("A slower rate", "dripd what-if sms:acme rate=1/s"),
            ("A push of 500 jobs", "dripd what-if sms:acme --push 500"),
            ("Both, for a script", "dripd what-if sms:acme rate=5/s --push 500 --json"),
        ],
        exits: &[(2, "wrong keys or values, or the command line is wrong")],
        ..NONE
    },
    Notes {
        name: "simulate",
        about: "The traffic runs through the functions themselves, on a throw-away Redis that dripd starts, at simulated \
                times. Nothing of a running system is read or changed.\n\n\
                --load 'NAME: ...' takes, with commas between: N buckets (the * of NAME is the number of each); a RATE \
                such as 2/s for each bucket, or 400/s in all; evenly (the default), poisson, or bursts of N; cost N, or \
                cost N to M, and behind that real N or real P% where workers say what a job really cost; deadline TIME; delay TIME; throttle P% [for TIME] of the tries; fail P% of the others; from TIME; \
                until TIME.\n\n\
                --trace reads a line of JSON for each push: at_ms and bucket, and if wanted jobs, id, cost, delay_ms and \
                ttl_ms. All times count from that of the first line.\n\n\
                --workers '[ROUTE: ]COUNTxTIME' takes: exponential (TIME is the mean), and away FROM to TO.\n\n\
                --assert 'PATTERN FIGURE < VALUE' takes <, <=, > and >=; in place of PATTERN also budget NAME. The figures: \
                wait.p50, wait.p95, wait.p99, wait.max (times); pushed, accepted, rejected, late, dead, waiting (jobs, or \
                % of those that were pushed); rate (as 40/s); use and fairness (% or 0 to 1).",
        examples: &[
            (
                "Two hundred customers that send in bursts, beside the present file",
                "dripd simulate --config new.toml --against config.toml --for 10m \\\n  \
                 --load 'sms:*: 200 buckets, 2/s, bursts of 50' --workers 100x150ms",
            ),
            (
                "A test of a configuration",
                "dripd simulate --load 'sms:*: 200 buckets, 2/s' --for 5m \\\n  \
                 --assert 'sms:* wait.p99 < 30s'",
            ),
            (
                "The traffic of an hour, under another configuration",
                "dripd record --for 1h > trace.jsonl\n\
                 dripd --config new.toml simulate --trace trace.jsonl --plot out.svg",
            ),
        ],
        exits: &[(1, "something is not as expected, or the simulation failed")],
        ..NONE
    },
    Notes {
        name: "record",
        about: "Once a second it asks how many jobs wait in up to 2,000 buckets and how many have left them: a few \
                milliseconds of Redis' time. So each push is known to the second. What waits in a bucket when it is found \
                stands there as pushed then. It does not see ids, costs, delays and deadlines, and takes a job that is \
                tried again for a new one. It finds the buckets with most jobs, at the daemons' next walk over those that \
                have work: what came and left before that is not in the trace, nor are buckets that are always empty when \
                the walk passes. At its end it says how much of what left it has seen.",
        examples: &[("An hour", "dripd record --for 1h > trace.jsonl")],
        ..NONE
    },
];
