/** What people do, from its beginning to its end. */
import assert from 'node:assert/strict';
import { look, nav, settled } from './browser.js';
import { ask, change, mock, open, origin, remove, signIn } from './mock.js';

export const flows = {
  async 'a wrong password shows an error and a right one leads to the links'() {
    const { page, end } = await open('light', [401, 429]);
    await page.goto(`${origin}/app/`);
    await page.getByLabel('Email').fill('ada@example.com');
    await page.getByLabel('Password').fill('wrong');
    await page.keyboard.press('Enter');
    await page.getByRole('alert').filter({ hasText: 'wrong' }).waitFor();
    assert.equal(await page.getByLabel('Password').inputValue(), '');
    await page.getByLabel('Email').fill('often@example.com');
    await page.getByLabel('Password').fill('wrong');
    await page.keyboard.press('Enter');
    await page.getByRole('alert').filter({ hasText: 'Too many' }).waitFor();
    await signIn(page);
    await end();
  },

  async 'the first person sets a deployment up'() {
    await mock('restart', { kind: 'fresh' });
    const { page, end } = await open('light', [401, 403]);
    await page.goto(`${origin}/app/`);
    await page.getByLabel('Your name').fill('Ada');
    await page.getByLabel('Email').fill('ada@example.com');
    await page.getByLabel('Password').fill('correct horse battery');
    await page.getByLabel('Setup token').fill('guessed');
    await page.getByRole('button', { name: 'Create account' }).click();
    await page.getByRole('alert').filter({ hasText: 'token is wrong' }).waitFor();
    await page.getByLabel('Setup token').fill('let-me-in');
    await page.getByRole('button', { name: 'Create account' }).click();
    await page.getByText('Create your first short link').waitFor();
    await end();
  },

  async 'a link is created with a checked slug and UTM parameters, changed, switched off and deleted'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await page.getByRole('link', { name: 'New link' }).click();
    await page.getByRole('button', { name: 'Create link' }).click();
    await page.getByText('Enter a destination.').waitFor();
    await page.waitForFunction(() => document.activeElement?.getAttribute('aria-invalid') === 'true');
    await page.getByLabel('Destination', { exact: true }).fill('example.com/offer?a=%20b&click_id=own');
    await page.getByLabel('Short link').fill('spring');
    await page.getByText('This slug is taken.').waitFor();
    await page.getByLabel('Short link').fill('no spaces');
    await page.getByText('Use only letters').waitFor();
    await page.getByLabel('Short link').fill('offer');
    await page.getByText('Available.').waitFor();
    await page.getByLabel(/^Name/).fill('Offer <script>alert(1)</script>');
    await page.getByLabel('Tags').fill('one,');
    await page.getByLabel('Tags').fill('two');
    await page.keyboard.press('Enter');
    await page.getByText('UTM parameters').click();
    await page.getByLabel('Source').fill('news letter');
    await page.getByRole('button', { name: 'Create link' }).click();
    await page.getByRole('heading', { name: 'go.example.com/offer' }).waitFor();
    await page.getByText('example.com/offer?a=%20b&click_id=own&utm_source=news%20letter').waitFor();
    await page.locator('.note.warn').getByText('The click_id in the destination is replaced').waitFor();
    await page.getByText('Offer <script>alert(1)</script>').waitFor();
    await page.getByRole('link', { name: 'Edit' }).click();
    assert.equal(await page.getByLabel('Source').inputValue(), 'news letter');
    await page.getByLabel(/^Name/).fill('Offer');
    await page.getByRole('button', { name: 'Save changes' }).click();
    await page.locator('header').getByText('Offer', { exact: true }).waitFor();
    await page.getByRole('button', { name: 'More actions for this link' }).click();
    await page.keyboard.press('Enter');
    await page.locator('header').getByText('Inactive').waitFor();
    await page.getByRole('button', { name: 'More actions for this link' }).click();
    await page.keyboard.press('ArrowUp');
    await page.keyboard.press('Enter');
    await page.getByText('all of its clicks and conversions will be deleted').waitFor();
    await page.getByRole('button', { name: 'Delete link and its clicks' }).click();
    await page.getByRole('heading', { name: 'Links', exact: true }).waitFor();
    await page.locator('li .short').first().waitFor();
    assert.equal(await page.locator('li .short').filter({ hasText: 'offer' }).count(), 0);
    await end();
  },

  async 'two people who change a link at once both keep their changes'() {
    for (const kind of ['light', 'phone-dark']) {
      await mock('restart', {});
      const { page, end } = await open(kind, [401, 404, 412, 503]);
      await signIn(page);
      await page.getByRole('link', { name: 'go.example.com/docs' }).click();
      const link = `/links/${new URL(page.url()).pathname.split('/').at(-1)}`;
      const save = page.getByRole('button', { name: 'Save changes' });
      const edit = () => page.getByRole('link', { name: 'Edit' }).click();
      const has = async (fields) => {
        const stored = await ask(page, link);
        assert.deepEqual({ ...stored, ...fields }, stored);
      };
      const sent = [];
      page.on('request', (request) => {
        if (request.method() === 'PATCH') sent.push([request.headers()['if-match'], request.postDataJSON()]);
      });

      // Without a change nothing is sent.
      await edit();
      await page.getByLabel(/^Name/).fill('Another name');
      await page.getByLabel(/^Name/).fill(' Documentation ');
      await save.click();
      await page.getByRole('link', { name: 'Edit' }).waitFor();
      assert.deepEqual(sent.splice(0), []);

      await edit();
      // So that the form is longer than the screen.
      await page.getByText('More options').click();
      await page.getByLabel(/^Name/).fill('Manual');
      await page.getByLabel('Tags').fill('mine');
      await page.keyboard.press('Enter');
      const others = { destination: 'https://docs.example.com/?utm_source=mail', name: 'Docs', expires_at: '2040-01-01T11:00:00Z', append_click_id: false };
      await change(page, link, others);
      await save.click();
      const note = page.getByRole('alert').filter({ hasText: 'This link was changed while you were editing it.' });
      await note.waitFor();
      assert.deepEqual((await note.locator('li').allTextContents()).map((text) => text.trim().replace(/\s+/g, ' ')), [
        'Destination: https://docs.example.com/?utm_source=mail',
        'Name: Docs (saving replaces this with your change)',
        'Append click_id: off',
        'Expires: Jan 1, 2040, 12:00 PM',
      ]);
      assert.ok((await note.boundingBox()).y >= 0, 'the note is in view');
      await look(page, `${kind}-link-changed`);
      const mine = { name: 'Manual', tags: ['product', 'mine'] };
      await has(others);
      assert.deepEqual(sent.splice(0), [['"1"', mine]]);
      assert.equal(await page.getByLabel(/^Name/).inputValue(), 'Manual');
      assert.equal(await page.getByLabel('Destination', { exact: true }).inputValue(), others.destination);
      assert.equal(await page.getByLabel('Source').inputValue(), 'mail');
      assert.equal(await page.getByLabel('Expires').inputValue(), '2040-01-01T12:00');
      await save.click();
      await page.getByText('Changes saved.').waitFor();
      assert.deepEqual(sent.splice(0), [['"2"', mine]]);
      await has({ ...others, ...mine });

      // A change whose answer was lost is no change by others; and a proxy that compresses makes the tag weak.
      await page.route(`**${link}`, async (route) => {
        const response = await route.fetch();
        if (route.request().method() !== 'PATCH') return route.fulfill({ response, headers: { ...response.headers(), etag: `W/${response.headers().etag}` } });
        return route.fulfill({ status: 503, json: { statusCode: 503, code: 'UNAVAILABLE', message: 'Try again in a moment.' } });
      });
      await edit();
      await page.getByLabel(/^Name/).fill('Handbook');
      await save.click();
      await page.getByRole('alert').filter({ hasText: 'Try again in a moment.' }).waitFor();
      await page.unroute(`**${link}`);
      await save.click();
      await page.locator('header').getByText('Handbook').waitFor();
      assert.deepEqual(sent.splice(0), [['"3"', { name: 'Handbook' }], ['"3"', { name: 'Handbook' }]]);

      // A newer revision without a difference is nothing to look at.
      await edit();
      await page.getByLabel(/^Name/).fill('Guide');
      await change(page, link, { is_active: false });
      await change(page, link, { is_active: true });
      await save.click();
      await page.locator('header').getByText('Guide').waitFor();
      assert.deepEqual(sent.splice(0), [['"4"', { name: 'Guide' }], ['"6"', { name: 'Guide' }]]);

      // What is typed while a change is being saved is not lost.
      await edit();
      await page.getByLabel(/^Name/).fill('First guide');
      await page.route(`**${link}`, async (route) => {
        if (route.request().method() === 'PATCH') await page.getByLabel(/^Name/).fill('Second guide');
        return route.continue();
      });
      await save.click();
      await page.getByRole('button', { name: 'Keep editing' }).click();
      await page.unroute(`**${link}`);
      assert.equal(await page.getByLabel(/^Name/).inputValue(), 'Second guide');
      await has({ name: 'First guide' });

      await remove(page, link);
      await save.click();
      await page.getByRole('alert').filter({ hasText: 'This link was deleted while you were editing it' }).waitFor();
      assert.equal(await page.getByLabel(/^Name/).inputValue(), 'Second guide');
      await end();
    }
  },

  async 'links are found by words, tag, state and order, and the address keeps the choice'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await page.getByLabel('Search links').fill('webinar');
    await page.getByText('1 link shown').waitFor({ state: 'attached' });
    await page.reload();
    assert.equal(await page.getByLabel('Search links').inputValue(), 'webinar');
    await page.getByText('1 link shown').waitFor({ state: 'attached' });
    await page.getByLabel('Search links').fill('nothing like this');
    await page.getByRole('button', { name: 'Clear filters' }).click();
    await page.getByLabel('Tag', { exact: true }).selectOption('sale');
    await page.getByText('2 links shown').waitFor({ state: 'attached' });
    await page.getByLabel('Tag', { exact: true }).selectOption('');
    await page.getByLabel('State').selectOption('locked');
    await page.getByText('1 link shown').waitFor({ state: 'attached' });
    await page.getByLabel('State').selectOption('all');
    await page.getByLabel('Order').selectOption('-total_clicks');
    await page.waitForFunction(() => document.querySelector('li .short')?.textContent.endsWith('/spring'));
    await end();
  },

  async 'a click shows at once, and the counts follow'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await page.getByRole('link', { name: 'go.example.com/hiring' }).click();
    await page.locator('.live.good').waitFor();
    await settled(page);
    const total = async () => Number((await page.locator('.figure .value').first().textContent()).replaceAll(',', ''));
    const [before, rows] = [await total(), await page.locator('tr.fresh').count()];
    assert.equal(rows, 0);
    await mock('click?slug=hiring');
    await page.locator('tr.fresh').waitFor();
    await mock('click?slug=spring');
    await page.waitForFunction(
      (wanted) => Number(document.querySelector('.figure .value').textContent.replaceAll(',', '')) === wanted,
      before + 1,
      { timeout: 12_000 },
    );
    assert.equal(await page.locator('tr.fresh').count(), 1, 'only this link’s click');
    await end();
  },

  async 'a report follows range, interval, class and zone, and shows where the plan cuts it'() {
    await mock('restart', { plan: 'free' });
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Overview');
    await page.locator('.u-over').waitFor();
    await page.getByLabel('Time range').selectOption('90d');
    await page.getByText('The Free plan keeps them for 30 days').waitFor();
    await page.getByLabel('Time range').selectOption('24h');
    await page.getByText('The Free plan keeps them for').waitFor({ state: 'detached' });
    const asked = page.waitForRequest((request) => /\/stats\?.*class=bot/.test(request.url()));
    await page.getByText('Bots', { exact: true }).click();
    const query = new URL((await asked).url()).searchParams;
    assert.equal(query.get('interval'), 'hour');
    assert.equal(query.get('timezone'), 'Europe/Berlin');
    const zoned = page.waitForRequest((request) => /\/stats\?.*timezone=Asia%2FKolkata/.test(request.url()));
    await page.getByLabel('Time zone').selectOption('Asia/Kolkata');
    await zoned;
    await page.getByLabel('Time range').selectOption('90d');
    await page.getByText('Chart in UTC. Asia/Kolkata is 5:30 hours ahead of UTC').waitFor();
    await page.getByLabel('Time range').selectOption('custom');
    await page.getByLabel('From').fill('2026-01-01');
    await page.waitForFunction(() => location.search.includes('from=2026-01-01'));
    await page.getByText('Show as table').click();
    await page.getByRole('columnheader', { name: 'Time (UTC)' }).first().waitFor();
    await end();
  },

  async 'a key is shown once, copied, and revoked'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Developers');
    await page.getByRole('button', { name: 'New key' }).click();
    await page.getByLabel('Name').fill('Tablet');
    await page.getByText('Read and write').last().click();
    await page.getByRole('button', { name: 'Create key' }).click();
    const value = await page.getByLabel('API key', { exact: true }).inputValue();
    assert.match(value, /^hop_live_/);
    await page.getByRole('button', { name: 'Copy', exact: true }).click();
    assert.equal(await page.evaluate(() => navigator.clipboard.readText()), value);
    await page.getByRole('button', { name: 'Done' }).click();
    assert.equal((await page.content()).includes(value), false);
    await page.getByRole('button', { name: 'Revoke Tablet' }).click();
    await page.getByRole('button', { name: 'Revoke key' }).click();
    await page.locator('tr').filter({ hasText: 'Tablet' }).getByText('Revoked').waitFor();
    await end();
  },

  async 'members and workspaces come and go'() {
    const { page, end } = await open('light', [401, 409]);
    await signIn(page);
    await nav(page, 'Members');
    await page.getByRole('button', { name: 'Add member' }).click();
    await page.getByLabel('Email').fill('grace@example.com');
    await page.getByRole('dialog').getByRole('button', { name: 'Add member' }).click();
    await page.getByRole('alert').filter({ hasText: 'There is a member' }).waitFor();
    await page.getByLabel('Email').fill('alan@example.com');
    await page.getByRole('dialog').getByRole('button', { name: 'Add member' }).click();
    assert.ok((await page.getByLabel('Password', { exact: true }).inputValue()).length > 11);
    await page.getByRole('button', { name: 'Done' }).click();
    await page.getByRole('button', { name: 'Reset two-factor sign-in of grace@example.com' }).click();
    await page.getByRole('button', { name: 'Reset', exact: true }).click();
    await page.getByText('grace@example.com signs in with the password alone now.').waitFor();
    await page.getByRole('button', { name: /^Reset two-factor/ }).waitFor({ state: 'detached' });
    const role = page.getByLabel('Role of grace@example.com');
    await role.selectOption('Viewer');
    await page.getByRole('button', { name: 'Cancel' }).click();
    assert.equal(await role.inputValue(), 'editor', 'nothing has changed');
    await role.selectOption('Viewer');
    await page.getByRole('button', { name: 'Make viewer' }).click();
    await page.getByText('grace@example.com is a viewer now.').waitFor();
    await page.waitForFunction(() => document.querySelector('[aria-label="Role of grace@example.com"]').value === 'viewer');
    await page.getByRole('button', { name: 'Remove alan@example.com' }).click();
    await page.getByRole('button', { name: 'Remove member' }).click();
    await page.locator('li').filter({ hasText: 'alan@example.com' }).waitFor({ state: 'detached' });
    await page.getByRole('button', { name: 'New workspace' }).click();
    await page.getByLabel('Name').fill('Second brand');
    await page.getByRole('button', { name: 'Create workspace' }).click();
    await page.getByLabel('Workspace', { exact: true }).selectOption({ label: 'Second brand' });
    await page.getByText('Create your first short link').waitFor();
    await page.goto(`${origin}/app/`);
    await page.getByText('Create your first short link').waitFor();
    await end();
  },

  async 'a file is tried out before it is imported, and all is exported'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Import and export');
    const csv = 'name,destination,slug\nOne,https://example.com/1,one\nTwo,https://example.com/2,spring\n\nThree,nowhere,three\nFour,example.com/4,four\n';
    await page.getByLabel('CSV file').setInputFiles({ name: 'links.csv', mimeType: 'text/csv', buffer: Buffer.from(csv) });
    await page.getByText('2 links will be created and 2 rows rejected').waitFor();
    const rejected = page.getByRole('region', { name: 'Rejected rows' }).locator('tbody tr');
    assert.deepEqual(
      await rejected.evaluateAll((rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))),
      [
        ['3', 'This slug is taken.', 'Two,https://example.com/2,spring'],
        // The header is line 1, and line 4 is blank.
        ['5', 'destination must be an absolute URL', 'Three,nowhere,three'],
      ],
    );
    const sent = page.waitForRequest((request) => request.url().includes('dry_run=false'));
    await page.getByRole('button', { name: 'Import 2 links' }).click();
    assert.match((await sent).headers()['idempotency-key'], /^[0-9a-f]{32}$/);
    await page.getByText('2 links created, 2 rows rejected').waitFor();
    const saved = page.waitForEvent('download');
    await page.getByRole('link', { name: 'Links', exact: true }).last().click();
    assert.equal((await saved).suggestedFilename(), 'links.csv');
    const template = page.waitForEvent('download');
    await page.getByRole('link', { name: 'Download a template' }).click();
    assert.equal((await template).suggestedFilename(), 'links-template.csv');
    await end();
  },

  async 'a reached limit shows an error, and the form keeps its values'() {
    await mock('restart', { kind: 'empty', plan: 'free' });
    const { page, end } = await open('light', [401, 403]);
    await signIn(page);
    for (let made = 0; made <= 25; made++) {
      await page.goto(`${page.url().replace(/\/links.*/, '')}/links/new?destination=https://example.com/${made}`);
      await page.getByRole('button', { name: 'Create link' }).click();
      if (made < 25) await page.getByRole('heading', { name: /^go\.example\.com/ }).waitFor();
    }
    await page.getByText('You’ve used 25 of 25 links.').waitFor();
    await page.getByRole('alert').filter({ hasText: '25 links are used up' }).waitFor();
    assert.equal(await page.getByLabel('Destination', { exact: true }).inputValue(), 'https://example.com/25');
    await nav(page, 'Links');
    await page.getByText('You’ve used 25 of 25 links on the Free plan. Delete a link or upgrade').waitFor();
    await page.getByRole('link', { name: 'New link' }).click();
    await page.getByText('You’ve used 25 of 25 links.').waitFor();
    await end();
  },

  async 'colours follow the system until they are chosen, and the choice stays'() {
    const { page, end } = await open('dark', [401]);
    await signIn(page);
    const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const dark = await ground();
    await page.getByRole('button', { name: 'Light' }).click();
    const light = await ground();
    assert.notEqual(light, dark);
    await page.reload();
    await page.getByRole('heading', { name: 'Links', exact: true }).waitFor();
    assert.equal(await ground(), light);
    await page.getByRole('button', { name: 'System' }).click();
    assert.equal(await ground(), dark);
    await end();
  },

  async 'a session that ended elsewhere leads to the sign-in, and back to the same page'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Usage and plan');
    await page.getByText('Click history').waitFor();
    await mock('restart', {});
    await nav(page, 'Members');
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
    await page.getByLabel('Email').fill('ada@example.com');
    await page.getByLabel('Password').fill('correct horse battery');
    await page.keyboard.press('Enter');
    await page.getByRole('heading', { name: 'Members' }).waitFor();
    await page.locator('.person summary').click();
    await page.getByRole('button', { name: 'Sign out', exact: true }).click();
    await page.getByRole('heading', { name: 'Sign in' }).waitFor();
    await end();
  },

  async 'the keyboard is enough'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await settled(page);
    await page.keyboard.press('Tab');
    await page.keyboard.press('Tab');
    await page.goto(page.url());
    await settled(page);
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to content');
    await page.keyboard.press('Enter');
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent.trim()), 'New link');
    await nav(page, 'Developers');
    await page.waitForFunction(() => document.activeElement.tagName === 'H1');
    assert.match(await page.title(), /^Developers/);
    await page.getByRole('button', { name: 'New key' }).focus();
    await page.keyboard.press('Enter');
    await page.waitForFunction(() => document.activeElement.closest('dialog'));
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.activeElement.textContent.includes('New key'));
    await end();
  },

  async 'a server that is away is named, and asked again until it is back'() {
    const { page, end } = await open('light', [401, 503]);
    await signIn(page);
    await page.route('**/members', (route) =>
      route.fulfill({
        status: 503,
        contentType: 'application/json',
        body: JSON.stringify({ statusCode: 503, code: 'UNAVAILABLE', message: 'Try again in a moment.' }),
      }),
    );
    await nav(page, 'Members');
    await page.getByRole('alert').filter({ hasText: 'Try again in a moment.' }).waitFor();
    await page.getByRole('button', { name: 'Try again' }).waitFor();
    await page.unroute('**/members');
    await page.getByText('grace@example.com').first().waitFor();
    await end();
  },

  async 'the first page is small and asks for little'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await page.goto(page.url());
    await settled(page);
    const [parsed, files] = await page.evaluate(() => [
      performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd,
      performance.getEntriesByType('resource').filter(({ name }) => !name.includes('/app/api/')).map(({ name, encodedBodySize }) => ({ name, size: encodedBodySize })),
    ]);
    const size = files.reduce((sum, file) => sum + file.size, 0);
    process.stdout.write(`     ${files.length} files, ${Math.round(size / 1000)} kB uncompressed, parsed after ${Math.round(parsed)} ms\n`);
    assert.ok(files.length > 2 && files.length <= 6, files.map(({ name }) => name).join(' '));
    await end();
  },
};
