//! Lua scripts document their keys, and are declared with `redis_store::script!`.

use super::sources;

/// Returns the parts that are missing in the header comment of a script.
fn missing_in_header(path: &str, text: &str) -> Vec<&'static str> {
    let header: Vec<&str> = text.lines().take_while(|line| line.starts_with("-- ")).collect();
    let is_part = path.contains("/parts/");
    let mut wanted = vec!["-- KEYS", "-- ARGV", if is_part { "-- Defines:" } else { "-- Reply:" }];
    // The first line says what the script does.
    wanted.retain(|start| !header.iter().skip(1).any(|line| line.starts_with(start)));
    wanted
}

#[test]
fn every_script_documents_its_keys_arguments_and_reply() {
    for (path, text) in sources("lua") {
        let missing = missing_in_header(&path, &text);
        assert!(missing.is_empty(), "{path} lacks {missing:?} in its header");
    }
}

#[test]
fn incomplete_header_is_found() {
    let whole = "-- Does it.\n-- KEYS[1] a.\n-- ARGV: none.\n-- Reply: OK.\nreturn 1\n";
    assert!(missing_in_header("a/src/b.lua", whole).is_empty());
    assert_eq!(missing_in_header("a/src/parts/b.lua", whole), ["-- Defines:"]);
    assert_eq!(missing_in_header("a/src/b.lua", &whole.replace("-- KEYS", "-- keys")), ["-- KEYS"]);
    let late = "-- Does it.\nlocal x\n-- KEYS[1] a.\n-- ARGV: none.\n-- Reply: OK.\n";
    assert_eq!(missing_in_header("a/src/b.lua", late).len(), 3);
}

/// The tests of declared keys cover only scripts that `redis_store::script!` declares.
#[test]
fn every_script_is_declared_by_the_macro() {
    let code = sources("rs");
    for path in sources("lua").keys() {
        let (krate, (_, file)) = (path.split_once('/').unwrap().0, path.rsplit_once('/').unwrap());
        let is_declared = code
            .iter()
            .any(|(of, text)| of.starts_with(&format!("{krate}/")) && text.contains(&format!("/{file}\"")));
        assert!(is_declared, "{path} is not part of a script");
    }
    let is_exempt = |path: &str| path.starts_with("redis-store/") || path.starts_with("testkit/");
    for (path, text) in code.iter().filter(|(path, _)| !is_exempt(path)) {
        for other in ["redis::Script", "EVALSHA", "include_str!(\"scripts/"] {
            assert!(!text.contains(other), "{path} runs a script without redis_store::script!: {other}");
        }
    }
}
