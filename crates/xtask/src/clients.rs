//! Clients of the service API in Go, Java and Python: generated from its document, compiled, and called on a real process.
//!
//! The programs in `examples/service-client` use them. All print the same text, which is compared. `cargo xtask test` runs them if
//! the tools are available, and otherwise prints that they were skipped. In CI it installs the tools, and fails without them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::dev::Dev;
use crate::shell::{find_program, root, target};
use crate::{go, install, java, python};

const REQUIREMENTS: &str = concat!(
    include_str!("clients/requirements.txt"),
    include_str!("../../../examples/service-client/python/requirements.txt"),
);
const EXPECTED: &str = include_str!("../../../examples/service-client/expected-output.txt");

/// The command that generates a client with the options of its folder. The guide has the same.
const GENERATE: [&str; 4] = ["openapi-generator-cli", "generate", "--config", "generator.yaml"];

/// Response fields that a client of an older version does not know, one in each kind of response that the programs read.
const NEW_FIELDS: [(&str, &str); 9] = [
    ("Account", "name"),
    ("ChangeResult", "event_id"),
    ("Drop", "seed_hash"),
    ("DropAdmission", "period_ms"),
    ("Entitlement", "as_of"),
    ("NotificationResult", "unknown_user_ids"),
    ("Problem", "title"),
    ("Stock", "version"),
    ("User", "created_at"),
];

/// The languages whose clients are tested.
#[derive(Clone, Copy, Debug)]
enum Language {
    Go,
    Java,
    Python,
}

/// The installed programs.
struct Tools {
    /// The folder of Python and of the tools that are Python packages, the generator among them.
    python: PathBuf,
    go: PathBuf,
    maven: PathBuf,
}

/// Installs what the clients need and tests them.
pub(crate) fn run() -> Result<()> {
    install::for_clients()?;
    test(&Tools::find()?)
}

/// Tests the clients if the tools are available. Otherwise prints what is missing. In CI it installs the tools if it may, and fails
/// without them.
pub(crate) fn run_if_possible(may_install: bool) -> Result<()> {
    let in_ci = is_ci(std::env::var("CI").ok().as_deref());
    if in_ci && may_install {
        install::for_clients()?;
    }
    match or_skip(Tools::find(), in_ci)? {
        Some(tools) => test(&tools),
        None => Ok(()),
    }
}

/// Returns whether the variable `CI` is set and neither empty nor `false`, as for the tests.
fn is_ci(variable: Option<&str>) -> bool {
    !matches!(variable, None | Some("" | "false"))
}

/// Returns none if the tools are missing. Fails in CI, because a skipped test proves nothing.
fn or_skip<T>(found: Result<T>, in_ci: bool) -> Result<Option<T>> {
    const REMEDY: &str = "`cargo xtask test-clients` installs what it needs";
    match found {
        Ok(tools) => Ok(Some(tools)),
        Err(missing) if !in_ci => {
            eprintln!("== service clients: NOT TESTED, {missing:#}; {REMEDY}");
            Ok(None)
        }
        Err(missing) => Err(missing.context(format!("service clients cannot be tested; {REMEDY}"))),
    }
}

fn test(tools: &Tools) -> Result<()> {
    Dev::build()?;
    let started = Instant::now();
    let text = fs::read_to_string(root().join("docs/reference/openapi.json"))?;
    let document: Value = serde_json::from_str(&text).context("docs/reference/openapi.json")?;
    let older = without(&document, &NEW_FIELDS)?;
    for (name, document) in [("current", &document), ("older", &older)] {
        for language in [Language::Go, Language::Java, Language::Python] {
            let started = Instant::now();
            let tested = language.test(tools, name, document);
            tested.with_context(|| format!("the client in {language:?}, from the {name} document"))?;
            eprintln!("== {language:?}, {name} document: {:.1} s", started.elapsed().as_secs_f64());
        }
    }
    eprintln!("== service clients: {:.0} s", started.elapsed().as_secs_f64());
    Ok(())
}

impl Tools {
    fn find() -> Result<Self> {
        if !java::is_current() || find_program("javac").is_none() {
            bail!("the JDK of {} is missing", java::NEEDED);
        }
        let maven = find_program("mvn").context("Maven is missing")?;
        let go = go::current()?;
        let python = python::environment(&home(), REQUIREMENTS)?;
        // Downloads what `mvn` needs, so that a registry that does not answer is not a failed test.
        let pom = root().join("examples/service-client/java/pom.xml");
        let mut fetch = Command::new(&maven);
        fetch.args(["--batch-mode", "--quiet", "--file"]).arg(pom);
        fetch.args(["dependency:resolve", "dependency:resolve-plugins"]).current_dir(home());
        finish(&mut fetch).context("Maven cannot fetch the dependencies")?;
        Ok(Self { python, go, maven })
    }
}

impl Language {
    fn test(self, tools: &Tools, name: &str, document: &Value) -> Result<()> {
        let folder = home().join(name).join(self.folder());
        copy_example(self.folder(), &folder)?;
        let file = folder.join("openapi.json");
        fs::write(&file, document.to_string())?;
        // The options are those that users have.
        let mut generate = Command::new(tools.python.join(GENERATE[0]));
        generate.args(&GENERATE[1..]).arg("--input-spec").arg(&file);
        finish(generate.current_dir(&folder)).context("cannot generate")?;
        let [compile, run] = self.commands();
        finish(&mut self.command(tools, &folder, compile)).context("does not compile")?;
        let dev = Dev::start(&[])?;
        let mut program = self.command(tools, &folder, run);
        program.env("SERVICE_API_URL", format!("http://{}", dev.text("service_api")?));
        program.env("SERVICE_API_TOKEN", dev.text("service_token")?);
        // Some versions of Maven reset the colour of the terminal even if there is none.
        let printed = finish(&mut program).context("the calls failed")?.replace("\x1b[0m", "");
        if printed != EXPECTED {
            bail!("it printed\n{printed}instead of\n{EXPECTED}");
        }
        Ok(())
    }

    /// Returns the name of the folder with the example.
    const fn folder(self) -> &'static str {
        match self {
            Self::Go => "go",
            Self::Java => "java",
            Self::Python => "python",
        }
    }

    /// Returns the commands that compile the client, or check its types, and that run the example. The guide has the same.
    const fn commands(self) -> [&'static [&'static str]; 2] {
        match self {
            Self::Go => [&["go", "vet", "./..."], &["go", "run", "."]],
            Self::Java => [
                &["mvn", "--batch-mode", "--quiet", "compile"],
                &["mvn", "--batch-mode", "--quiet", "exec:java"],
            ],
            Self::Python => [&["mypy", "--no-error-summary", "main.py"], &["python", "main.py"]],
        }
    }

    /// Returns one of these commands, run with the installed tools.
    fn command(self, tools: &Tools, folder: &Path, words: &[&str]) -> Command {
        let mut command = match self {
            Self::Go => go::command(&tools.go, folder),
            Self::Java => Command::new(&tools.maven),
            Self::Python => Command::new(tools.python.join(words[0])),
        };
        command.args(&words[1..]).current_dir(folder);
        command
    }
}

fn home() -> PathBuf {
    target().join("test-clients")
}

/// Copies an example to an empty folder, without what a person generated beside it.
fn copy_example(name: &str, to: &Path) -> Result<()> {
    if to.exists() {
        fs::remove_dir_all(to)?;
    }
    let from = root().join("examples/service-client").join(name);
    copy_folder(&from, to).with_context(|| format!("cannot copy {}", from.display()))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    const GENERATED: [&str; 4] = ["playhouse", "target", ".openapi-generator", "__pycache__"];
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (path, copy) = (entry.path(), to.join(entry.file_name()));
        if !path.is_dir() {
            fs::copy(&path, &copy)?;
        } else if !GENERATED.iter().any(|name| entry.file_name() == *name) {
            copy_folder(&path, &copy)?;
        }
    }
    Ok(())
}

/// Returns the document without these fields of its schemas, as it was before they were added.
fn without(document: &Value, fields: &[(&str, &str)]) -> Result<Value> {
    let mut older = document.clone();
    for (schema, field) in fields {
        let schema = &mut older["components"]["schemas"][schema];
        let removed = schema["properties"].as_object_mut().and_then(|all| all.remove(*field));
        removed.with_context(|| format!("the document has no field {field}"))?;
        if let Some(required) = schema["required"].as_array_mut() {
            required.retain(|name| *name != json!(field));
        }
    }
    Ok(older)
}

/// Runs a command and returns what it printed. Fails with its output if it fails.
fn finish(command: &mut Command) -> Result<String> {
    let done = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
    if !done.status.success() {
        let stderr = String::from_utf8_lossy(&done.stderr);
        // Not the whole command: its environment contains a token.
        let program = command.get_program().display();
        bail!("{program} ended with {}:\n{stdout}{stderr}", done.status);
    }
    Ok(stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUIDE: &str = include_str!("../../../docs/guides/service-clients.md");

    /// Returns the code blocks of the guide with this info string.
    fn blocks(kind: &str) -> Vec<&'static str> {
        let fenced = GUIDE.split("\n```").skip(1).step_by(2).filter_map(|block| block.split_once('\n'));
        fenced.filter(|(info, _)| *info == kind).map(|(_, text)| text).collect()
    }

    /// Returns the lines of a text without their indentation, which differs between a guide and a program.
    fn lines(text: &str) -> String {
        text.lines().map(|line| format!("{}\n", line.trim())).collect()
    }

    #[test]
    fn guide_has_the_code_and_the_commands_that_are_tested() {
        let examples = root().join("examples/service-client");
        for (language, kind, file) in [
            (Language::Go, "go", "main.go"),
            (Language::Java, "java", "src/main/java/com/example/shop/Shop.java"),
            (Language::Python, "python", "main.py"),
        ] {
            let program = lines(&fs::read_to_string(examples.join(language.folder()).join(file)).unwrap());
            let blocks = blocks(kind);
            assert!(blocks.len() > 1, "the guide has no code in {language:?}");
            for block in blocks {
                assert!(program.contains(&lines(block)), "{file} does not contain\n{block}");
            }
            let section = GUIDE.split(&format!("\n## {language:?}\n")).nth(1).unwrap();
            let commands = section.split("```").nth(1).unwrap();
            let [compile, run] = language.commands();
            // Types are an extra of the test: a program in Python runs without.
            let compile = Some(compile).filter(|_| !matches!(language, Language::Python));
            for command in [Some(&GENERATE[..]), compile, Some(run)].into_iter().flatten() {
                let command = command.join(" ");
                assert!(commands.lines().any(|line| line == command), "the guide lacks `{command}`");
            }
        }
        assert_eq!(blocks("text"), [EXPECTED.trim_end()]);
        let generator = REQUIREMENTS.lines().find(|line| line.starts_with("openapi-generator-cli=="));
        assert!(GUIDE.contains(&format!("\npip install {}\n", generator.unwrap())));
    }

    #[test]
    fn missing_tools_fail_in_ci_and_are_skipped_elsewhere() {
        let missing = || Err::<(), _>(anyhow::anyhow!("Maven is missing"));
        for elsewhere in [None, Some(""), Some("false")] {
            assert_eq!(or_skip(missing(), is_ci(elsewhere)).unwrap(), None);
        }
        let error = or_skip(missing(), is_ci(Some("true"))).unwrap_err();
        assert!(format!("{error:#}").ends_with("installs what it needs: Maven is missing"), "{error:#}");
        assert_eq!(or_skip(Ok(()), true).unwrap(), Some(()));
    }
}
