// How requests prove who the player is.
//
// An `auth` adds its credentials to a request (`apply`) and recovers from a refusal of them (`recover`). Both take a context of the
// client: `fetch`, `serverNow` and a `signal` that ends with the client.

import { NetworkError, SignedOutError } from "./errors.js";
import { Scope } from "./time.js";

// A token is refreshed when less than this part of its life is left, and at most this many milliseconds before its end.
const REFRESH_PART = 0.2;
const REFRESH_EARLY = 30_000;
const REFRESH_TIMEOUT = 15_000;

export function browserSession() {
  return {
    kind: "session",
    credentials: "include",
    async apply(headers, { isChange }) {
      if (isChange) headers["x-playhouse-csrf"] = "1";
    },
    // The gateway refreshes sessions itself: a refused one has ended.
    async recover() {
      return false;
    },
  };
}

export function bearer(options) {
  return new Bearer(options);
}

class Bearer {
  kind = "bearer";
  credentials = "omit";
  #options;
  #tokens;
  // When to refresh, in server time.
  #refreshAt;
  // The refresh in flight, which all calls share.
  #refreshing;

  constructor(options = {}) {
    this.#options = options;
    this.#tokens = { accessToken: options.accessToken, refreshToken: options.refreshToken, expiresAt: options.expiresAt };
  }

  async apply(headers, context) {
    const { accessToken } = this.#tokens;
    if (!accessToken || context.serverNow() >= this.#dueAt(context)) {
      await this.#refresh(context, accessToken).catch((error) => {
        // The old token may still be valid for a moment.
        if (!accessToken || !(error instanceof NetworkError) || context.serverNow() >= this.#expiresAt()) throw error;
      });
    }
    headers.authorization = `Bearer ${this.#tokens.accessToken}`;
    return this.#tokens.accessToken;
  }

  // Gets a new token in place of one that was refused. Returns whether the request can be repeated.
  async recover(refused, context) {
    await this.#refresh(context, refused);
    return true;
  }

  #expiresAt() {
    this.#tokens.expiresAt ??= expiryOf(this.#tokens.accessToken);
    return this.#tokens.expiresAt;
  }

  #dueAt(context) {
    if (this.#refreshAt === undefined) {
      const expiresAt = this.#expiresAt();
      const life = lifeOf(this.#tokens.accessToken) ?? Math.max(0, expiresAt - context.serverNow());
      this.#refreshAt = expiresAt - Math.min(REFRESH_EARLY, life * REFRESH_PART);
    }
    return this.#refreshAt;
  }

  // Replaces the token `old`. Returns at once if another call has replaced it meanwhile.
  async #refresh(context, old) {
    if (this.#tokens.accessToken !== old) return;
    this.#refreshing ??= this.#redeem(context).finally(() => (this.#refreshing = undefined));
    await this.#refreshing;
  }

  async #redeem(context) {
    const { refresh, tokenEndpoint, onTokens } = this.#options;
    if (!refresh && !(tokenEndpoint && this.#tokens.refreshToken)) {
      throw new SignedOutError("The access token has expired, and there is no way to refresh it.");
    }
    const redeemed = refresh ? await this.#ask(refresh) : await this.#grant(context);
    this.#tokens = { refreshToken: this.#tokens.refreshToken, ...redeemed };
    this.#refreshAt = undefined;
    onTokens?.({ ...this.#tokens, expiresAt: this.#expiresAt() });
  }

  async #ask(refresh) {
    try {
      return await refresh({ ...this.#tokens });
    } catch (cause) {
      if (cause instanceof SignedOutError) throw cause;
      throw new NetworkError("The access token could not be refreshed.", { cause });
    }
  }

  // The refresh token grant of OAuth 2.
  async #grant(context) {
    const { tokenEndpoint, clientId = "playhouse-game" } = this.#options;
    const scope = new Scope(context.signal);
    scope.timeout(REFRESH_TIMEOUT, () => new NetworkError("The issuer did not answer in time."));
    try {
      const body = new URLSearchParams({
        grant_type: "refresh_token",
        client_id: clientId,
        refresh_token: this.#tokens.refreshToken,
      });
      const response = await context.fetch(tokenEndpoint, { method: "POST", body, credentials: "omit", signal: scope.signal });
      const answer = await response.json().catch(() => ({}));
      if (response.ok && answer.access_token) {
        const { access_token: accessToken, refresh_token: refreshToken, expires_in: life } = answer;
        // The time in the token is by the issuer's clock. `expires_in` counts from now, by a clock that may not be known yet.
        const inToken = expiryOf(accessToken);
        const expiresAt = inToken === Infinity && life ? context.serverNow() + life * 1000 : inToken;
        return { accessToken, expiresAt, ...(refreshToken && { refreshToken }) };
      }
      if (response.status >= 400 && response.status < 500 && response.status !== 429) {
        // It is used up or revoked: asking again would be refused again.
        this.#tokens.refreshToken = undefined;
        throw new SignedOutError(answer.error_description ?? "The issuer refused to refresh the token.", { code: answer.error });
      }
      throw new NetworkError(`The issuer answered ${response.status}.`);
    } catch (cause) {
      if (cause instanceof SignedOutError || cause instanceof NetworkError) throw cause;
      if (scope.signal.aborted) throw scope.signal.reason;
      throw new NetworkError("The issuer could not be reached.", { cause });
    } finally {
      scope.end();
    }
  }
}

// Returns the claims of a JWT, or none if the token is not one.
function claimsOf(token) {
  try {
    return JSON.parse(atob(token.split(".")[1].replaceAll("-", "+").replaceAll("_", "/")));
  } catch {
    return {};
  }
}

// Returns the `exp` of a token in milliseconds. A token without one is used until it is refused.
function expiryOf(token) {
  const { exp } = claimsOf(token);
  return Number.isFinite(exp) ? exp * 1000 : Infinity;
}

// Returns for how many milliseconds a token was issued, if it says so.
function lifeOf(token) {
  const { exp, iat } = claimsOf(token);
  return Number.isFinite(exp - iat) ? (exp - iat) * 1000 : undefined;
}
