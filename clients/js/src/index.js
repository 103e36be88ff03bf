// The client of the Playhouse gateway. index.d.ts describes it.

export { bearer, browserSession } from "./auth.js";
export { Playhouse } from "./client.js";
export {
  CancelledError,
  DeadlineError,
  NetworkError,
  PlayhouseError,
  ProblemError,
  QueueFullError,
  SignedOutError,
  isProblem,
} from "./errors.js";
export { memoryStorage } from "./storage.js";
