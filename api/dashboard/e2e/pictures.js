/**
 * Fills a workspace with what a shop might have, and takes the pictures of `docs/pictures`: `npm run pictures`.
 *
 * The clicks are those of other edges, which may tell of the last ten days. They are the same at each start but for what
 * the clock moves; countries need the data that `./dev up` fetches.
 */
import { mkdirSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { browser, settled } from '../tests/browser.js';
import { dice } from '../mock/state.js';
import { arrive, ask, at, enter, run, settle } from './person.js';
import { FIREFOX, api, edge, listen, send, stack, until, visit } from './stack.js';

const FOLDER = fileURLToPath(new URL('../../../docs/pictures/', import.meta.url));
/** No picture is heavier, in bytes. */
const HEAVIEST = 120_000;
const HOUR = 3_600_000;
const DAYS = 9;

/** Name, destination, tags, clicks of a usual day. */
const LINKS = {
  'gift-guide': ['Gift guide', 'https://shop.example.com/guides/gifts', ['guide'], 31],
  careers: ['We are hiring', 'https://shop.example.com/about/jobs', [], 12],
  'podcast-42': ['Podcast, episode 42', 'https://podcast.example.com/42', ['podcast'], 40],
  'get-app': ['The app', 'https://shop.example.com/app', ['mobile'], 66],
  'autumn-mail': ['Autumn newsletter', 'https://shop.example.com/autumn?utm_source=newsletter&utm_medium=email', ['newsletter', 'sale'], 170],
  'black-friday': ['Black Friday', 'https://shop.example.com/sale/black-friday?utm_campaign=black-friday', ['sale'], 420],
};
/** Networks of providers, by the first two numbers of their addresses. */
const NETWORKS = [['91.20', 30], ['84.140', 14], ['86.150', 18], ['24.60', 26], ['73.80', 14], ['90.50', 12], ['84.85', 8], ['189.10', 6], ['126.100', 5], ['117.200', 7], ['81.225', 4]];
const AGENTS = [
  ['Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Mobile/15E148 Safari/604.1', 30],
  ['Mozilla/5.0 (Linux; Android 10; K) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/137.0.0.0 Mobile Safari/537.36', 26],
  ['Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/137.0.0.0 Safari/537.36', 22],
  ['Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.5 Safari/605.1.15', 12],
  ['Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/137.0.0.0 Safari/537.36 Edg/137.0.0.0', 8],
  [FIREFOX, 7],
  ['Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)', 6],
  ['WhatsApp/2.23.20.0', 4],
];
const REFERRERS = [['', 40], ['https://www.instagram.com/', 18], ['https://www.google.com/', 14], ['https://t.co/x', 8], ['https://news.example.com/deals', 7], ['https://www.reddit.com/r/deals', 6]];
const CAMPAIGNS = [['', 60], ['utm_source=newsletter&utm_medium=email', 22], ['utm_source=instagram&utm_medium=social', 14], ['utm_source=flyer&utm_medium=qr', 4]];

const draw = dice(11);
const pick = (weighted) => {
  let left = draw() * weighted.reduce((sum, [, weight]) => sum + weight, 0);
  return weighted.find(([, weight]) => (left -= weight) <= 0)[0];
};
/** Some come again and again. */
const PEOPLE = Array.from({ length: 2500 }, () => [
  `${pick(NETWORKS)}.${Math.floor(draw() * 250)}.${Math.floor(draw() * 250)}`,
  pick(AGENTS),
]);
/** People sleep at night; sales grow towards their end. */
const rhythm = (at) => {
  const hour = new Date(at).getUTCHours();
  return (hour < 5 ? 0.15 : hour < 8 ? 0.7 : hour < 18 ? 1.1 : hour < 22 ? 1.7 : 0.8) * (1.4 - (Date.now() - at) / (DAYS * 24 * HOUR));
};

const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: 'en-US', timezoneId: 'Europe/Berlin' });
const page = await context.newPage();
await arrive(page);
await page.goto(`${api}/app/`);
await enter(page);
await page.getByRole('heading', { name: 'Links', exact: true }).waitFor();
await settle(page, 'Corner shop');
const state = await context.storageState();

const links = {};
for (const [slug, [name, destination, tags]] of Object.entries(LINKS)) {
  // Another run on the same stack has the plain slug.
  const free = (await ask(page, 'GET', `/slugs/${slug}`)).available;
  links[slug] = await ask(page, 'POST', '/links', { name, destination, tags, slug: free ? slug : `${slug}-${run}` });
}
await visit(links['black-friday'].slug, { 'User-Agent': 'curl/8.5.0' });
const clicks = [];
for (const [slug, [, , , daily]] of Object.entries(LINKS)) {
  for (let at = Date.now() - DAYS * 24 * HOUR; at < Date.now() - HOUR / 60; at += HOUR) {
    const wanted = (daily / 24) * rhythm(at) * (0.6 + draw() * 0.8);
    for (let left = wanted; draw() < left; left -= 1) {
      const campaign = pick(CAMPAIGNS);
      const [ip, user_agent] = PEOPLE[Math.floor(draw() ** 2 * PEOPLE.length)];
      clicks.push({
        slug: links[slug].slug,
        occurred_at: new Date(Math.min(at + draw() * HOUR, Date.now() - 1000)).toISOString(),
        ip,
        user_agent,
        referrer: pick(REFERRERS),
        url: `${edge}/${slug}${campaign && `?${campaign}`}`,
        event_id: `${run}-${clicks.length}`,
      });
    }
  }
}
const results = [];
for (let from = 0; from < clicks.length; from += 1000) {
  const headers = { Authorization: `Bearer ${stack.edge_token}` };
  const sent = await send(`${edge}/v1/clicks`, { method: 'POST', headers, body: clicks.slice(from, from + 1000) });
  if (sent.status !== 202) throw new Error(`the clicks were not taken: ${sent.status} ${sent.text}`);
  results.push(...JSON.parse(sent.text).results);
}
for (const { click_id } of results.filter(() => draw() < 0.03)) {
  const body = { click_id, external_user_id: `u-${Math.floor(1000 + draw() * 9000)}` };
  await send(`${api}/api/conversions`, { method: 'POST', headers: { Referer: 'https://shop.example.com/thanks' }, body });
}
const counted = async () => (await ask(page, 'GET', '/stats?class=all')).total_clicks;
await until('all clicks are counted', async () => (await counted()) >= results.filter(({ status }) => status === 'accepted').length);

// Two receivers: one that is well, and one that is not.
let delivered = 0;
const well = await listen((_, response) => {
  delivered += 1;
  response.writeHead(204).end();
});
const ill = await listen((_, response) => response.writeHead(500).end('{"error": "stock service: connection pool exhausted"}'));
const events = ['click.created'];
await ask(page, 'POST', '/webhooks', { url: `${well.url}/hooks/hopline`, description: 'Data warehouse', events: [...events, 'link.created', 'link.updated'] });
const broken = await ask(page, 'POST', '/webhooks', { url: `${ill.url}/incoming/clicks`, description: 'Shop system', events });

/** Clicks as they happen, so that the live view has some. */
const happen = async (times) => {
  for (let n = 0; n < times; n++) {
    const to = draw() < 0.7 ? links['black-friday'].slug : links['autumn-mail'].slug;
    const headers = { 'User-Agent': pick(AGENTS.slice(0, 6)), Referer: pick(REFERRERS) };
    // The stack believes its own machine about whom it speaks for.
    await visit(to, { ...headers, 'X-Forwarded-For': `${pick(NETWORKS)}.7.${n}` });
  }
};
await happen(4);
await until('the good endpoint has its deliveries', () => delivered >= 4);
await until('the failures are there', async () => (await ask(page, 'GET', `/webhooks/${broken.id}/failures`)).failures.length >= 4);

/** Opens a page, and keeps what is seen of it. */
async function take(name, path, { look = {}, prepare = async () => {} } = {}) {
  const other = await browser.newContext({ viewport: { width: 1280, height: 800 }, locale: 'en-US', timezoneId: 'Europe/Berlin', storageState: state, ...look });
  const shown = await other.newPage();
  await shown.goto(at(path));
  await prepare(shown);
  await settled(shown);
  const picture = await shown.screenshot({ animations: 'disabled' });
  mkdirSync(FOLDER, { recursive: true });
  writeFileSync(`${FOLDER}${name}.png`, picture);
  await other.close();
  process.stdout.write(`${name}: ${Math.ceil(picture.length / 1000)} kB${picture.length > HEAVIEST ? ', TOO HEAVY' : ''}\n`);
}
const PHONE = { viewport: { width: 390, height: 900 }, isMobile: true, hasTouch: true, deviceScaleFactor: 1.5 };
const drawn = async (shown) => {
  await shown.locator('.u-over').waitFor();
  await shown.locator('.live.good').waitFor();
  await happen(3);
  await shown.locator('tr.fresh').first().waitFor();
};
const report = `/links/${links['black-friday'].id}?range=24h`;
await take('links', '/links', { prepare: (shown) => shown.locator('.spark path').first().waitFor({ state: 'attached' }) });
await take('link-dark', report, { look: { colorScheme: 'dark' }, prepare: drawn });
// A phone shows the latest clicks further below.
await take('link-phone', report, {
  look: PHONE,
  prepare: async (shown) => {
    await shown.locator('.u-over').waitFor();
    await shown.locator('.live.good').waitFor();
  },
});
await take('webhook', `/webhooks/${broken.id}`, {
  look: { viewport: { width: 1280, height: 620 } },
  prepare: async (shown) => {
    await shown.getByRole('region', { name: 'Failed deliveries' }).locator('summary').first().click();
  },
});
await browser.close();
well.close();
ill.close();
