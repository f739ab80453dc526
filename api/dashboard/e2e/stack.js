/** The running stack, and those around the dashboard: an operator, visitors, and the servers of others. */
import { execFileSync } from 'node:child_process';
import { once } from 'node:events';
import { createServer, request } from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

const DEV = fileURLToPath(new URL('../../../dev', import.meta.url));

/** A person's browser. Command-line clients count as bots. */
export const FIREFOX = 'Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0';

/** What `./dev` answers to a command that prints JSON. */
export const dev = (args, input = '') => JSON.parse(execFileSync(DEV, args, { encoding: 'utf8', input, stdio: 'pipe' }));

export const stack = dev(['status', '--json']);
if (!stack.ready) throw new Error('the stack does not run: start it with `./dev up --detach`');
export const { api, edge } = stack;

/** Waits until `ask` gives something, and returns it. */
export async function until(what, ask, seconds = 30) {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; await pause(100)) {
    const found = await ask();
    if (found) return found;
  }
  throw new Error(`not within ${seconds} s: ${what}`);
}

/** Sends any request with any headers; `fetch` would forbid some. */
export async function send(url, { method = 'GET', headers = {}, body } = {}) {
  const text = body === undefined ? undefined : JSON.stringify(body);
  const type = text === undefined ? {} : { 'Content-Type': 'application/json' };
  const asked = request(url, { method, headers: { ...type, ...headers } });
  asked.end(text);
  const [answer] = await once(asked, 'response');
  const parts = [];
  for await (const part of answer) parts.push(part);
  return { status: answer.statusCode, headers: answer.headers, text: Buffer.concat(parts).toString() };
}

/**
 * Visits a short link once, as soon as the edge knows it, and returns where it leads.
 *
 * An edge answers 404 to what it does not know yet, and counts nothing.
 */
export const visit = (path, headers = {}) =>
  until(`the edge knows ${path}`, async () => {
    const answer = await send(`${edge}/${path}`, { headers: { 'User-Agent': FIREFOX, ...headers } });
    return answer.status === 302 && new URL(answer.headers.location);
  });

/** A server of somebody else. `answer` gets each request with its body, and writes the response. */
export async function listen(answer) {
  const server = createServer(async (asked, response) => {
    const parts = [];
    for await (const part of asked) parts.push(part);
    answer(asked, response, Buffer.concat(parts));
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    close() {
      server.close();
      server.closeAllConnections();
    },
  };
}
