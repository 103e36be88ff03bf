import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { appendFileSync, cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

const ROOT = fileURLToPath(new URL("../../../", import.meta.url));

// Runs `work` with a copy of the generator and of all that it reads.
function withCopy(work) {
  const folder = mkdtempSync(join(tmpdir(), "playhouse-types-"));
  try {
    for (const part of ["clients/js/scripts", "clients/js/src", "clients/js/package.json", "docs/reference"]) {
      cpSync(join(ROOT, part), join(folder, part), { recursive: true });
    }
    const path = (name) => join(folder, name);
    const edit = (name, change) => writeFileSync(path(name), change(readFileSync(path(name), "utf8")));
    const generate = (...args) => spawnSync(process.execPath, [path("clients/js/scripts/generate-types.mjs"), ...args], { encoding: "utf8" });
    work({ path, edit, generate });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const TYPES = "clients/js/src/api.d.ts";
const ERRORS = "docs/reference/errors.md";

test("`--check` fails for types that differ from the documents, and writes nothing", () => {
  withCopy(({ path, edit, generate }) => {
    assert.equal(generate("--check").status, 0);
    edit(TYPES, (text) => text.replace('  | "drops:sold-out"\n', ""));
    const changed = readFileSync(path(TYPES), "utf8");
    const { status, stderr } = generate("--check");
    assert.deepEqual([status, stderr.includes("generate-types.mjs")], [1, true], stderr);
    assert.equal(readFileSync(path(TYPES), "utf8"), changed);
    assert.equal(generate().status, 0);
    assert.equal(generate("--check").status, 0);
  });
});

test("a new section of problem types is a player's", () => {
  withCopy(({ path, generate }) => {
    appendFileSync(path(ERRORS), "\n## Arenas\n\n| `type` ends with | HTTP |\n|---|---|\n| `arenas:closed` | 409 |\n");
    assert.equal(generate("--check").status, 1);
    assert.equal(generate().status, 0);
    assert.ok(readFileSync(path(TYPES), "utf8").includes('  | "arenas:closed"'));
  });
});

test("a renamed section of others is noticed", () => {
  withCopy(({ edit, generate }) => {
    edit(ERRORS, (text) => text.replace("## Drops: operators and services", "## Drops: operators"));
    const { status, stderr } = generate("--check");
    assert.deepEqual([status, stderr.includes('no section "Drops: operators and services"')], [1, true], stderr);
  });
});
