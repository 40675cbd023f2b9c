//! The rules of the house, read from `src/`: what is allowed only in one place, and who knows whom.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// One source file, without what the rules do not bind.
struct Source {
    /// Below `src/`, with `/`.
    path: String,
    /// As it stands in the file.
    text: String,
    /// Without comments and tests.
    code: String,
    /// The same with empty string literals.
    words: String,
}

impl Source {
    fn new(path: &str, text: &str) -> Self {
        let code = without_tests(&stripped(text, false));
        let words = without_tests(&stripped(text, true));
        Self { path: path.to_owned(), text: text.to_owned(), code, words }
    }

    fn is_in(&self, places: &[&str]) -> bool {
        places.iter().any(|place| match place.strip_suffix('/') {
            Some(_) => self.path.starts_with(place),
            None => self.path == *place,
        })
    }
}

/// The text without comments, and without the contents of string literals if asked for.
fn stripped(text: &str, strings_too: bool) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if let Some(length) = raw_string(rest) {
            out.push_str(if strings_too { "\"\"" } else { &rest[..length] });
            length
        } else if letter == '"' {
            let length = quoted(rest);
            out.push_str(if strings_too { "\"\"" } else { &rest[..length] });
            length
        } else if let Some(length) = character(rest) {
            out.push_str("' '");
            length
        } else {
            out.push(letter);
            letter.len_utf8()
        };
        rest = &rest[length..];
    }
    out
}

fn quoted(text: &str) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            '"' if !escaped => return at + 1,
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.strip_prefix('r')?.chars().take_while(|letter| *letter == '#').count();
    text[1 + hashes..].starts_with('"').then_some(())?;
    let end = format!("\"{}", "#".repeat(hashes));
    let body = 2 + hashes;
    Some(text[body..].find(&end).map_or(text.len(), |at| body + at + end.len()))
}

/// A character literal, and not a lifetime.
fn character(text: &str) -> Option<usize> {
    let inside = text.strip_prefix('\'')?;
    let end = match inside.strip_prefix('\\') {
        Some(escape) => {
            2 + escape.char_indices().nth(1).map(|(at, _)| escape[at..].find('\'').map(|e| at + e))??
        }
        None => 1 + inside.chars().next()?.len_utf8(),
    };
    text[end..].starts_with('\'').then_some(end + 1)
}

/// Where the next item begins that is compiled for tests only: behind `#[cfg(test)]`, or `#[cfg(all(test, …))]`.
fn next_test_item(code: &str) -> Option<usize> {
    let marks = ["#[cfg(test)]", "#[cfg(all(test,"];
    marks.iter().filter_map(|mark| code.find(mark)).min()
}

/// The code without what is for tests only.
fn without_tests(code: &str) -> String {
    let mut out = String::new();
    let mut rest = code;
    while let Some(at) = next_test_item(rest) {
        out.push_str(&rest[..at]);
        let item = &rest[at..];
        let end = item.find(['{', ';']).unwrap_or(item.len());
        let mut depth = 0_usize;
        let mut length = item.len();
        for (at, letter) in item.char_indices().skip_while(|(at, _)| *at < end) {
            match letter {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                length = at + 1;
                break;
            }
        }
        rest = &item[length..];
    }
    out.push_str(rest);
    out
}

/// The modules of a file that are for tests only and stand in files of their own, as paths below `src/`.
fn test_files(source: &Source) -> Vec<String> {
    let folder = source
        .path
        .strip_suffix("mod.rs")
        .map_or_else(|| format!("{}/", source.path.trim_end_matches(".rs")), str::to_owned);
    let mut files = Vec::new();
    let mut rest = &source.text[..];
    while let Some(at) = next_test_item(rest) {
        rest = &rest[at + 1..];
        let item = rest.split_once("]\n").map_or("", |(_, item)| item.trim_start());
        if let Some((name, _)) = item.strip_prefix("mod ").and_then(|item| item.split_once(';'))
            && !name.contains(char::is_whitespace)
        {
            files.push(format!("{folder}{name}.rs"));
        }
    }
    files
}

/// Something that may stand in some places only.
struct OnlyHere {
    what: &'static str,
    /// Any of these, as whole words.
    patterns: &'static [&'static str],
    places: &'static [&'static str],
    /// Lines that are allowed elsewhere: (file, line).
    but_for: &'static [(&'static str, &'static str)],
    /// Whether the inside of string literals counts.
    in_strings: bool,
}

const CORRIDOR: [&str; 7] = ["layer", "service", "patience", "future", "handler", "body", "rejection"];

const ONLY_HERE: &[OnlyHere] = &[
    OnlyHere {
        what: "redis and bb8",
        patterns: &["redis::", "bb8::", "bb8_redis", "use redis", "use bb8"],
        places: &["store/redis/"],
        but_for: &[
            ("lib.rs", "pub use bb8_redis;"),
            // The module of that name.
            ("store/mod.rs", "pub use redis::RedisStore;"),
        ],
        in_strings: false,
    },
    OnlyHere {
        what: "uuid",
        patterns: &["uuid::", "use uuid"],
        places: &["store/token.rs"],
        but_for: &[],
        in_strings: false,
    },
    OnlyHere {
        what: "the metrics facade",
        patterns: &["metrics::", "use metrics", "counter!", "gauge!", "histogram!"],
        places: &["telemetry/"],
        but_for: &[("lib.rs", "pub use metrics;")],
        in_strings: false,
    },
    OnlyHere {
        what: "names of metrics",
        patterns: &["\"tower_lock_"],
        places: &["telemetry/names.rs"],
        but_for: &[],
        in_strings: true,
    },
    OnlyHere {
        what: "status codes, and building a response",
        patterns: &["StatusCode", "Response::new", "Response::builder"],
        places: &["rejection.rs", "telemetry/prometheus.rs"],
        but_for: &[],
        in_strings: false,
    },
    OnlyHere {
        what: "http",
        patterns: &["http::", "use http", "http_body", "axum::"],
        places: &[
            "layer.rs",
            "service.rs",
            "patience.rs",
            "future.rs",
            "body.rs",
            "rejection.rs",
            "key/",
            "telemetry/prometheus.rs",
        ],
        but_for: &[],
        in_strings: false,
    },
    OnlyHere {
        what: "tasks and threads",
        patterns: &["tokio::spawn", "tokio::task", "std::thread", "JoinSet", "spawn(", "spawn_blocking("],
        places: &["keeper/"],
        but_for: &[],
        in_strings: false,
    },
    OnlyHere {
        what: "reading a clock",
        patterns: &["Instant::now", "SystemTime", ".elapsed(", "clock_gettime", "UNIX_EPOCH"],
        places: &["clock.rs"],
        but_for: &[],
        in_strings: false,
    },
    OnlyHere {
        what: "unwrap and expect",
        patterns: &[".unwrap()", ".expect(", ".unwrap_err()", ".expect_err("],
        places: &[],
        but_for: &[],
        in_strings: false,
    },
    OnlyHere {
        what: "a mutex that one panic poisons",
        patterns: &["std::sync::Mutex", "std::sync::RwLock", "sync::{Arc, Mutex", "sync::{Mutex"],
        places: &[],
        but_for: &[],
        in_strings: false,
    },
    OnlyHere {
        what: "output that is not a log",
        patterns: &["println!", "eprintln!", "print!", "eprint!", "dbg!"],
        places: &[],
        but_for: &[],
        in_strings: false,
    },
];

/// Whether `pattern` stands in the line and is not the end of a longer word.
fn stands_in(line: &str, pattern: &str) -> bool {
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let starts_as_word = pattern.starts_with(is_word);
    line.match_indices(pattern).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        // In `crate::store::redis::Script`, `redis` is a module of ours; in `::redis::cmd` it is the crate.
        let owner = line[..at].strip_suffix("::").and_then(|path| path.chars().next_back());
        let inside_a_path = owner.is_some_and(is_word) && pattern.ends_with("::");
        let inside_a_word = starts_as_word && before.is_some_and(is_word);
        !inside_a_word && !inside_a_path
    })
}

/// What is wrong with a file.
fn check(source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    for rule in ONLY_HERE.iter().filter(|rule| !source.is_in(rule.places)) {
        let text = if rule.in_strings { &source.code } else { &source.words };
        for line in text.lines().map(str::trim) {
            let allowed = rule.but_for.iter().any(|(path, text)| *path == source.path && *text == line);
            if !allowed && rule.patterns.iter().any(|pattern| stands_in(line, pattern)) {
                wrong.push(format!("{}: {} only in {:?}: {line}", source.path, rule.what, rule.places));
            }
        }
    }
    wrong.extend(check_imports(source));
    wrong.extend(check_layout(source));
    wrong
}

/// The rooms know nothing of the corridor, and stores nothing of each other.
fn check_imports(source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    let corridor: Vec<_> = CORRIDOR.iter().map(|room| format!("{room}.rs")).collect();
    let is_room = source.path != "lib.rs" && !corridor.contains(&source.path);
    for line in source.words.lines().map(str::trim) {
        let known = CORRIDOR.iter().find(|room| {
            stands_in(line, &format!("crate::{room}::")) || stands_in(line, &format!("super::{room}::"))
        });
        // The label values of rejections are the rejections' own.
        let is_label =
            source.path == "telemetry/registration.rs" && line == "use crate::rejection::STATUSES;";
        if let Some(room) = known
            && is_room
            && !is_label
        {
            wrong.push(format!("{}: a room knows the corridor ({room}): {line}", source.path));
        }
        let stores = [("store/redis/", "redis"), ("store/memory", "memory"), ("store/quorum", "quorum")];
        for (place, _) in stores.iter().filter(|(place, _)| source.path.starts_with(place)) {
            let others = stores.iter().filter(|(other, _)| other != place);
            for (_, other) in others {
                let upper = other[..1].to_ascii_uppercase() + &other[1..] + "Store";
                if line.contains(&upper) || line.contains(&format!("store::{other}::")) {
                    wrong.push(format!("{}: stores know each other not: {line}", source.path));
                }
            }
        }
    }
    wrong
}

/// Lines of code, without tests and comments, above which a room is two.
const MOST_LINES: usize = 450;

/// Rooms are small and say what they are; the front door has no logic.
fn check_layout(source: &Source) -> Vec<String> {
    let mut wrong = Vec::new();
    if !source.text.starts_with("//!") {
        wrong.push(format!("{}: a room says first what it is (//!)", source.path));
    }
    let lines = source.words.lines().filter(|line| !line.trim().is_empty()).count();
    if lines > MOST_LINES {
        wrong.push(format!("{}: {lines} lines of code: is it two rooms?", source.path));
    }
    if source.path == "lib.rs" && source.words.lines().any(|line| stands_in(line.trim(), "fn ")) {
        wrong.push("lib.rs: the front door has no logic".to_owned());
    }
    wrong
}

fn read(folder: &Path, below: &str, sources: &mut Vec<Source>) {
    let mut entries: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()).collect();
    entries.sort_by_key(|entry| entry.file_name());
    for entry in entries {
        let path = format!("{below}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            read(&entry.path(), &format!("{path}/"), sources);
        } else if path.ends_with(".rs") {
            sources.push(Source::new(&path, &fs::read_to_string(entry.path()).unwrap()));
        }
    }
}

fn sources() -> Vec<Source> {
    let mut sources = Vec::new();
    read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "", &mut sources);
    assert!(sources.len() > 30, "only {} files below src", sources.len());
    let for_tests: BTreeSet<_> = sources.iter().flat_map(test_files).collect();
    sources.retain(|source| !for_tests.contains(&source.path));
    sources
}

#[test]
fn src_keeps_the_rules_of_the_house() {
    let wrong: Vec<_> = sources().iter().flat_map(check).collect();
    assert!(wrong.is_empty(), "{} broken rules:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn every_place_of_the_rules_exists() {
    let sources = sources();
    let places = ONLY_HERE.iter().flat_map(|rule| rule.places.iter().copied());
    let excepted = ONLY_HERE.iter().flat_map(|rule| rule.but_for.iter().map(|(path, _)| *path));
    for place in places.chain(excepted).collect::<BTreeSet<_>>() {
        assert!(sources.iter().any(|source| source.is_in(&[place])), "no src/{place}, but a rule names it");
    }
}

#[test]
fn every_clause_of_the_store_contract_is_stamped() {
    let contract = sources().into_iter().find(|source| source.path == "store/contract.rs").unwrap();
    let (_, stamped) = contract.text.split_once("@stamp $make_store;\n").unwrap();
    let (stamped, _) = stamped.split_once('}').unwrap();
    let stamped: BTreeSet<_> = stamped.split_whitespace().collect();
    let clauses = contract.words.lines().filter_map(|line| line.strip_prefix("pub async fn "));
    let clauses: BTreeSet<_> = clauses.filter_map(|line| line.split(['<', '(']).next()).collect();
    assert_eq!(stamped, clauses);
}

/// What the checker says about a made-up file.
#[track_caller]
fn check_refused(path: &str, text: &str, rule: &str) {
    let wrong = check(&Source::new(path, &format!("//! A room.\n{text}")));
    assert!(wrong.len() == 1 && wrong[0].contains(rule), "{rule:?} expected of {text:?}, got {wrong:?}");
}

#[track_caller]
fn check_allowed(path: &str, text: &str) {
    assert_eq!(check(&Source::new(path, &format!("//! A room.\n{text}"))), [] as [String; 0], "{text}");
}

#[test]
fn each_broken_rule_is_found_and_named() {
    check_refused("locker/mod.rs", "use redis::Client;", "redis and bb8");
    check_refused("locker/mod.rs", "fn f() { ::redis::cmd(\"GET\"); }", "redis and bb8");
    check_refused("store/memory.rs", "use bb8_redis::bb8;", "redis and bb8");
    check_refused("lib.rs", "pub use bb8_redis::bb8;", "redis and bb8");
    check_refused("guard.rs", "let id = uuid::Uuid::new_v4();", "uuid");
    check_refused("guard.rs", "metrics::counter!(\"x\").increment(1);", "the metrics facade");
    check_refused("layer.rs", "gauge!(HELD).increment(1);", "the metrics facade");
    check_refused("telemetry/lock.rs", "const X: &str = \"tower_lock_x\";", "names of metrics");
    check_refused("future.rs", "let status = StatusCode::CONFLICT;", "status codes");
    check_refused("service.rs", "Response::new(body)", "status codes");
    check_refused("locker/mod.rs", "use http::Request;", "http only in");
    check_refused("store/redis/mod.rs", "use http_body::Body;", "http only in");
    check_refused("guard.rs", "tokio::spawn(async {});", "tasks and threads");
    check_refused("store/mod.rs", "std::thread::sleep(x);", "tasks and threads");
    check_refused("guard.rs", "runtime.spawn(f);", "tasks and threads");
    check_refused("lease.rs", "let now = std::time::Instant::now();", "reading a clock");
    check_refused("store/memory.rs", "let t = SystemTime::now();", "reading a clock");
    check_refused("key/mod.rs", "let x = y.unwrap();", "unwrap and expect");
    check_refused("key/mod.rs", "let x = y\n    .expect(\"there\");", "unwrap and expect");
    check_refused("queue.rs", "use std::sync::Mutex;", "poisons");
    check_refused("queue.rs", "use std::sync::{Arc, Mutex};", "poisons");
    check_refused("queue.rs", "dbg!(x);", "not a log");
    check_refused("locker/mod.rs", "use crate::rejection::Rejection;", "a room knows the corridor");
    check_refused("keeper/mod.rs", "let x = crate::body::release(guard);", "a room knows the corridor");
    check_refused("store/memory.rs", "use super::RedisStore;", "stores know each other not");
    check_refused("store/redis/mod.rs", "use crate::store::memory::Locks;", "stores know each other not");
    check_refused("lib.rs", "fn helper() {}", "no logic");
    check_refused("queue.rs", &"let x = 1;\n".repeat(MOST_LINES + 1), "two rooms");
    let silent = check(&Source::new("queue.rs", "use std::fmt;"));
    assert!(silent.len() == 1 && silent[0].contains("says first what it is"), "{silent:?}");
}

#[test]
fn comments_strings_tests_and_the_right_places_are_left_alone() {
    check_allowed("store/redis/mod.rs", "use redis::Client;\nuse bb8_redis::bb8;");
    check_allowed("lib.rs", "pub use bb8_redis;\npub use metrics;");
    check_allowed("guard.rs", "// tokio::spawn would panic here\n/* .unwrap() */ let x = 1;");
    check_allowed("guard.rs", "let text = \"redis::Client .unwrap() \\\" StatusCode\";");
    check_allowed("guard.rs", "let text = r#\"\"http::\" dbg!\"#; let quote = '\"'; let life: &'a str = x;");
    check_allowed("guard.rs", "fn f() {}\n#[cfg(test)]\nmod tests {\n fn g() { x.unwrap(); }\n}\n");
    check_allowed("guard.rs", "#[cfg(test)]\nfn g() { x.unwrap() }\nfn f() {}");
    check_refused("guard.rs", "#[cfg(test)]\nfn g() { x.unwrap() }\nfn f() { y.unwrap() }", "unwrap");
    let two = "#[cfg(all(test, not(odd)))]\nmod tests { fn g() { x.unwrap() } }\n";
    check_allowed("guard.rs", two);
    check_refused("guard.rs", &format!("{two}fn f() {{ y.unwrap() }}"), "unwrap");
    let outside =
        "#[cfg(all(test, odd))]\n#[path = \"x\"]\nmod inner;\n#[cfg(test)]\nmod interleavings;\nmod real;";
    assert_eq!(test_files(&Source::new("queue.rs", outside)), ["queue/interleavings.rs"]);
    assert_eq!(test_files(&Source::new("queue/mod.rs", outside)), ["queue/interleavings.rs"]);
    check_allowed("guard.rs", "self.lock_metrics(); let my_redis = 1; crate::telemetry::metrics::f();");
    check_allowed("layer.rs", "use crate::rejection::Rejection;\nuse http::Request;");
    check_allowed("rejection.rs", "let status = StatusCode::CONFLICT;");
}
