// Runs the code that a test posts, in one Node process, until it is killed.

import { createServer } from "node:http";

const { CLIENT, GATEWAY, ACCESS_TOKEN, STORAGE } = process.env;
const playhouse = await import(`${CLIENT}/src/index.js`);
const { fileStorage } = await import(`${CLIENT}/src/file-storage.js`);
const AsyncFunction = (async () => {}).constructor;
const state = {};
const storage = fileStorage(STORAGE);

const connect = (options = {}) =>
  new playhouse.Playhouse({ baseUrl: GATEWAY, auth: playhouse.bearer({ accessToken: ACCESS_TOKEN }), storage, ...options });

const server = createServer(async (request, response) => {
  let code = "";
  for await (const chunk of request.setEncoding("utf8")) code += chunk;
  try {
    const run = new AsyncFunction("playhouse", "state", "connect", "gateway", code);
    const value = await run(playhouse, state, connect, GATEWAY);
    response.end(JSON.stringify({ value: value ?? null }));
  } catch (error) {
    response.end(JSON.stringify({ error: `${error.stack}` }));
  }
});
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}`));
