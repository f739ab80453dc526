/** What people do at the dashboard, from its beginning to its end, and what comes of it elsewhere. */
import assert from 'node:assert/strict';
import { createHmac } from 'node:crypto';
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { browser, look, nav, openAt, settled } from '../tests/browser.js';
import { HOSTILE, arrive, ask, at, email, enter, leave, open, run, settle } from './person.js';
import { FIREFOX, api, edge, listen, send, until, visit } from './stack.js';
import { fails } from './webhooks.js';

/** A number of the report that is open. */
const figure = (page, label) =>
  page.locator('.figure').filter({ has: page.getByText(label, { exact: true }) }).locator('.value');

/** Waits until a number of the open report is `wanted`, without asking for the page again. */
const shows = (page, label, wanted) => figure(page, label).filter({ hasText: new RegExp(`^${wanted}$`) }).waitFor();

/** Waits until the edge knows a link, as a bot: its clicks are no people's. */
const known = (slug) => visit(slug, { 'User-Agent': 'curl/8.5.0' });

export const first = {
  async 'the first owner is set up, or a member created, and signs in'() {
    const { page, end } = await openAt(api, 'light', { expected: [401, 403] });
    await arrive(page, `Ada ${HOSTILE}`);
    await look(page, 'sign-in');
    await enter(page, 'not the password');
    await page.getByRole('alert').filter({ hasText: 'wrong' }).waitFor();
    const names = (await page.context().cookies()).map(({ name }) => name);
    assert.ok(!names.includes('hopline_session'), `${names}`);
    await enter(page);
    await page.getByRole('heading', { name: 'Links', exact: true }).waitFor();
    const cookies = await page.context().cookies();
    assert.deepEqual(
      cookies.toSorted((one, other) => one.name.localeCompare(other.name)).map(({ name, httpOnly, sameSite, path }) => ({ name, httpOnly, sameSite, path })),
      ['hopline_device', 'hopline_session'].map((name) => ({ name, httpOnly: true, sameSite: 'Lax', path: '/app' })),
    );
    await settle(page, `${run} ${HOSTILE}`);
    await end();
  },
};

export const flows = {
  async 'a link is created and clicked, and its count updates live'() {
    const shop = await listen((_, response) => response.writeHead(200, { 'Content-Type': 'text/html' }).end('<h1>Offer</h1>'));
    const { page, end } = await open('light');
    await page.goto(at('/links'));
    await page.getByRole('link', { name: 'New link' }).first().click();
    await page.getByLabel('Destination', { exact: true }).fill(`${shop.url}/offer`);
    await page.getByLabel('Short link').fill(`live-${run}`);
    await page.getByText('Available.').waitFor();
    await page.getByLabel(/^Name/).fill('Offer');
    await page.getByText('UTM parameters').click();
    await page.getByLabel('Campaign').fill('spring sale');
    await page.getByRole('button', { name: 'Create link' }).click();
    await page.getByRole('heading', { name: new RegExp(`/live-${run}$`) }).waitFor();
    await page.locator('.live.good').waitFor();
    await shows(page, 'Clicks', 0);
    await page.evaluate(() => (window.since = 'the first click'));
    await known(`live-${run}`);

    const visitor = await browser.newContext({ userAgent: FIREFOX });
    const shopping = await visitor.newPage();
    await shopping.goto(`${edge}/live-${run}`);
    assert.match(shopping.url(), /\/offer\?utm_campaign=spring%20sale&click_id=[\w-]+$/);
    await page.locator('tr.fresh').waitFor();
    assert.equal(await page.locator('tr.fresh').count(), 1, 'the bot that looked whether the link is there is not of people');
    await shows(page, 'Clicks', 1);
    await shopping.goto(`${edge}/live-${run}`);
    await shows(page, 'Clicks', 2);
    await shows(page, 'Unique', 1);
    assert.equal(await page.evaluate(() => window.since), 'the first click', 'the page was not reloaded');

    await nav(page, 'Links');
    const row = page.getByRole('list', { name: 'Links' }).getByRole('listitem').filter({ hasText: `live-${run}` });
    await row.locator('dd[title="2"]').waitFor();
    await visitor.close();
    await end();
    shop.close();
  },

  async 'a visitor of the destination converts, from its own script'() {
    const script = `document.querySelector('button').onclick = async () => {
      const click_id = new URLSearchParams(location.search).get('click_id');
      const answer = await fetch('${api}/api/conversions', {
        method: 'POST',
        headers: { 'Content-Type': 'application/json' },
        body: JSON.stringify({ click_id, external_user_id: 'u-17' }),
      });
      document.title = String(answer.status);
    };`;
    const shop = await listen((_, response) =>
      response.writeHead(200, { 'Content-Type': 'text/html' }).end(`<button>Buy</button><script>${script}</script>`),
    );
    const { page, end } = await open('light');
    const link = await ask(page, 'POST', '/links', { name: 'Shop', slug: `buy-${run}`, destination: `${shop.url}/` });
    await known(link.slug);
    const visitor = await browser.newContext({ userAgent: FIREFOX });
    const shopping = await visitor.newPage();
    await shopping.goto(`${edge}/${link.slug}`);
    await shopping.getByRole('button', { name: 'Buy' }).click();
    await shopping.waitForFunction(() => document.title === '201');
    await until('the conversion is counted', async () => (await ask(page, 'GET', `/links/${link.id}/stats`)).conversions === 1);
    await page.goto(at(`/links/${link.id}`));
    await shows(page, 'Conversions', 1);
    await shows(page, 'Conversion rate', '100%');
    await page.getByRole('button', { name: 'Conversions', exact: true }).click();
    await page.getByRole('cell', { name: 'u-17' }).waitFor();
    // Twice is once.
    await shopping.getByRole('button', { name: 'Buy' }).click();
    await shopping.waitForFunction(() => document.title === '409');
    await visitor.close();
    await end();
    shop.close();
  },

  async 'a key works in the command that the page shows, until it is revoked'() {
    const { page, end } = await open('light');
    await page.goto(at('/developers'));
    await page.getByRole('button', { name: 'New key' }).first().click();
    await page.getByLabel('Name', { exact: true }).fill('Reports');
    await page.getByRole('button', { name: 'Create key' }).click();
    const key = await page.getByLabel('API key', { exact: true }).inputValue();
    await page.getByRole('button', { name: 'Done' }).click();
    assert.equal((await page.content()).includes(key), false, 'the key is shown once');
    const shown = (await page.locator('pre').filter({ hasText: 'curl' }).textContent()).replace('<your key>', key);
    const use = () => execFileSync('sh', ['-c', `${shown} --silent --output /dev/null --write-out '%{http_code}'`], { encoding: 'utf8' });
    assert.equal(use(), '200');
    const write = await send(`${api}/api/v1/links`, {
      method: 'POST',
      headers: { Authorization: `Bearer ${key}` },
      body: { name: 'No', destination: 'https://example.com/' },
    });
    assert.equal(write.status, 403, 'a key that reads does not write');
    await page.getByRole('button', { name: 'Revoke Reports' }).click();
    await page.getByRole('button', { name: 'Revoke key' }).click();
    await page.locator('tr').filter({ hasText: 'Reports' }).getByText('Revoked').waitFor();
    assert.equal(use(), '401');
    await end();
  },

  async 'a file is tried out, imported, and exported again'() {
    const { page, end } = await open('light');
    await page.goto(at('/links'));
    await ask(page, 'POST', '/links', { name: 'There before', slug: `there-${run}`, destination: 'https://example.com/' });
    await nav(page, 'Import and export');
    const rows = [
      'name,destination,slug,tags',
      `=1+1,https://example.com/1,in-${run},"sale,spring"`,
      `Two,https://example.com/2,there-${run},`,
      'Three,nowhere,,',
    ];
    const free = async () => (await ask(page, 'GET', `/slugs/in-${run}`)).available;
    const csv = Buffer.from(`\ufeff${rows.join('\r\n')}\r\n`);
    await page.getByLabel('CSV file').setInputFiles({ name: 'links.csv', mimeType: 'text/csv', buffer: csv });
    await page.getByText('1 link will be created and 2 rows rejected').waitFor();
    assert.equal(await page.getByRole('region', { name: 'Rejected rows' }).locator('tbody tr').count(), 2);
    assert.equal(await free(), true, 'a try-out makes nothing');
    await page.getByRole('button', { name: 'Import 1 link' }).click();
    await page.getByText('1 link created, 2 rows rejected').waitFor();
    assert.equal(await free(), false);
    await known(`in-${run}`);

    const save = async (text) => {
      const saved = page.waitForEvent('download');
      await page.getByRole('link', { name: text, exact: true }).last().click();
      return readFileSync(await (await saved).path(), 'utf8');
    };
    const links = await save('Links');
    assert.match(links, new RegExp(`'=1\\+1"?,https://example.com/1,in-${run},"sale,spring"`), 'no formula for a spreadsheet');
    await until('the export has the click', async () => new RegExp(`,in-${run},.*,bot,`).test(await save('Clicks')));
    await end();
  },

  async 'nothing that people, visitors or receivers wrote runs'() {
    const receiver = await listen((_, response) => response.writeHead(404).end(`<script>alert(1)</script>${HOSTILE}`));
    const { page, end } = await open('light');
    /** What was written is there as a text and as nothing else. */
    const harmless = async (...texts) => {
      await settled(page);
      for (const text of texts) await page.getByText(text).first().waitFor({ state: 'attached' });
      const alive = await page.evaluate(() => {
        const found = 'img[src="x"], svg[onload], b, script:not([src]), [onerror], [onclick], [onmouseover], a[href^="javascript:" i]';
        return [...document.querySelectorAll(found)].map((element) => element.outerHTML);
      });
      assert.deepEqual(alive, []);
    };
    const destination = `https://example.com/"><img/src=x/onerror=alert(1)>?q='onmouseover=alert(1)`;
    await page.goto(at('/links/new'));
    await page.getByLabel('Destination', { exact: true }).fill('javascript:alert(1)');
    await page.getByRole('button', { name: 'Create link' }).click();
    await page.getByText('Only http and https URLs').waitFor();
    await page.getByLabel('Destination', { exact: true }).fill(destination);
    await page.getByLabel('Short link').fill(`odd-${run}`);
    await page.getByText('Available.').waitFor();
    await page.getByLabel(/^Name/).fill(`"><script>alert(1)</script> ${HOSTILE}`);
    await page.getByLabel('Tags').fill('<b onclick=alert(1)>bold</b>');
    await page.keyboard.press('Enter');
    await page.getByText('UTM parameters').click();
    await page.getByLabel('Source').fill(HOSTILE);
    await harmless('<b onclick=alert(1)>bold</b>');
    await page.getByRole('button', { name: 'Create link' }).click();
    await page.getByRole('heading', { name: new RegExp(`/odd-${run}$`) }).waitFor();
    const link = page.url().split('/').at(-1);

    const script = encodeURIComponent('"><script>alert(1)</script>');
    const arrived = await visit(`odd-${run}?utm_campaign=${encodeURIComponent(HOSTILE)}&utm_term=${script}&click_id=${script}`, {
      'User-Agent': `${FIREFOX} ${HOSTILE}`,
      Referer: 'app://"onclick=alert(1)"/',
    });
    const conversion = await send(`${api}/api/conversions`, {
      method: 'POST',
      headers: { Referer: 'javascript:alert(1)', Origin: 'app://"onclick=alert(1)"' },
      body: { click_id: arrived.searchParams.get('click_id'), user_name: HOSTILE, external_user_id: '<script>alert(1)</script>' },
    });
    assert.equal(conversion.status, 201);
    await until('both are counted', async () => {
      const { total_clicks, conversions } = await ask(page, 'GET', `/links/${link}/stats`);
      return total_clicks === 1 && conversions === 1;
    });
    await page.goto(at(`/links/${link}`));
    await harmless(`"><script>alert(1)</script> ${HOSTILE}`, destination.slice(8), '"onclick=alert(1)"', HOSTILE);
    for (const dimension of ['Source', 'Campaign', 'Term', 'Browser']) {
      await page.getByRole('button', { name: dimension, exact: true }).click();
      await harmless();
    }
    await page.getByRole('button', { name: 'Conversions', exact: true }).click();
    await page.getByRole('region', { name: 'Conversions' }).getByRole('cell', { name: HOSTILE }).waitFor();
    await harmless('<script>alert(1)</script>');
    await page.getByRole('button', { name: 'QR', exact: true }).click();
    await page.getByRole('dialog').locator('img').waitFor();
    await harmless();
    await page.goto(at(`/links/${link}/edit`));
    await harmless('<b onclick=alert(1)>bold</b>');
    await page.goto(at(`/links?q=${encodeURIComponent('"><script>alert(1)</script>')}&tag=${encodeURIComponent('<b onclick=alert(1)>bold</b>')}`));
    await harmless(`odd-${run}`, `"><script>alert(1)</script> ${HOSTILE}`);
    await page.goto(at(`/overview`));
    await harmless(`${run} ${HOSTILE}`, '"onclick=alert(1)"');

    await page.goto(at('/developers'));
    await page.getByRole('button', { name: 'New key' }).first().click();
    await page.getByLabel('Name', { exact: true }).fill(HOSTILE);
    await page.getByRole('button', { name: 'Create key' }).click();
    await page.getByRole('button', { name: 'Done' }).click();
    await page.getByRole('button', { name: `Revoke ${HOSTILE}` }).click();
    await harmless(HOSTILE);
    await page.keyboard.press('Escape');

    await ask(page, 'POST', '/members', { email: `grace-${run}@example.com`, name: HOSTILE, role: 'member' }, '');
    await page.goto(at('/members'));
    await harmless(`Ada ${HOSTILE}`, `${run} ${HOSTILE}`, HOSTILE);
    await page.getByRole('button', { name: `Remove grace-${run}@example.com` }).click();
    await page.getByRole('button', { name: 'Remove member' }).click();
    await page.getByText('@example.com removed.').waitFor();

    const endpoint = await ask(page, 'POST', '/webhooks', {
      url: `${receiver.url}/"><script>alert(1)</script>`,
      description: HOSTILE,
      events: ['link.updated'],
    });
    await ask(page, 'PATCH', `/links/${link}`, { external_id: HOSTILE });
    await until('the delivery has failed', async () => (await ask(page, 'GET', `/webhooks/${endpoint.id}/failures`)).failures.length === 1);
    await page.goto(at('/webhooks'));
    await harmless(HOSTILE);
    await page.goto(at(`/webhooks/${endpoint.id}`));
    await page.getByRole('region', { name: 'Failed deliveries' }).locator('summary').click();
    await harmless(HOSTILE, `<script>alert(1)</script>${HOSTILE}`);

    await page.goto(at('/transfer'));
    const csv = Buffer.from(`name,destination,slug\n${HOSTILE},javascript:alert(1),<script>alert(1)</script>\n`);
    await page.getByLabel('CSV file').setInputFiles({ name: `${HOSTILE}.csv`, mimeType: 'text/csv', buffer: csv });
    await page.getByText('0 links will be created and 1 row rejected').waitFor();
    await harmless(`${HOSTILE}.csv`);
    await end();
    receiver.close();
  },
};

export const long = {
  'an endpoint that fails shows its failures, is disabled, and gets what it missed once it is enabled again': fails,
};

/** The code that an authenticator shows now for a secret in base 32. */
function totp(secret) {
  const bits = [...secret].map((letter) => 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'.indexOf(letter).toString(2).padStart(5, '0')).join('');
  const key = Buffer.from(bits.match(/.{8}/g).map((byte) => Number.parseInt(byte, 2)));
  const step = Buffer.alloc(8);
  step.writeBigUInt64BE(BigInt(Math.floor(Date.now() / 30_000)));
  const digest = createHmac('sha1', key).update(step).digest();
  return String((digest.readUInt32BE(digest[19] & 15) & 0x7fffffff) % 1_000_000).padStart(6, '0');
}

export const last = {
  async 'somebody else changes the password, adds a second factor, ends a session, and has a role'() {
    const { page, end } = await open('light', [401, 403]);
    const guest = `guest-${run}@example.com`;
    const [old, fresh] = ['a long first password', 'a long second password'];
    await page.goto(at('/members'));
    await page.getByRole('button', { name: 'Add member' }).click();
    await page.getByLabel('Email').fill(guest);
    await page.getByLabel('Role', { exact: true }).selectOption('Viewer');
    await page.getByLabel(/^Password/).fill(old);
    await page.getByRole('dialog').getByRole('button', { name: 'Add member' }).click();
    await page.getByText(`${guest} added.`).waitFor();

    const there = await openAt(api, 'light', { expected: [401, 403] });
    const theirs = there.page;
    const signIn = async (secret) => {
      await theirs.getByLabel('Email').fill(guest);
      await theirs.getByLabel('Password').fill(secret);
      await theirs.getByRole('button', { name: 'Sign in' }).click();
    };
    await theirs.goto(`${api}/app/`);
    await signIn(old);
    await theirs.locator('.person summary').click();
    await theirs.getByRole('link', { name: 'Your account' }).click();
    await theirs.getByLabel('Current password').fill('not the password');
    await theirs.getByLabel('New password').fill(fresh);
    await theirs.getByRole('button', { name: 'Change password' }).click();
    await theirs.getByRole('alert').filter({ hasText: 'password is wrong' }).waitFor();
    await theirs.getByLabel('Current password').fill(old);
    await theirs.getByRole('button', { name: 'Change password' }).click();
    await theirs.getByText('Password changed.').waitFor();

    await theirs.getByRole('button', { name: 'Set up' }).click();
    await theirs.getByRole('dialog').getByLabel('Password').fill('not the password');
    await theirs.getByRole('button', { name: 'Continue' }).click();
    await theirs.getByRole('dialog').getByRole('alert').filter({ hasText: 'password is wrong' }).waitFor();
    await theirs.getByRole('dialog').getByLabel('Password').fill(fresh);
    await theirs.getByRole('button', { name: 'Continue' }).click();
    await theirs.waitForFunction(() => document.querySelector('dialog img')?.naturalWidth > 0);
    await look(theirs, 'two-factor', { full: false });
    const secret = await theirs.locator('dialog .mono').textContent();
    // A code of the step before is taken too, so the present one is still right when its step ends meanwhile.
    await theirs.getByLabel('Code').fill(totp(secret));
    await theirs.getByRole('button', { name: 'Switch on' }).click();
    const codes = (await theirs.getByRole('textbox', { name: 'Recovery codes' }).inputValue()).split('\n');
    assert.equal(codes.length, 10);
    await look(theirs, 'recovery-codes', { full: false });
    await theirs.getByRole('button', { name: 'Done' }).click();
    await theirs.getByRole('button', { name: 'Switch off' }).waitFor();

    // A viewer's change is refused, until the owner makes an editor of the viewer.
    const change = () =>
      theirs.evaluate(async () => {
        const session = await (await fetch('/app/api/session')).json();
        const answer = await fetch(`/app/api/workspaces/${session.workspaces[0].id}/keys`, {
          method: 'POST',
          headers: { 'X-Requested-With': 'hopline', 'Content-Type': 'application/json' },
          body: JSON.stringify({ name: 'k', scope: 'read' }),
        });
        return answer.status;
      });
    assert.equal(await change(), 403);
    await page.getByLabel(`Role of ${guest}`).selectOption('Editor');
    await page.getByText(`${guest} is an editor now.`).waitFor();
    assert.equal(await change(), 201);

    await theirs.reload();
    await leave(theirs, 'Sign out');
    await signIn(fresh);
    await theirs.getByLabel('Code').fill('000000');
    await theirs.getByRole('button', { name: 'Sign in' }).click();
    await theirs.getByRole('alert').filter({ hasText: 'code is wrong' }).waitFor();
    await look(theirs, 'sign-in-code');
    await theirs.getByLabel('Code').fill(codes[0]);
    await theirs.getByRole('button', { name: 'Sign in' }).click();
    await theirs.getByRole('heading', { name: 'Links', exact: true }).waitFor();

    await page.goto(at('/audit'));
    await page.getByRole('cell', { name: 'set-role' }).first().waitFor();
    await page.goto(at('/members'));
    await page.getByRole('button', { name: `Remove ${guest}` }).click();
    await page.getByRole('button', { name: 'Remove member', exact: true }).click();
    await page.getByText(`${guest} removed.`).waitFor();
    await theirs.reload();
    await theirs.getByRole('heading', { name: 'Sign in' }).waitFor();
    await there.end();
    await end();
  },


  async 'signed out everywhere is signed out everywhere'() {
    const here = await open('light', [401]);
    const there = await openAt(api, 'phone', { expected: [401] });
    await there.page.goto(`${api}/app/`);
    await enter(there.page);
    await there.page.getByRole('heading', { name: 'Links', exact: true }).waitFor();
    await here.page.goto(at('/usage'));
    await here.page.getByText(email).waitFor();
    await leave(here.page, 'Sign out everywhere');
    const left = await here.page.context().cookies();
    assert.deepEqual(left.map(({ name }) => name), ['hopline_device'], 'no way in');
    await nav(there.page, 'Members');
    await there.page.getByRole('heading', { name: 'Sign in' }).waitFor();
    await here.end();
    await there.end();
  },
};
