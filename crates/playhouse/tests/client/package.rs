//! The package by itself: unit tests, generated types, declarations, contents.

use serde_json::{Value, json};
use testkit::{Folder, JavaScript, need};

use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn unit_tests_pass() {
    let tools = need!(JavaScript::find());
    let out = run(tools.node().args(["--test", "test/"]).folder(package_folder())).await;
    assert!(out.contains("# fail 0"), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn generated_types_match_the_documents() {
    let tools = need!(JavaScript::find());
    run(tools.node().args(["scripts/generate-types.mjs", "--check"]).folder(package_folder())).await;
}

/// Programs with the types of a browser, and those with the types of Node only: the test of the declarations, and the guide's block.
#[tokio::test(flavor = "multi_thread")]
async fn declarations_fit_browsers_and_node() {
    let tools = need!(JavaScript::find());
    let (typescript, types) = (need!(tools.typescript()), need!(tools.types()));
    let package = package_folder().canonicalize().unwrap();
    let folder = Folder::fresh().unwrap();
    let [block] = super::guide::blocks("ts")[..] else { panic!("the guide has another number of blocks") };
    std::fs::write(folder.path().join("guide.ts"), block).unwrap();
    std::fs::write(folder.path().join("package.json"), "{ \"type\": \"module\" }").unwrap();
    for (libraries, types_of) in [(["es2022", "dom"], json!([])), (["es2022", "es2022"], json!(["node"]))] {
        let config = json!({
            "compilerOptions": {
                "noEmit": true, "strict": true, "target": "es2022", "module": "nodenext", "lib": libraries,
                "types": types_of, "typeRoots": [types],
                "paths": {
                    "@playhouse/client": [package.join("src/index.d.ts")],
                    "@playhouse/client/file-storage": [package.join("src/file-storage.d.ts")],
                },
            },
            "files": [package.join("test/types.ts").to_str().unwrap(), "guide.ts"],
        });
        std::fs::write(folder.path().join("tsconfig.json"), config.to_string()).unwrap();
        run(typescript.clone().args(["--project", "."]).folder(folder.path())).await;
    }
}

/// The names that the declarations export as values are those that the module exports.
#[tokio::test(flavor = "multi_thread")]
async fn declarations_and_module_export_the_same_names() {
    let tools = need!(JavaScript::find());
    let script = "console.log(JSON.stringify(Object.keys(await import('./src/index.js')).sort()))";
    let out =
        run(tools.node().args(["--input-type=module", "--eval", script]).folder(package_folder())).await;
    let exported: Vec<String> = serde_json::from_str(&out).unwrap();
    let text = std::fs::read_to_string(package_folder().join("src/index.d.ts")).unwrap();
    let name = |line: &str| {
        let rest = line.strip_prefix("export class ").or_else(|| line.strip_prefix("export function "))?;
        rest.split([' ', '(', '<']).next().map(str::to_owned)
    };
    let mut declared: Vec<String> = text.lines().filter_map(name).collect();
    declared.sort();
    assert_eq!(declared, exported);
}

#[tokio::test(flavor = "multi_thread")]
async fn package_contains_the_modules_their_types_and_the_license_only() {
    let tools = need!(JavaScript::find());
    let out = run(tools.npm().args(["pack", "--dry-run", "--json"]).folder(package_folder())).await;
    let report: Value = serde_json::from_str(&out).unwrap();
    let files = report[0]["files"].as_array().unwrap();
    let mut packed: Vec<String> =
        files.iter().map(|file| file["path"].as_str().unwrap().to_owned()).collect();
    packed.sort();
    let sources = std::fs::read_dir(package_folder().join("src")).unwrap();
    let sources = sources.map(|entry| format!("src/{}", entry.unwrap().file_name().into_string().unwrap()));
    let mut expected: Vec<String> =
        ["LICENSE", "README.md", "package.json"].map(str::to_owned).into_iter().chain(sources).collect();
    expected.sort();
    assert_eq!(packed, expected);
    assert!(expected.contains(&"src/index.d.ts".to_owned()), "{expected:?}");
    let license = |folder: PathBuf| std::fs::read_to_string(folder.join("LICENSE")).unwrap();
    assert_eq!(
        license(package_folder()),
        license(package_folder().join("../..")),
        "the repository's license"
    );

    let manifest: Value =
        serde_json::from_str(&std::fs::read_to_string(package_folder().join("package.json")).unwrap())
            .unwrap();
    assert_eq!(manifest["version"], env!("CARGO_PKG_VERSION"), "the client has the version of the program");
    for dependencies in ["dependencies", "devDependencies", "peerDependencies", "optionalDependencies"] {
        assert_eq!(manifest[dependencies], Value::Null, "{dependencies}");
    }
}
