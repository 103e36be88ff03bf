// An identity provider for tests: panva's certified oidc-provider, with commands for the test kit.
//
//   node server.mjs CONFIG      CONFIG is JSON, see `config` in ../oidc_provider.rs
//
// The state (keys, clients, sessions, tokens) is in the file `state` and survives a kill.
// Paths below /COMMAND_PREFIX/, which only the test kit knows, are commands; the provider serves all other paths.
// oidc-provider 8, because version 9 does not support Node 18, which Debian 12 has.

import { generateKeyPairSync, randomUUID } from 'node:crypto';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import Provider from 'oidc-provider';

const config = JSON.parse(process.argv[2]);
const issuer = `http://127.0.0.1:${config.port}`;
const commandRoot = `/${config.command_prefix}/`;
// A resource must be a URI. The audience of the tokens is configured separately.
const resource = 'urn:testkit:api';
const scopes = 'openid profile offline_access';

const state = load();
const counts = { refreshes: 0, refused: 0, delayed: 0 };
const faults = { failing: false, slow: 0 };
let handler;

function load() {
  try {
    const saved = JSON.parse(readFileSync(config.state, 'utf8'));
    return { ...saved, store: new Map(saved.store) };
  } catch (error) {
    if (error.code !== 'ENOENT') throw error;
    return { keys: [newKey()], clients: config.clients, roles: {}, store: new Map() };
  }
}

function save() {
  const text = JSON.stringify({ ...state, store: [...state.store] });
  writeFileSync(`${config.state}.new`, text);
  renameSync(`${config.state}.new`, config.state);
}

function newKey() {
  const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 });
  return { ...privateKey.export({ format: 'jwk' }), kid: randomUUID(), use: 'sig', alg: 'RS256' };
}

// The storage of the provider, one instance per model.
class Store {
  constructor(kind) {
    this.kind = kind;
  }

  key(id) {
    return `${this.kind}:${id}`;
  }

  async upsert(id, payload, seconds) {
    const ends = seconds ? Date.now() + seconds * 1000 : null;
    state.store.set(this.key(id), { payload, ends });
    save();
  }

  async find(id) {
    // Not cached, so that the command `client` takes effect at once.
    if (this.kind === 'Client') return state.clients.find((client) => client.client_id === id);
    const found = state.store.get(this.key(id));
    return found && (found.ends === null || found.ends > Date.now()) ? found.payload : undefined;
  }

  async findByUid(uid) {
    return this.all().find((payload) => payload.uid === uid);
  }

  async findByUserCode(userCode) {
    return this.all().find((payload) => payload.userCode === userCode);
  }

  async consume(id) {
    state.store.get(this.key(id)).payload.consumed = Math.floor(Date.now() / 1000);
    save();
  }

  async destroy(id) {
    state.store.delete(this.key(id));
    save();
  }

  async revokeByGrantId(grantId) {
    for (const [key, { payload }] of state.store) {
      if (payload.grantId === grantId && key.startsWith(`${this.kind}:`)) state.store.delete(key);
    }
    save();
  }

  all() {
    const own = [...state.store].filter(([key]) => key.startsWith(`${this.kind}:`));
    return own.map(([, { payload }]) => payload);
  }
}

// Creates a provider with the current keys. It holds no state, so it can be replaced at any time.
function createProvider() {
  const provider = new Provider(issuer, {
    adapter: Store,
    jwks: { keys: state.keys },
    cookies: { keys: [config.command_prefix] },
    pkce: { required: () => true, methods: ['S256'] },
    scopes: scopes.split(' '),
    claims: { openid: ['sub', 'sid', 'realm_access'], profile: ['name', 'preferred_username'] },
    // Puts the claims into the identity token too, as Keycloak does.
    conformIdTokenClaims: false,
    clientBasedCORS: () => false,
    issueRefreshToken: async (ctx, client) => client.grantTypeAllowed('refresh_token'),
    rotateRefreshToken: true,
    ttl: {
      AccessToken: config.access_token_seconds,
      ClientCredentials: config.access_token_seconds,
      Grant: 86400,
      IdToken: config.access_token_seconds,
      Interaction: 600,
      RefreshToken: config.refresh_token_seconds,
      Session: 86400,
    },
    features: {
      backchannelLogout: { enabled: true },
      clientCredentials: { enabled: true },
      revocation: { enabled: true },
      devInteractions: { enabled: false },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => resource,
        useGrantedResource: () => true,
        getResourceServerInfo: () => ({
          scope: scopes,
          audience: config.audience,
          accessTokenFormat: 'jwt',
          accessTokenTTL: config.access_token_seconds,
          jwt: { sign: { alg: 'RS256' } },
        }),
      },
      rpInitiatedLogout: {
        enabled: true,
        // Confirms automatically: Keycloak does not ask for confirmation if the request has an identity token.
        logoutSource: async (ctx, form) => {
          ctx.body = page('Sign out', `${form}
            <button form="op.logoutForm" name="logout" value="yes">Sign out</button>
            <script>document.querySelector('button').click()</script>`);
        },
        postLogoutSuccessSource: async (ctx) => {
          ctx.body = page('Signed out', '<p id="signed-out">You are signed out.</p>');
        },
      },
    },
    findAccount: async (ctx, name) => ({ accountId: name, claims: async () => claims(name) }),
    extraTokenClaims: async (ctx, token) =>
      token.accountId ? claims(token.accountId) : { realm_access: { roles: rolesOfService(token.clientId) } },
    loadExistingGrant: consent,
    interactions: { url: (ctx, interaction) => `/interaction/${interaction.uid}` },
    renderError: async (ctx, out) => {
      ctx.type = 'html';
      ctx.body = page('Error', `<p id="error">${escape(out.error)}: ${escape(out.error_description ?? '')}</p>`);
    },
  });
  const isRefresh = (ctx) => ctx.oidc?.params?.grant_type === 'refresh_token';
  provider.on('grant.success', (ctx) => { if (isRefresh(ctx)) counts.refreshes += 1; });
  provider.on('grant.error', (ctx) => { if (isRefresh(ctx)) counts.refused += 1; });
  provider.on('server_error', (ctx, error) => console.error(error));
  return { provider, callback: provider.callback() };
}

function claims(name) {
  const roles = state.roles[name] ?? (name.startsWith(config.operator_prefix) ? [config.operator_role] : []);
  return { sub: name, name: `Player ${name}`, preferred_username: name, realm_access: { roles } };
}

function rolesOfService(id) {
  return id === config.service.client_id ? config.service.roles : [];
}

// Grants every scope without asking the user.
async function consent(ctx) {
  const { client, session, provider, result } = ctx.oidc;
  const known = result?.consent?.grantId ?? session.grantIdFor(client.clientId);
  const grant = (known && (await provider.Grant.find(known)))
    || new provider.Grant({ clientId: client.clientId, accountId: session.accountId });
  grant.addOIDCScope(scopes);
  grant.addOIDCClaims(['sid', 'realm_access', 'name', 'preferred_username']);
  grant.addResourceScope(resource, scopes);
  await grant.save();
  return grant;
}

async function serve(req, res) {
  if (faults.slow) {
    counts.delayed += 1;
    await new Promise((resolve) => { setTimeout(resolve, faults.slow); });
    counts.delayed -= 1;
  }
  if (faults.failing) return respond(res, 503, { error: 'temporarily_unavailable' });
  if (req.url.startsWith('/interaction/')) return signIn(req, res);
  return handler.callback(req, res);
}

// The sign-in page. It asks for a name and no password.
async function signIn(req, res) {
  const { provider } = handler;
  await provider.interactionDetails(req, res);
  if (req.method !== 'POST') {
    res.setHeader('content-type', 'text/html; charset=utf-8');
    res.end(page('Sign in', `<form method="post">
      <input name="login" autofocus required> <button name="go">Sign in</button>
    </form>
    <form method="post"><button name="cancel" value="yes">Cancel</button></form>`));
    return;
  }
  const form = new URLSearchParams(await body(req));
  const result = form.get('cancel')
    ? { error: 'access_denied', error_description: 'the user has cancelled' }
    : { login: { accountId: form.get('login') } };
  await provider.interactionFinished(req, res, result, { mergeWithLastSubmission: false });
}

const commands = {
  about: async () => ({ issuer, ...counts, ...faults, keys: state.keys.map((key) => key.kid), users: users() }),

  // The new key signs; the old keys stay published.
  'rotate-keys': async () => {
    state.keys.unshift(newKey());
    reloadProvider();
  },

  'retire-keys': async () => {
    state.keys.splice(1);
    reloadProvider();
  },

  // Replaces fields of a client.
  client: async ({ client_id: id, ...fields }) => {
    const client = state.clients.find((one) => one.client_id === id);
    if (!client) throw new Error(`there is no client ${id}`);
    Object.assign(client, fields);
    save();
  },

  // Takes effect with the next token.
  roles: async ({ user, roles }) => {
    state.roles[user] = roles;
    save();
  },

  faults: async (wanted) => { Object.assign(faults, wanted); },

  // Ends the user's sessions and calls the back-channel logout of the clients, without the user's browser.
  'end-sessions': async ({ user }) => {
    const { provider } = handler;
    let called = 0;
    for (const { payload } of [...state.store.values()].filter(({ payload: one }) => isSessionOf(one, user))) {
      for (const [id, { sid, grantId }] of Object.entries(payload.authorizations ?? {})) {
        for (const kind of ['AccessToken', 'AuthorizationCode', 'RefreshToken', 'Grant']) {
          await new Store(kind).revokeByGrantId(grantId);
        }
        state.store.delete(`Grant:${grantId}`);
        const client = await provider.Client.find(id);
        if (client?.backchannelLogoutUri) {
          await client.backchannelLogout(user, sid);
          called += 1;
        }
      }
      state.store.delete(`Session:${payload.jti}`);
      save();
    }
    return { called };
  },
};

async function runCommand(req, res) {
  const command = commands[req.url.slice(commandRoot.length)];
  if (!command) return respond(res, 404, { error: `no command ${req.url}` });
  const text = await body(req);
  return respond(res, 200, (await command(text ? JSON.parse(text) : {})) ?? {});
}

function reloadProvider() {
  save();
  handler = createProvider();
}

function isSessionOf(payload, user) {
  return payload.kind === 'Session' && payload.accountId === user;
}

function users() {
  const sessions = new Store('Session').all().filter((session) => session.accountId);
  return [...new Set(sessions.map((session) => session.accountId))].sort();
}

async function body(req) {
  const parts = [];
  for await (const part of req) parts.push(part);
  return Buffer.concat(parts).toString();
}

function respond(res, status, value) {
  if (res.headersSent) return res.destroy();
  res.writeHead(status, { 'content-type': 'application/json' });
  return res.end(JSON.stringify(value));
}

function escape(text) {
  return String(text).replace(/[&<>"']/g, (char) => `&#${char.charCodeAt(0)};`);
}

function page(title, content) {
  return `<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>${title}</title>
    <link rel="icon" href="data:,"></head><body><h1>${title}</h1>${content}</body></html>`;
}

handler = createProvider();

const server = createServer((req, res) => {
  const handled = req.url.startsWith(commandRoot) ? runCommand(req, res) : serve(req, res);
  handled.catch((error) => respond(res, 500, { error: String(error.stack ?? error) }));
});
// Exits at once: idle client connections would keep the process alive.
process.on('SIGTERM', () => process.exit(0));
server.listen(config.port, '127.0.0.1');
