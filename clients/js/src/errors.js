// The errors of the client, and how responses become errors.

const PREFIX = "urn:playhouse:problem:";
// The members of a problem document that have a property of their own.
const KNOWN = new Set(["type", "title", "status", "detail", "request_id", "errors"]);

export class PlayhouseError extends Error {
  constructor(message, options) {
    super(message, options);
    this.name = new.target.name;
  }
}

export class NetworkError extends PlayhouseError {}
export class DeadlineError extends PlayhouseError {}
export class CancelledError extends PlayhouseError {}
export class QueueFullError extends PlayhouseError {}

export class SignedOutError extends PlayhouseError {
  constructor(message = "The player is signed out.", { code = "unauthenticated", cause } = {}) {
    super(message, { cause });
    this.code = code;
  }
}

export class ProblemError extends PlayhouseError {
  constructor(status, document = {}, { requestId, retryAfter } = {}) {
    const { type = "about:blank", title = `HTTP status ${status}`, detail, request_id, errors } = document;
    super(detail ?? title);
    this.type = type;
    // A response that is not from the gateway, such as a proxy's error page, has no type.
    this.code = type === "about:blank" ? `http-${status}` : type.startsWith(PREFIX) ? type.slice(PREFIX.length) : type;
    this.status = status;
    this.title = title;
    this.detail = detail;
    this.requestId = request_id ?? requestId;
    this.errors = errors;
    this.retryAfter = retryAfter;
    this.members = Object.fromEntries(Object.entries(document).filter(([name]) => !KNOWN.has(name)));
  }
}

export function isProblem(error, code) {
  return error instanceof ProblemError && (code === undefined || error.code === code || error.type === code);
}

// Returns the error of a response that is not a success.
export async function problemOf(response, now) {
  const text = await response.text().catch(() => "");
  const headers = { requestId: response.headers.get("x-request-id") ?? undefined, retryAfter: retryAfter(response, now) };
  try {
    const document = JSON.parse(text);
    if (document && typeof document === "object") return new ProblemError(response.status, document, headers);
  } catch {
    // Not a document of the gateway.
  }
  return new ProblemError(response.status, {}, headers);
}

// Returns the milliseconds of `Retry-After`, which is a number of seconds or a date.
function retryAfter(response, now) {
  const text = response.headers.get("retry-after");
  if (!text) return undefined;
  const wait = /^\d+$/.test(text.trim()) ? Number(text) * 1000 : Date.parse(text) - now;
  return Number.isFinite(wait) ? Math.max(0, wait) : undefined;
}
