import type { Storage } from "./index.js";

/** Keeps the offline queue of a Node program in a file. Each change replaces the file atomically. */
export function fileStorage(path: string): Storage;
