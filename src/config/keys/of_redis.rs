//! The keys of `[redis]`.

use super::{Allowed, Key, key};
use crate::config::server::{PARTITION_BY_HINT, PARTITIONS_HINT, PREFIX_HINT};

/// What a URL looks like, for error messages.
pub(in crate::config) const URL_HINT: &str =
    "write redis://[user:password@]host[:port][/db], rediss:// for TLS, or unix:///path/to/redis.sock";

/// What a list of servers looks like.
const NODES_HINT: &str = "write a list of host:port, as in [\"10.0.0.1:6379\", \"10.0.0.2:6379\"]";
const SENTINELS_HINT: &str = "write a list of host:port, as in [\"10.0.0.1:26379\", \"10.0.0.2:26379\"]";

/// `[redis]`.
pub const REDIS: &[Key] = &[
    key(
        "url",
        "",
        Allowed::Words(URL_HINT),
        "Where your Redis is. Without it, `sentinel` and `cluster`, dripd starts and supervises its built-in Redis. `$DRIPD_REDIS_URL` overrides it.",
    ),
    key(
        "sentinel",
        "",
        Allowed::Table(REDIS_SENTINEL),
        "Instead of `url`: the sentinels that know which server is the primary.",
    ),
    key(
        "cluster",
        "",
        Allowed::Words(NODES_HINT),
        "Instead of `url`: some nodes of a Redis Cluster. Any of them names all the others. It needs `partitions`.",
    ),
    key(
        "tls",
        "",
        Allowed::Table(REDIS_TLS),
        "The certificates for TLS, where `url` begins with `rediss://`. With `sentinel` or `cluster` this table is what switches TLS on, to the sentinels too; `{}` is enough.",
    ),
    key(
        "user",
        "",
        Allowed::Words("write the name of a user of Redis"),
        "The user of Redis that dripd logs in as, where `url` names none. If neither names one it is the user `default`.",
    ),
    key(
        "password_file",
        "",
        Allowed::Words("write the path of a file"),
        "A file whose content is the password. It is read again at every connect. Under systemd a plain name may be that of a credential, \
         and the credential `redis-password` is found by itself.",
    ),
    key(
        "prefix",
        "\"drip\"",
        Allowed::Words(PREFIX_HINT),
        "What every key begins with. Give each dripd its own prefix where several share a Redis: at most four.",
    ),
    key(
        "partitions",
        "1",
        Allowed::Words(PARTITIONS_HINT),
        "Into how many partitions the keys are cut, each under a number of its own: the unit in which a system grows over several servers. \
         Chosen once.",
    ),
    key(
        "partition_by",
        "",
        Allowed::Words(PARTITION_BY_HINT),
        "How many of the first parts of a name, split at `:`, say in which partition it lives. Without it the whole name does. With \
         `partitions`, `within` needs it: a bucket and its budgets live in one partition.",
    ),
    key(
        "data_dir",
        "\"./dripd-data\"",
        Allowed::Words("the path of a directory"),
        "Where the built-in Redis keeps its data. Under systemd `$STATE_DIRECTORY` is the default.",
    ),
    key("port", "7379", Allowed::Words("a port, 1 to 65535"), "The port of the built-in Redis, on 127.0.0.1."),
    key(
        "fsync",
        "\"everysec\"",
        Allowed::Words("\"everysec\" or \"always\""),
        "When the built-in Redis writes its file through to the disk. With `everysec` a crash of Redis may undo the last two \
         seconds; with `always` it undoes nothing, and each push waits for the disk.",
    ),
];

/// The table `tls` of `[redis]`.
pub const REDIS_TLS: &[Key] = &[
    key(
        "ca",
        "",
        Allowed::Words("write the path of a file"),
        "The CAs that a server's certificate may be signed by: one or more certificates in PEM form. Without it, the CAs that this system trusts.",
    ),
    key(
        "cert",
        "",
        Allowed::Words("write the path of a file"),
        "The certificate that dripd shows to a server that asks for one, with those that lead to its CA, in PEM form. It needs `key`.",
    ),
    key(
        "key",
        "",
        Allowed::Words("write the path of a file"),
        "The private key of `cert`, in PEM form, without a passphrase.",
    ),
    key(
        "server_name",
        "",
        Allowed::Words("write a name or an IP address"),
        "The name that every server's certificate must be for. Without it, the name or address by which dripd reaches the server.",
    ),
];

/// The table `sentinel` of `[redis]`.
pub const REDIS_SENTINEL: &[Key] = &[
    key("nodes", "", Allowed::Words(SENTINELS_HINT), "Where the sentinels are. It must be there."),
    key(
        "master",
        "",
        Allowed::Words("write the name that the sentinels know it by, as in \"mymaster\""),
        "What the sentinels call the primary and its replicas. It must be there.",
    ),
    key(
        "user",
        "",
        Allowed::Words("write the name of a user of the sentinels"),
        "The user that dripd logs in to the sentinels as.",
    ),
    key(
        "password_file",
        "",
        Allowed::Words("write the path of a file"),
        "A file whose content is the password for the sentinels. Without it dripd does not log in to them.",
    ),
];
