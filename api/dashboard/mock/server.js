/** A double of the API for the page: it keeps the contract of the session routes and forgets everything at its end. */
import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { extname, join, normalize } from 'node:path';
import { fileURLToPath } from 'node:url';
import { Refusal, answer, clickNow, restart, state } from './routes.js';

const DIST = fileURLToPath(new URL('../dist', import.meta.url));
const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.woff2': 'font/woff2' };

/** As strict as the API's own: nothing inline, nothing from elsewhere. */
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'";

async function bodyOf(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const text = Buffer.concat(chunks).toString();
  return request.headers['content-type'] === 'application/json' && text ? JSON.parse(text) : text;
}

function send(response, status, type, body, headers = {}) {
  response.writeHead(status, { 'Content-Type': type, 'Content-Security-Policy': POLICY, 'X-Content-Type-Options': 'nosniff', ...headers });
  response.end(body);
}

const json = (response, status, value, headers) => send(response, status, 'application/json', JSON.stringify(value), headers);

/** Squares that look like a QR code and are none. */
function picture(text) {
  let squares = '';
  let seed = [...text].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) >>> 0, 7);
  for (let y = 0; y < 25; y++) {
    for (let x = 0; x < 25; x++) {
      seed = (seed * 1_103_515_245 + 12_345) & 0x7fffffff;
      const corner = [[0, 0], [18, 0], [0, 18]].find(([a, b]) => x >= a && x < a + 7 && y >= b && y < b + 7);
      const ring = corner && Math.max(Math.abs(x - corner[0] - 3), Math.abs(y - corner[1] - 3));
      if (corner ? ring !== 2 : seed & 0x10000) squares += `M${x + 4} ${y + 4}h1v1h-1z`;
    }
  }
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 33 33"><rect width="33" height="33" fill="#fff"/><path d="${squares}"/></svg>`;
}

function stream(request, response, link) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
  response.write(': begun\n\n');
  const listener = {
    link,
    send: ({ at, visitor, ...click }) => response.write(`id: ${at}\nevent: click\ndata: ${JSON.stringify(click)}\n\n`),
  };
  state.live.add(listener);
  request.on('close', () => state.live.delete(listener));
}

async function api(request, response, url) {
  const changes = request.method !== 'GET';
  if (changes && request.headers['x-requested-with'] !== 'hopline') {
    throw new Refusal(403, 'FORBIDDEN', 'The header X-Requested-With is missing.');
  }
  const body = changes ? await bodyOf(request) : undefined;
  const result = answer(request.method, url.pathname.slice('/app/api'.length), url.searchParams, body, request.headers['if-match']);
  if (result.live !== undefined) return stream(request, response, result.live);
  if (result.qr) return send(response, 200, 'image/svg+xml', picture(result.qr));
  if (result.csv) return send(response, 200, 'text/csv', result.csv, { 'Content-Disposition': `attachment; filename="${result.file}"` });
  // An endpoint also has a `status`, which is a word.
  const status = typeof result.status === 'number' ? result.status : 200;
  if (status === 204) return response.writeHead(204).end();
  return json(response, status, result.json ?? result, result.headers);
}

async function file(response, path) {
  const name = normalize(path.slice('/app'.length));
  const wanted = extname(name) ? name : 'index.html';
  try {
    send(response, 200, TYPES[extname(wanted)] ?? 'text/plain', await readFile(join(DIST, wanted)));
  } catch {
    send(response, 404, 'text/plain', 'Not found');
  }
}

const server = createServer(async (request, response) => {
  const url = new URL(request.url, 'http://mock');
  try {
    // For tests: reset, change the state, add a click.
    if (url.pathname === '/mock/restart') {
      restart(await bodyOf(request));
      return json(response, 200, {});
    }
    if (url.pathname === '/mock/set') return json(response, 200, Object.assign(state, await bodyOf(request)) && {});
    if (url.pathname === '/mock/click') return json(response, 200, clickNow(url.searchParams.get('slug'), Number(url.searchParams.get('at') ?? Date.now())));
    if (url.pathname.startsWith('/app/api/')) return await api(request, response, url);
    if (url.pathname.startsWith('/app')) return await file(response, url.pathname);
    return send(response, 404, 'text/plain', 'Not found');
  } catch (refusal) {
    if (refusal instanceof Refusal) return json(response, refusal.body.statusCode, refusal.body);
    process.stderr.write(`${refusal.stack}\n`);
    return json(response, 500, { statusCode: 500, code: 'INTERNAL', message: 'The double of the API failed.' });
  }
});

/** Listens on a port of 127.0.0.1, 0 for any free one; returns the server. */
export const listen = (port) =>
  new Promise((done) => server.listen(port, '127.0.0.1', () => done(server)));

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const started = await listen(Number(process.env.PORT ?? 4100));
  process.stdout.write(`http://127.0.0.1:${started.address().port}/app/ (ada@example.com, correct horse battery)\n`);
}
