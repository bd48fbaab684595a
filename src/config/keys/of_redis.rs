//! The keys of `[redis]`.

use super::key::{Allowed, Key, key, text};

/// The form of a URL, for error messages.
pub(in crate::config) const URL_HINT: &str =
    "write redis://[user:password@]host[:port][/db], rediss:// for TLS, or unix:///path/to/redis.sock";

/// The form of a prefix, for error messages.
const PREFIX_HINT: &str = "a text without \":queue:\", braces, white space or control characters that ends in neither \":ready\" nor \":queue\"";

/// The same as a regular expression.
pub(in crate::config) const PREFIX_PATTERN: &str = r"(?!.*(:queue:|:ready$|:queue$))[^{}\s\u0000-\u001f\u007f-\u009f]+";

/// The allowed values of `partitions` and of `partition_by`.
const PARTITIONS_HINT: &str = "write a power of two, 1 to 64";
const PARTITION_BY_HINT: &str = "write how many parts, 1 to 8";

/// The form of the path of a file.
const FILE_HINT: &str = "write the path of a file";

/// The forms of a list of nodes and of a list of sentinels.
const NODES_HINT: &str = "write a list of host:port, as in [\"10.0.0.1:6379\", \"10.0.0.2:6379\"]";
const SENTINELS_HINT: &str = "write a list of host:port, as in [\"10.0.0.1:26379\", \"10.0.0.2:26379\"]";

/// `[redis]`.
pub const REDIS: &[Key] = &[
    text(
        "url",
        URL_HINT,
        "Where your Redis is. Without it, `sentinel` and `cluster`, dripd starts and supervises its built-in Redis. A user needs a password, here or in `password_file`. `$DRIPD_REDIS_URL` overrides it.",
    ),
    key(
        "sentinel",
        "",
        Allowed::Table(REDIS_SENTINEL),
        "Instead of `url`: the sentinels that know which server is the primary.",
    ),
    text(
        "cluster",
        NODES_HINT,
        "Instead of `url`: some nodes of a Redis Cluster. Any of them names all the others. It needs `partitions`.",
    ),
    key(
        "tls",
        "",
        Allowed::Table(REDIS_TLS),
        "The certificates for TLS, where `url` begins with `rediss://`. With `sentinel` or `cluster` this table is what switches TLS on, to the sentinels too; `{}` is enough.",
    ),
    text(
        "user",
        "write the name of a user of Redis",
        "The user of Redis that dripd logs in as, where `url` names none. If neither names one it is the user `default`.",
    ),
    text(
        "password_file",
        FILE_HINT,
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
    text(
        "partition_by",
        PARTITION_BY_HINT,
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
    text(
        "ca",
        FILE_HINT,
        "The CAs that a server's certificate may be signed by: one or more certificates in PEM form. Without it, the CAs that this system trusts.",
    ),
    text(
        "cert",
        FILE_HINT,
        "The certificate that dripd shows to a server that asks for one, with those that lead to its CA, in PEM form. It needs `key`.",
    ),
    text("key", FILE_HINT, "The private key of `cert`, in PEM form, without a passphrase."),
    text(
        "server_name",
        "write a name or an IP address",
        "The name that every server's certificate must be for. Without it, the name or address by which dripd reaches the server.",
    ),
];

/// The table `sentinel` of `[redis]`.
pub const REDIS_SENTINEL: &[Key] = &[
    text("nodes", SENTINELS_HINT, "Where the sentinels are. It must be there."),
    text(
        "master",
        "write the name that the sentinels know it by, as in \"mymaster\"",
        "What the sentinels call the primary and its replicas. It must be there.",
    ),
    text("user", "write the name of a user of the sentinels", "The user that dripd logs in to the sentinels as."),
    text(
        "password_file",
        FILE_HINT,
        "A file whose content is the password for the sentinels. Without it dripd does not log in to them.",
    ),
];
