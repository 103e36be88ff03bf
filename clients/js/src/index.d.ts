/**
 * The client of the Playhouse gateway, for browsers and Node.js 20.
 *
 * Every call returns the parsed response, or rejects with a {@link PlayhouseError}. Calls are retried within their deadline where a
 * repetition has no second effect. Call {@link Playhouse.close} at the end: it ends streams, timers and pending calls.
 */

import type {
  ClientConfig,
  CountsAnswer,
  DropAnswer,
  DropList,
  Home,
  JoinPartyRequest,
  MarkRequest,
  Me,
  MemberRequest,
  NotificationAnswer,
  NotificationList,
  Operations,
  OrderAnswer,
  OrderList,
  PartiesAnswer,
  PartyAnswer,
  PartyTicketRequest,
  PlaceAnswer,
  PlayerAccounts,
  PlayerEntitlements,
  PlayerRequest,
  ProblemType,
  ReservationAnswer,
  ReserveRequest,
  StockAnswer,
  TicketAnswer,
  TicketList,
  TicketRequest,
} from "./api.js";

export type * from "./api.js";

// ---- Options ------------------------------------------------------------------------------------------------------------------

/** A storage like `localStorage`. The offline queue is kept in it. */
export interface Storage {
  readonly length: number;
  key(index: number): string | null;
  getItem(key: string): string | null;
  setItem(key: string, value: string): void;
  removeItem(key: string): void;
}

/** Returns a storage that ends with the program. */
export function memoryStorage(): Storage;

export interface PlayhouseOptions {
  /** The URL of the gateway. Default in browsers: the origin of the page. Required in Node. */
  baseUrl?: string;
  /** How the player is signed in. Default: {@link browserSession}. */
  auth?: Auth;
  /** Sent as `X-Client-Platform`. */
  platform?: string;
  /** Sent as `X-Client-Version`. */
  version?: string;
  /** Sent as `Accept-Language`: the language of notifications. */
  language?: string;
  /** Where the offline queue is kept. Default in browsers: `localStorage`; in Node: memory. */
  storage?: Storage;
  /** How many milliseconds a call may take in all, with its retries. `Infinity`: without an end. Default: 30,000. */
  deadline?: number;
  /** How many milliseconds one attempt of a call may take. Default: 12,000. */
  attemptTimeout?: number;
  queue?: QueueOptions;
  /** For tests: replaces the global `fetch`. */
  fetch?: typeof fetch;
  /** For tests: replaces `Date.now`. */
  now?: () => number;
  /** For tests: replaces `Math.random`. */
  random?: () => number;
}

/** The options of a call. */
export interface CallOptions {
  /** Cancels the call, which rejects with {@link CancelledError}. */
  signal?: AbortSignal;
  /** How many milliseconds this call may take in all. */
  deadline?: number;
  /** The `Idempotency-Key` of a change. Default: a random one per call. */
  idempotencyKey?: string;
}

/** The options of {@link Playhouse.request}. */
export interface RequestOptions extends CallOptions {
  query?: Record<string, string | number | boolean | null | undefined>;
  /** The body, sent as JSON. */
  body?: unknown;
  headers?: Record<string, string>;
}

// ---- Sign-in ------------------------------------------------------------------------------------------------------------------

/** How requests prove who the player is: {@link browserSession} or {@link bearer}. */
export interface Auth {
  readonly kind: "session" | "bearer";
}

/** The tokens of an OpenID Connect issuer. */
export interface Tokens {
  accessToken: string;
  refreshToken?: string;
  /** When the access token expires, in milliseconds since 1970 by the server's clock. Default: the `exp` of the token. */
  expiresAt?: number;
}

export interface BearerOptions extends Partial<Tokens> {
  /**
   * Gets new tokens. It is called once, however many calls wait for it. Throw {@link SignedOutError} if the player must sign in again;
   * other errors count as a network that is down. Default: the refresh token grant at `tokenEndpoint`.
   */
  refresh?: (tokens: Partial<Tokens>) => Promise<Tokens>;
  /** The issuer's token endpoint, for the default `refresh`. */
  tokenEndpoint?: string;
  /** The client id at the issuer, for the default `refresh`. Default: `playhouse-game`. */
  clientId?: string;
  /** Called with new tokens, before any call uses them. Store the refresh token here: the previous one is used up. */
  onTokens?: (tokens: Tokens) => void;
}

/** The session cookie of a browser. Changes carry the header `X-Playhouse-CSRF`. */
export function browserSession(): Auth;
/** Access tokens of the issuer, refreshed before they expire. */
export function bearer(options: BearerOptions): Auth;

// ---- Errors -------------------------------------------------------------------------------------------------------------------

/** The base of all errors of this client. */
export class PlayhouseError extends Error {}

/** A problem document of the gateway. */
export class ProblemError extends PlayhouseError {
  /** The whole type, for example `urn:playhouse:problem:drops:sold-out`. */
  readonly type: string;
  /** The type without its prefix, for example `drops:sold-out`. A type that this version does not know is kept as it is. */
  readonly code: ProblemType | (string & {});
  readonly status: number;
  readonly title: string;
  /** For people: what happened and what to do. */
  readonly detail: string | undefined;
  /** Finds the request in the server's logs. */
  readonly requestId: string | undefined;
  /** Further members of the document, such as `update_url`. */
  readonly members: Record<string, unknown>;
  /** The mistakes of the request, if the document lists them. */
  readonly errors: unknown[] | undefined;
  /** How many milliseconds to wait before a repetition, from `Retry-After`. */
  readonly retryAfter: number | undefined;
}

/** The player is not signed in, or no longer. Sign in again. */
export class SignedOutError extends PlayhouseError {
  constructor(message?: string, options?: { code?: string; cause?: unknown });
  /** `unauthenticated`, or the error of the issuer, such as `invalid_grant`. */
  readonly code: string;
}
/** The gateway could not be reached, or the connection broke. */
export class NetworkError extends PlayhouseError {}
/** The deadline of the call has passed. `cause` is the last error. */
export class DeadlineError extends PlayhouseError {}
/** The call was cancelled by its signal or by {@link Playhouse.close}. */
export class CancelledError extends PlayhouseError {}
/** The offline queue is full. */
export class QueueFullError extends PlayhouseError {}

/** Returns whether an error is a {@link ProblemError}, of this type if one is named. */
export function isProblem(error: unknown, code?: ProblemType | (string & {})): error is ProblemError;

// ---- Live updates -------------------------------------------------------------------------------------------------------------

/**
 * - `connecting`: the first connection, or a short interruption.
 * - `open`: events arrive over a stream.
 * - `polling`: events arrive by long poll, because a stream is not possible here.
 * - `offline`: the gateway cannot be reached. The client keeps trying.
 * - `ended`: closed, or ended by the server. There will be no more events.
 */
export type LiveState = "connecting" | "open" | "polling" | "offline" | "ended";

/** Why a stream has ended: a code of docs/reference/streams.md, or `closed`, or the code of a problem. */
export interface LiveEnd {
  code: "signed_out" | "banned" | "ticket_gone" | "finished" | "closed" | (string & {});
  why: string;
}

/** As of `EventTarget`. */
export type ListenerOptions = boolean | { capture?: boolean; once?: boolean; passive?: boolean; signal?: AbortSignal };

/** An `EventTarget` whose events have their value in `detail`. */
export interface Emitter<Events> {
  addEventListener<Name extends keyof Events & string>(
    type: Name,
    listener: (event: CustomEvent<Events[Name]>) => void,
    options?: ListenerOptions,
  ): void;
  removeEventListener<Name extends keyof Events & string>(
    type: Name,
    listener: (event: CustomEvent<Events[Name]>) => void,
    options?: ListenerOptions,
  ): void;
  /** Calls `handler` with the detail of each event. Returns a function that removes it. */
  on<Name extends keyof Events & string>(type: Name, handler: (detail: Events[Name]) => void): () => void;
}

export interface LiveEvents {
  state: LiveState;
  /** The home screen: after the first load, and again after each reconnect. Later notifications come as `notification`. */
  home: Home;
  /** A new notification: each one once, in order. */
  notification: NotificationAnswer;
  /** The unread and unseen counts. */
  inbox: CountsAnswer;
  /** The whole state of a ticket. */
  ticket: TicketAnswer;
  /** The party and the invitations of the player, after each change. */
  party: PartiesAnswer;
  end: LiveEnd;
}

export interface DropEvents {
  state: LiveState;
  /** The newest stock. Older versions are left out. */
  stock: StockAnswer;
  /** The player's place. Only with `place: true`. */
  place: PlaceAnswer;
  end: LiveEnd;
}

/** A stream that is kept open until {@link LiveStream.close} or `end`. */
export interface LiveStream<Events> extends Emitter<Events> {
  readonly state: LiveState;
  /** Closes the stream. `end` has the code `closed`. */
  close(): void;
}

/** The stream of the player. */
export interface Live extends LiveStream<LiveEvents> {
  /** The latest home screen. */
  readonly home: Home | undefined;
  /** The position of the last notification. */
  readonly position: string | undefined;
}

export interface LiveOptions {
  /** `auto` uses a stream, and long polls where streams do not work. Default: `auto`. */
  transport?: "auto" | "stream" | "poll";
  /** Resume after this position instead of the home screen's, for example one that was stored before a restart. */
  after?: string;
}

export interface FollowOptions {
  /** Also follow the player's place in the line. */
  place?: boolean;
  /** As in {@link LiveOptions}. */
  transport?: "auto" | "stream" | "poll";
}

// ---- Offline queue ------------------------------------------------------------------------------------------------------------

export interface QueueOptions {
  /** How many actions a player may have in the queue. `Infinity`: as many as the storage takes. Default: 100. */
  max?: number;
  /** How many milliseconds an action is kept if it cannot be sent. `Infinity`: until it is sent. Default: one day. */
  expiresIn?: number;
}

/** The calls that can be queued by name, with their arguments. */
export interface QueueableCalls {
  "tickets.create": [body: TicketRequest];
  "tickets.cancel": [ticketId: string];
  "tickets.accept": [ticketId: string];
  "tickets.decline": [ticketId: string];
  "parties.create": [body: MemberRequest];
  "parties.join": [body: JoinPartyRequest];
  "parties.invite": [body: PlayerRequest];
  "parties.accept": [partyId: string, body: MemberRequest];
  "parties.decline": [partyId: string];
  "parties.leave": [];
  "parties.kick": [body: PlayerRequest];
  "parties.handOver": [body: PlayerRequest];
  "parties.setMember": [body: MemberRequest];
  "parties.queue": [body: PartyTicketRequest];
  "parties.cancel": [];
  "inbox.mark": [body: MarkRequest];
  "drops.join": [dropId: string, params?: Operations["join_drop"]["query"]];
  "drops.leave": [dropId: string];
  "drops.reserve": [dropId: string, body: ReserveRequest];
  "drops.release": [dropId: string, reservationId: string];
  "drops.pay": [dropId: string, reservationId: string, params?: Operations["pay"]["query"]];
}

/** A change that is sent as soon as the gateway can be reached. */
export interface QueuedAction {
  readonly id: string;
  /** The idempotency key, made when the action was added. Every attempt has it. */
  readonly key: string;
  /** The name of the call, if it was added by name. */
  readonly name: string | undefined;
  readonly method: string;
  readonly path: string;
  readonly query: RequestOptions["query"];
  readonly body: unknown;
  /** Milliseconds since 1970. */
  readonly addedAt: number;
  /** Milliseconds since 1970. Missing if the action does not expire. */
  readonly expiresAt?: number;
  /** Whose action it is, if that was known. It is never sent as another player. */
  readonly userId: string | undefined;
}

export interface QueueEvents {
  /** The action was applied. `result` is the response. */
  sent: { action: QueuedAction; result: unknown };
  /** The gateway refused the action for good. It is no longer in the queue. */
  failed: { action: QueuedAction; error: PlayhouseError };
  /** The action could not be sent in time. It is no longer in the queue. */
  expired: { action: QueuedAction };
  /** The number of waiting actions changed. */
  size: number;
}

export interface QueueAddOptions {
  /** As in {@link QueueOptions}, for this action. */
  expiresIn?: number;
  idempotencyKey?: string;
}

/** Actions of the player that are sent in order, once the gateway can be reached. They survive the end of the page. */
export interface OfflineQueue extends Emitter<QueueEvents> {
  /** The number of waiting actions of the player. */
  readonly size: number;
  /** Adds an action and stores it. Throws {@link QueueFullError} if the queue is full. */
  add<Name extends keyof QueueableCalls>(name: Name, args: QueueableCalls[Name], options?: QueueAddOptions): QueuedAction;
  add(
    request: { method: string; path: string; query?: RequestOptions["query"]; body?: unknown },
    options?: QueueAddOptions,
  ): QueuedAction;
  /** Returns the waiting actions of the player, the oldest first. */
  items(): QueuedAction[];
  /** Removes an action. Returns whether it was still waiting. A request in flight is not cancelled. */
  remove(id: string): boolean;
  /** Sends what is waiting now. Resolves when the queue is empty, or the gateway cannot be reached. */
  flush(): Promise<void>;
}

// ---- The client ---------------------------------------------------------------------------------------------------------------

export class Playhouse {
  constructor(options?: PlayhouseOptions);

  /** The signed-in user. `session.logout_url` ends a browser session. */
  me(options?: CallOptions): Promise<Me>;
  /** The home screen in one response. A part that is not available has the status `unavailable`. */
  home(options?: CallOptions): Promise<Home>;
  clientConfig(options?: CallOptions): Promise<ClientConfig>;
  accounts(options?: CallOptions): Promise<PlayerAccounts>;
  entitlements(
    params?: Operations["entitlements"]["query"],
    options?: CallOptions,
  ): Promise<PlayerEntitlements>;

  readonly tickets: {
    /** Joins a queue. Returns the existing ticket if the player already waits. */
    create(body: TicketRequest, options?: CallOptions): Promise<TicketAnswer>;
    list(options?: CallOptions): Promise<TicketList>;
    get(ticketId: string, options?: CallOptions): Promise<TicketAnswer>;
    cancel(ticketId: string, options?: CallOptions): Promise<null>;
    /** Accepts the match of a ready check. */
    accept(ticketId: string, options?: CallOptions): Promise<TicketAnswer>;
    /** Declines it. The ticket is cancelled. */
    decline(ticketId: string, options?: CallOptions): Promise<null>;
  };

  readonly parties: {
    /** Returns the player's party and invitations. */
    get(options?: CallOptions): Promise<PartiesAnswer>;
    /** Creates a party that the player leads. Returns the existing one if the player leads one. */
    create(body: MemberRequest, options?: CallOptions): Promise<PartyAnswer>;
    /** Joins by the code of the party. */
    join(body: JoinPartyRequest, options?: CallOptions): Promise<PartyAnswer>;
    invite(body: PlayerRequest, options?: CallOptions): Promise<PartyAnswer>;
    accept(partyId: string, body: MemberRequest, options?: CallOptions): Promise<PartyAnswer>;
    decline(partyId: string, options?: CallOptions): Promise<null>;
    /** Leaves. Cancels the ticket of the party. */
    leave(options?: CallOptions): Promise<null>;
    /** Removes a member. Only for the leader. Not repeated after a lost response: read the party. */
    kick(body: PlayerRequest, options?: CallOptions): Promise<PartyAnswer>;
    /** Makes another member the leader. */
    handOver(body: PlayerRequest, options?: CallOptions): Promise<PartyAnswer>;
    /** Replaces the player's own search fields. */
    setMember(body: MemberRequest, options?: CallOptions): Promise<PartyAnswer>;
    /** Queues the party. Only for the leader. Returns the existing ticket if the party already waits. */
    queue(body: PartyTicketRequest, options?: CallOptions): Promise<TicketAnswer>;
    cancel(options?: CallOptions): Promise<null>;
  };

  readonly inbox: {
    list(params?: Operations["notifications"]["query"], options?: CallOptions): Promise<NotificationList>;
    counts(options?: CallOptions): Promise<CountsAnswer>;
    get(notificationId: string, options?: CallOptions): Promise<NotificationAnswer>;
    /** Marks notifications by `ids` or `up_to` a position. */
    mark(body: MarkRequest, options?: CallOptions): Promise<CountsAnswer>;
  };

  readonly drops: {
    list(options?: CallOptions): Promise<DropList>;
    get(dropId: string, options?: CallOptions): Promise<DropAnswer>;
    join(dropId: string, params?: Operations["join_drop"]["query"], options?: CallOptions): Promise<PlaceAnswer>;
    leave(dropId: string, options?: CallOptions): Promise<null>;
    place(dropId: string, options?: CallOptions): Promise<PlaceAnswer>;
    /** Holds units. The same `idempotencyKey` gets the same reservation. */
    reserve(dropId: string, body: ReserveRequest, options?: CallOptions): Promise<ReservationAnswer>;
    release(dropId: string, reservationId: string, options?: CallOptions): Promise<ReservationAnswer>;
    /** Orders the reserved units. Send the player to `checkout_url`. */
    pay(
      dropId: string,
      reservationId: string,
      params?: Operations["pay"]["query"],
      options?: CallOptions,
    ): Promise<OrderAnswer>;
    stock(dropId: string, params?: Operations["drop_stock"]["query"], options?: CallOptions): Promise<StockAnswer>;
    /** Follows the stock, and with `place` the player's place. Each call opens a stream of its own. */
    follow(dropId: string, options?: FollowOptions): LiveStream<DropEvents>;
  };

  readonly orders: {
    list(params?: Operations["orders"]["query"], options?: CallOptions): Promise<OrderList>;
    get(orderId: string, options?: CallOptions): Promise<OrderAnswer>;
  };

  /** Actions that are sent once the gateway can be reached. */
  readonly queue: OfflineQueue;

  /** Starts the stream of the player. Returns the same object until it has ended. */
  live(options?: LiveOptions): Live;

  /**
   * Sends any other request. A GET, PUT or DELETE is retried. A POST is retried if the gateway is known to apply it once, or if
   * `idempotencyKey` is given.
   */
  request<T = unknown>(method: string, path: string, options?: RequestOptions): Promise<T>;

  /** The server's time in milliseconds since 1970, estimated from its responses. For countdowns. */
  serverNow(): number;

  /** Ends streams, timers and pending calls. Queued actions stay in the storage. */
  close(): void;
}
