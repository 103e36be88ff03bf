// A storage for Node programs, in a file.

import { closeSync, fsyncSync, openSync, readFileSync, renameSync, writeSync } from "node:fs";

export function fileStorage(path) {
  const values = new Map(Object.entries(read(path)));
  // A crash leaves the old file or the new one.
  const save = () => {
    const file = openSync(`${path}.new`, "w", 0o600);
    writeSync(file, JSON.stringify(Object.fromEntries(values)));
    fsyncSync(file);
    closeSync(file);
    renameSync(`${path}.new`, path);
  };
  return {
    get length() {
      return values.size;
    },
    key: (index) => [...values.keys()][index] ?? null,
    getItem: (key) => values.get(key) ?? null,
    setItem(key, value) {
      values.set(key, String(value));
      save();
    },
    removeItem(key) {
      if (values.delete(key)) save();
    },
  };
}

function read(path) {
  try {
    return JSON.parse(readFileSync(path, "utf8"));
  } catch (error) {
    if (error.code === "ENOENT") return {};
    throw error;
  }
}
