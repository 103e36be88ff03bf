// Checked by TypeScript and not run: what the declarations accept and refuse.

import {
  type CallOptions,
  type Calls,
  DeadlineError,
  type Home,
  type LiveState,
  type NotificationAnswer,
  type Operations,
  Playhouse,
  PlayhouseError,
  type ProblemType,
  type QueueableCalls,
  SignedOutError,
  bearer,
  browserSession,
  isProblem,
  memoryStorage,
} from "@playhouse/client";
import { fileStorage } from "@playhouse/client/file-storage";

const client = new Playhouse({
  baseUrl: "http://127.0.0.1:8080",
  auth: bearer({ refreshToken: "r", tokenEndpoint: "http://127.0.0.1:8080/issuer/token", onTokens: (tokens) => void tokens.accessToken.length }),
  storage: Math.random() < 0.5 ? fileStorage("queue.json") : memoryStorage(),
  queue: { max: 10, expiresIn: 1000 },
});
new Playhouse({ auth: browserSession() });
bearer({ refresh: async ({ refreshToken }) => ({ accessToken: `${refreshToken}`, expiresAt: 1 }) });
// @ts-expect-error: there is no such option.
new Playhouse({ retries: 3 });
// @ts-expect-error: an auth is made by the functions of the package.
new Playhouse({ auth: "token" });

async function calls(): Promise<void> {
  const options = { signal: new AbortController().signal, deadline: 1000, idempotencyKey: "k" };
  const me = await client.me(options);
  const logout: string | undefined = me.session?.logout_url;
  const ticket = await client.tickets.create({ queue: "duel", replaces: logout ?? null });
  const connection: string | undefined = ticket.assignment?.connection;
  await client.inbox.mark({ mark: "read", up_to: 3 }, options);
  const reservation = await client.drops.reserve("d", { quantity: 1, admission: connection ?? "" });
  const order = await client.drops.pay("d", reservation.reservation_id, { quantity: 1 });
  const url: string | null | undefined = order.checkout_url;
  const own = await client.request<{ won: boolean }>("POST", "/v1/arena", { body: { url }, query: { n: 1 } });
  const won: boolean = own.won;
  void won;
  // @ts-expect-error: `mark` is one of five words.
  await client.inbox.mark({ mark: "lost" });
  // @ts-expect-error: a reservation needs an admission.
  await client.drops.reserve("d", { quantity: 1 });
  // @ts-expect-error: the response has no such field.
  void me.password;
}

function live(): void {
  const live = client.live({ transport: "auto", after: "3" });
  const states: LiveState[] = [live.state];
  const stop: () => void = live.on("state", (state) => states.push(state));
  live.on("home", (home: Home) => {
    if (home.notifications.status === "ok") void home.notifications.data.last_event_id;
    // @ts-expect-error: a part may be unavailable.
    void home.matchmaking.data.tickets;
  });
  live.addEventListener("notification", ({ detail }) => void (detail satisfies NotificationAnswer).title, { once: true });
  live.on("inbox", ({ unread, unseen }) => void (unread + unseen));
  live.on("ticket", ({ state }) => void state);
  live.on("end", ({ code, why }) => void (code + why));
  // @ts-expect-error: there is no such event.
  live.on("message", () => {});
  stop();
  const drop = client.drops.follow("d", { place: true });
  drop.on("stock", ({ available }) => void available);
  drop.on("place", ({ ahead }) => void ahead);
  // @ts-expect-error: notifications are on the player's stream.
  drop.on("notification", () => {});
  drop.close();
}

function queue(): void {
  const action = client.queue.add("drops.reserve", ["d", { quantity: 1, admission: "a" }], { expiresIn: 1000 });
  client.queue.add({ method: "POST", path: "/v1/arena", body: {} }, { idempotencyKey: action.key });
  client.queue.on("sent", ({ action, result }) => void [action.id, result]);
  client.queue.on("failed", ({ error }) => void isProblem(error, "drops:sold-out"));
  client.queue.on("size", (size) => void size.toFixed());
  // @ts-expect-error: reads are not queued.
  client.queue.add("me", []);
  // @ts-expect-error: the arguments are those of the call.
  client.queue.add("tickets.cancel", [3]);
}

function errors(error: unknown): string | undefined {
  const known: ProblemType = "drops:sold-out";
  if (isProblem(error, known) || isProblem(error, "arena:full")) return error.detail ?? error.title;
  if (error instanceof SignedOutError) return error.code;
  if (error instanceof DeadlineError || error instanceof PlayhouseError) return error.message;
  // @ts-expect-error: a known problem type is spelled as the gateway spells it.
  const wrong: ProblemType = "drops:soldout";
  return wrong;
}

// ---- Each call has the arguments and the response of its operation ----

type Same<One, Other> = (<T>() => T extends One ? 1 : 2) extends <T>() => T extends Other ? 1 : 2 ? true : false;
/** The ids in a path, as arguments. */
type Ids<Path extends string> = Path extends `${string}{${string}}${infer Rest}` ? [string, ...Ids<Rest>] : [];
type Rest<Operation> = Operation extends { body: infer Body } ? [Body] : Operation extends { query: infer Query } ? [params?: Query] : [];
type Arguments<Id extends keyof Operations> = [...Ids<Operations[Id]["path"]>, ...Rest<Operations[Id]>];
type Call<Id extends keyof Operations> = [[...Arguments<Id>, options?: CallOptions], Promise<Operations[Id]["response"]>];
type Declared<Name extends string> = Name extends `${infer Group}.${infer Method}`
  ? Group extends keyof Playhouse ? (Method extends keyof Playhouse[Group] ? Parts<Playhouse[Group][Method]> : never) : never
  : Name extends keyof Playhouse ? Parts<Playhouse[Name]> : never;
type Parts<Method> = Method extends (...args: infer Args) => infer Answer ? [Args, Answer] : never;

/** The names of calls whose declaration differs from their operation. */
type Wrong = { [Name in keyof Calls]: Same<Declared<Name>, Call<Calls[Name]>> extends true ? never : Name }[keyof Calls];
/** The names of queueable calls whose arguments differ from those of their operation. */
type WrongInQueue = {
  [Name in keyof QueueableCalls]: Same<[...QueueableCalls[Name]], Arguments<Calls[Name]>> extends true ? never : Name;
}[keyof QueueableCalls];
/** The calls that change something. */
type Changes = { [Name in keyof Calls]: Operations[Calls[Name]]["method"] extends "GET" ? never : Name }[keyof Calls];
/** What the groups declare. `follow` and the queue are no calls. */
type Grouped = { [Group in "tickets" | "parties" | "inbox" | "drops" | "orders"]: `${Group}.${keyof Playhouse[Group] & string}` }[
  "tickets" | "parties" | "inbox" | "drops" | "orders"
];

const isDeclared: Same<Wrong, never> = true;
const isQueueable: Same<WrongInQueue, never> = true;
const areChanges: Same<keyof QueueableCalls, Changes> = true;
const areCalls: Same<Exclude<Grouped, keyof Calls>, "drops.follow"> = true;
void [isDeclared, isQueueable, areChanges, areCalls];

const path: Operations["events"]["path"] = "/v1/events";
void [calls, live, queue, errors, path];
