/**
 * Measures pages of the running stack as a browser sees them, and prints them as the rows of a table: `npm run numbers`.
 *
 * Each row is the median of several visits with an empty cache, after one that does not count. Bytes are what came over
 * the wire with its headers. `drawn` is the first frame after the content is there and every control works; `busy` is the
 * sum of all tasks of more than 50 ms until then.
 */
import { browser } from '../tests/browser.js';
import { arrive, ask, at, enter, settle } from './person.js';
import { FIREFOX, api, send, stack, until, visit } from './stack.js';

const VISITS = 9;
const LINKS = 50;
/** Lighthouse's "slow 4G" and its slow-down of the processor for a phone of the middle class. */
const PHONE = { latency: 150, bytes: (1.6 * 1024 * 1024) / 8, slower: 4 };

const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];

/** Notes in the page when `content` was drawn, and how long tasks took. */
function watch(content) {
  window.noted = { busy: 0, drawn: null };
  new PerformanceObserver((list) => {
    for (const { duration } of list.getEntries()) if (window.noted.drawn === null) window.noted.busy += duration;
  }).observe({ type: 'longtask', buffered: true });
  const seen = new MutationObserver(() => {
    if (!document.querySelector(content)) return;
    seen.disconnect();
    requestAnimationFrame(() => setTimeout(() => (window.noted.drawn = performance.now())));
  });
  seen.observe(document, { childList: true, subtree: true });
}

/** One visit of an address by a browser that knows nothing but the cookie. */
async function measure(address, content, state, phone) {
  const context = await browser.newContext({ storageState: state, viewport: { width: 1360, height: 900 } });
  const page = await context.newPage();
  const devtools = await context.newCDPSession(page);
  await devtools.send('Network.enable');
  if (phone) {
    const { latency, bytes, slower } = PHONE;
    const line = { offline: false, latency, downloadThroughput: bytes, uploadThroughput: bytes / 2 };
    await devtools.send('Network.emulateNetworkConditions', line);
    await devtools.send('Emulation.setCPUThrottlingRate', { rate: slower });
  }
  const asked = new Map();
  devtools.on('Network.requestWillBeSent', ({ requestId, request }) => asked.set(requestId, { url: request.url, bytes: 0 }));
  devtools.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => {
    if (asked.has(requestId)) asked.get(requestId).bytes = encodedDataLength;
  });
  await page.addInitScript(watch, content);
  await page.goto(address);
  await page.waitForFunction(() => window.noted.drawn !== null && !document.querySelector('.bone, [aria-busy=true]'));
  const { drawn, busy, ready } = await page.evaluate(() => ({
    ...window.noted,
    ready: performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd,
  }));
  await context.close();
  const all = [...asked.values()].filter(({ url }) => url.startsWith(api));
  const data = all.filter(({ url }) => url.includes('/app/api/') && !url.endsWith('/live'));
  const files = all.filter(({ url }) => !url.includes('/app/api/'));
  const sum = (list) => list.reduce((total, { bytes }) => total + bytes, 0);
  return { files: files.length, filed: sum(files), asked: data.length, answered: sum(data), ready, drawn, busy };
}

async function row(name, address, content, state, phone = false) {
  const visits = [];
  for (let n = 0; n <= VISITS; n++) visits.push(await measure(address, content, state, phone));
  visits.shift();
  const of = (field) => median(visits.map((visit) => visit[field]));
  const kilo = (bytes) => `${(bytes / 1000).toFixed(1)} kB`;
  const time = (field) => `${Math.round(of(field))} ms`;
  const cells = [
    name, `${of('files')} files, ${kilo(of('filed'))}`, `${of('asked')} answers, ${kilo(of('answered'))}`,
    time('ready'), time('drawn'), time('busy'),
  ];
  process.stdout.write(`| ${cells.join(' | ')} |\n`);
}

const context = await browser.newContext();
const page = await context.newPage();
await arrive(page);
await page.goto(`${api}/app/`);
await enter(page);
await page.getByRole('heading', { name: 'Links', exact: true }).waitFor();
await settle(page, 'Numbers');
const state = await context.storageState();

// As full as the first page of a list is, each link with clicks of its last week.
const links = [];
for (let n = 0; n < LINKS; n++) {
  const wanted = { name: `Page number ${n}`, destination: `https://example.com/pages/${n}?utm_source=mail`, tags: ['page', `of-${n % 7}`] };
  links.push(await ask(page, 'POST', '/links', wanted));
}
await visit(links.at(-1).slug, { 'User-Agent': 'curl/8.5.0' });
const clicks = links.flatMap((link, n) =>
  Array.from({ length: 20 }, (_, m) => ({
    slug: link.slug,
    occurred_at: new Date(Date.now() - ((m * 37 + n) % 168) * 3_600_000).toISOString(),
    ip: `198.51.100.${(m * 7 + n) % 250}`,
    user_agent: FIREFOX,
    event_id: `${n}-${m}`,
  })),
);
const sent = await send(`${stack.edge}/v1/clicks`, {
  method: 'POST',
  headers: { Authorization: `Bearer ${stack.edge_token}` },
  body: clicks,
});
if (sent.status !== 202) throw new Error(`the clicks were not taken: ${sent.status} ${sent.text}`);
await until('all clicks are counted', async () => (await ask(page, 'GET', '/stats')).total_clicks === clicks.length);

const SIGN_IN = 'input[type=password]';
const LIST = '[aria-label=Links] li';
const CHART = '.u-over';
const link = at(`/links/${links.at(-1).id}`);
process.stdout.write('| Page | Files | Data | DOMContentLoaded | Drawn | Busy |\n|---|---|---|---|---|---|\n');
await row('Sign-in', `${api}/app/`, SIGN_IN);
await row(`List of ${LINKS} links`, at('/links'), LIST, state);
await row('Report of a link', link, CHART, state);
await row('Sign-in, phone on slow 4G', `${api}/app/`, SIGN_IN, undefined, true);
await row('List, phone on slow 4G', at('/links'), LIST, state, true);
await row('Report, phone on slow 4G', link, CHART, state, true);
await browser.close();
