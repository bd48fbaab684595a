//! The JSON Schema of the configuration file: `docs/config.schema.json` is that of the code, it takes what `dripd check` takes, and refuses what
//! `check` refuses for its shape. After a change of the code write it anew: `DRIPD_BLESS=1 cargo test docs::schema`.

use std::path::{Path, PathBuf};

use dripd::config::keys::{self, Key};
use dripd::config::{Config, Environment, schema};
use jsonschema::Validator;
use toml::{Table, Value};

const FILE: &str = "docs/config.schema.json";

fn validator() -> Validator {
    jsonschema::draft7::new(&schema::of_file()).expect("a schema")
}

/// What `check` says of a file.
fn problems(text: &str) -> Result<(), String> {
    Config::parse(text, None, &Environment::default()).map(drop).map_err(|why| why.to_string())
}

fn json(file: &Table) -> serde_json::Value {
    serde_json::to_value(file).expect("JSON")
}

#[test]
fn the_file_for_editors_is_the_schema_of_the_code() {
    let is = serde_json::to_string_pretty(&schema::of_file()).expect("JSON") + "\n";
    if std::env::var_os("DRIPD_BLESS").is_some() {
        std::fs::write(FILE, is).expect("written");
    } else {
        let written = std::fs::read_to_string(FILE).unwrap_or_default();
        assert!(written == is, "{FILE} is out of date: DRIPD_BLESS=1 cargo test docs::schema writes it anew");
    }
    assert!(jsonschema::draft7::meta::is_valid(&schema::of_file()), "it is a schema itself");
}

/// The TOML files below a directory.
fn below(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            below(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "toml") {
            found.push(path);
        }
    }
}

#[test]
fn every_configuration_of_the_repository_validates_and_names_what_an_editor_reads() {
    let mut files = vec![PathBuf::from("config.toml"), PathBuf::from("clients/conformance/dripd.toml")];
    below(Path::new("examples"), &mut files);
    assert!(files.len() >= 7, "{files:?}");
    let validator = validator();
    for path in &files {
        let text = std::fs::read_to_string(path).expect("a file");
        assert_eq!(problems(&text), Ok(()), "{path:?}");
        let file = json(&text.parse().expect("TOML"));
        assert!(validator.is_valid(&file), "{path:?}: {:?}", validator.iter_errors(&file).collect::<Vec<_>>());
    }
    let shipped = std::fs::read_to_string("config.toml").expect("a file");
    let named = shipped.lines().next().and_then(|line| line.strip_prefix("#:schema "));
    assert_eq!(named, Some(FILE), "Taplo and VS Code read it there");
}

/// A place for keys: a good file, the way to a table in it, and the keys of that.
type Place = (&'static str, &'static [&'static str], &'static [Key]);

const TOKEN: &str = "[[http.token]]\nname = 'a'\nfile = 'f'\nmay = 'read'\n";
const SENTINEL: &str = "[redis.sentinel]\nnodes = ['a:1']\nmaster = 'm'\n";
const FORWARD: &str = "[[route]]\nname = 'a'\nto = 'l'\n[route.register]\nset = 's'\nmember = 'm'\n";

const PLACES: [Place; 19] = [
    ("[redis]\n", &["redis"], keys::REDIS),
    ("[redis]\nurl = 'rediss://h'\n[redis.tls]\n", &["redis", "tls"], keys::REDIS_TLS),
    (SENTINEL, &["redis", "sentinel"], keys::REDIS_SENTINEL),
    ("[http]\n", &["http"], keys::HTTP),
    (TOKEN, &["http", "token"], keys::HTTP_TOKEN),
    ("[defaults]\n", &["defaults"], keys::POLICY),
    ("[defaults.backoff]\n", &["defaults", "backoff"], keys::BACKOFF),
    ("[defaults.slow]\n", &["defaults", "slow"], keys::SLOW),
    ("[limits]\n", &["limits"], keys::LIMITS),
    ("[[bucket]]\nmatch = 'a'\n", &["bucket"], keys::BUCKET),
    ("[[bucket]]\nmatch = 'a'\n", &["bucket"], keys::POLICY),
    ("[[bucket]]\nmatch = 'a'\n[bucket.slow]\n", &["bucket", "slow"], keys::SLOW),
    ("[[budget]]\nmatch = 'a'\nrate = '1/s'\n", &["budget"], keys::BUDGET_MATCH),
    ("[[budget]]\nmatch = 'a'\nrate = '1/s'\n", &["budget"], keys::BUDGET),
    ("[[budget]]\nmatch = 'a'\ntold = 'stop'\n", &["budget"], keys::BUDGET),
    ("[[budget]]\nmatch = 'a'\nrate = '1/s'\n[budget.slow]\n", &["budget", "slow"], keys::SLOW),
    (FORWARD, &["route"], keys::ROUTE),
    (FORWARD, &["route", "register"], keys::ROUTE_REGISTER),
    ("[[expect]]\nassert = 'a rate > 1/s'\n", &["expect"], keys::EXPECT),
];

/// Values for any key: some fit some keys.
const VALUES: [&str; 24] = [
    "{ no = 'such' }",
    "{}",
    "[]",
    "['a']",
    "[1]",
    "[{}]",
    "true",
    "1",
    "0",
    "-1",
    "7",
    "1.5",
    "600000000",
    "99999999999999",
    "''",
    "'a'",
    "'10/s'",
    "'10/s@25:00'",
    "'20ms'",
    "'400d'",
    "'none'",
    "'{1}'",
    "'a:6379'",
    "\"a\\u0001 b\"",
];

/// The table at the end of the way.
fn table_at<'a>(file: &'a mut Table, way: &[&str]) -> &'a mut Table {
    way.iter().fold(file, |table, name| match table.get_mut(*name).expect("a part of the way") {
        Value::Array(tables) => tables[0].as_table_mut().expect("a table"),
        other => other.as_table_mut().expect("a table"),
    })
}

/// Whether `check` refuses a file for what stands at one key, and not for what several say together.
fn is_about_shape(why: &str) -> bool {
    [" is not allowed; ", ": unknown key; ", ": missing; "].iter().any(|words| why.contains(words))
}

#[test]
fn it_takes_what_check_takes_and_refuses_what_check_refuses_for_its_shape() {
    let validator = validator();
    let (mut good, mut broken, mut wrong) = (0, 0, String::new());
    let mut judge = |file: &Table| {
        let said = problems(&toml::to_string(file).expect("TOML"));
        let errors: Vec<String> = validator.iter_errors(&json(file)).map(|error| error.to_string()).collect();
        match said {
            Ok(()) => {
                good += 1;
                wrong += &if errors.is_empty() { String::new() } else { format!("{file}{errors:?}\n\n") };
            }
            Err(why) if is_about_shape(&why) => {
                broken += 1;
                wrong += &if errors.is_empty() { format!("{file}{why}\n\n") } else { String::new() };
            }
            Err(_) => {}
        }
    };
    for (text, way, of) in PLACES {
        let file = || text.parse::<Table>().expect("TOML");
        judge(&file());
        for key in of {
            for value in VALUES {
                let mut file = file();
                let value = format!("it = {value}").parse::<Table>().expect("TOML").remove("it").expect("it");
                table_at(&mut file, way).insert(key.name.to_owned(), value);
                judge(&file);
            }
            let mut without = file();
            table_at(&mut without, way).remove(key.name);
            judge(&without);
        }
        let mut unknown = file();
        table_at(&mut unknown, way).insert("burts".to_owned(), Value::Integer(1));
        judge(&unknown);
    }
    println!("{good} good files, {broken} broken ones");
    assert!(wrong.is_empty(), "{wrong}");
    assert!(good > 100 && broken > 100, "{good} and {broken}");
}

#[test]
fn every_key_has_a_schema_a_description_and_its_default() {
    let schema = schema::of_file();
    for (_, way, of) in PLACES {
        let at = way.iter().fold(&schema, |schema, name| {
            let below = &schema["properties"][name];
            if below["items"].is_null() { below } else { &below["items"] }
        });
        for key in of {
            let property = &at["properties"][key.name];
            let has_kind = ["type", "anyOf", "oneOf", "enum"].iter().any(|kind| property.get(kind).is_some());
            assert!(has_kind && property["description"] == key.about, "{way:?} {}: {property}", key.name);
            let is_nested = way.len() > 1 && way[0] != "http"; // the default of the whole table stands above
            assert!(key.default.is_empty() || is_nested || !property["default"].is_null(), "{way:?} {}", key.name);
        }
    }
}
