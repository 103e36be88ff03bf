//! Clients of the service API in Go, Java and Python: generated from its document, compiled, and called on a real process.
//!
//! The programs in `examples/service-client` use them. All print the same text, which is compared. `cargo xtask test` runs them if
//! the tools are available, and otherwise prints that they were skipped.

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

/// Tests the clients if the tools are available. Otherwise prints what is missing.
pub(crate) fn run_if_possible() -> Result<()> {
    match Tools::find() {
        Ok(tools) => test(&tools),
        Err(missing) => {
            eprintln!(
                "== service clients: NOT TESTED, {missing:#}; `cargo xtask test-clients` installs what it needs"
            );
            Ok(())
        }
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
        let mut fetch = maven_command(&maven, &home());
        fetch.arg("--file").arg(pom).args(["dependency:resolve", "dependency:resolve-plugins"]);
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
        let mut generate = Command::new(tools.python.join("openapi-generator-cli"));
        generate.args(["generate", "--config", "generator.yaml", "--input-spec"]).arg(&file);
        finish(generate.current_dir(&folder)).context("cannot generate")?;
        finish(&mut self.compile(tools, &folder)).context("does not compile")?;
        let dev = Dev::start(&[])?;
        let mut program = self.program(tools, &folder);
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

    /// Returns the command that compiles the client, or checks its types.
    fn compile(self, tools: &Tools, folder: &Path) -> Command {
        let (mut command, args): (_, &[&str]) = match self {
            Self::Go => (go::command(&tools.go, folder), &["vet", "./..."]),
            Self::Java => (maven_command(&tools.maven, folder), &["compile"]),
            Self::Python => (Command::new(tools.python.join("mypy")), &["--no-error-summary", "main.py"]),
        };
        command.args(args).current_dir(folder);
        command
    }

    /// Returns the command that runs the example.
    fn program(self, tools: &Tools, folder: &Path) -> Command {
        let (mut command, args): (_, &[&str]) = match self {
            Self::Go => (go::command(&tools.go, folder), &["run", "."]),
            Self::Java => (maven_command(&tools.maven, folder), &["exec:java"]),
            Self::Python => (Command::new(tools.python.join("python")), &["main.py"]),
        };
        command.args(args).current_dir(folder);
        command
    }
}

fn home() -> PathBuf {
    target().join("test-clients")
}

fn maven_command(maven: &Path, folder: &Path) -> Command {
    let mut command = Command::new(maven);
    command.args(["--batch-mode", "--quiet"]).current_dir(folder);
    command
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
