/** What a report shows: whose clicks, of which time, and in which words. */
import assert from 'node:assert/strict';
import { nav, settled } from './browser.js';
import { ask, mock, open, signIn } from './mock.js';

/** The cells of the series' table. */
async function series(page) {
  await page.locator('.u-over').waitFor();
  await page.locator('figcaption summary').click();
  return page.getByRole('region', { name: 'Series' }).locator('tbody tr').evaluateAll((rows) => rows.map((row) => row.cells[0].textContent));
}

const figure = (page, label) =>
  page.locator('.figure').filter({ has: page.getByText(label, { exact: true }) }).locator('.value').textContent();

export const reports = {
  async 'one class holds for the whole page: figures, top links and conversions'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Overview');
    await page.locator('.u-over').waitFor();
    await page.getByText('Bots', { exact: true }).click();
    await page.waitForFunction(() => location.search.includes('class=bot'));
    await settled(page);
    const start = new Date(Date.now() - 29 * 86_400_000).toISOString();
    const { conversions } = await ask(page, `/conversions?class=bot&limit=20&start_date=${start}`);
    assert.ok(conversions.length > 0);
    const { links } = await ask(page, `/links?class=bot&sort=-total_clicks&limit=1&start_date=${start}`);
    const top = page.getByRole('region', { name: 'Top links' }).locator('tbody tr').first();
    await top.getByText(`/${links[0].slug}`).waitFor();
    // The window of the page begins with a day, that of the question within it.
    const shown = Number((await top.locator('td').nth(1).getAttribute('title')).replaceAll(',', ''));
    assert.ok(shown >= links[0].total_clicks && shown < links[0].total_clicks + 40, `${shown} clicks of bots, not of people`);
    await page.getByRole('button', { name: 'Conversions', exact: true }).click();
    await page.getByRole('cell', { name: conversions[0].external_user_id }).waitFor();
    assert.ok(Number(await figure(page, 'Conversions')) < 200);
    await end();
  },

  async 'a custom range that ends today ends now'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Overview');
    await page.getByLabel('Time range').selectOption('custom');
    await page.getByLabel('Interval').selectOption('hour');
    await page.waitForFunction(() => document.querySelector('figcaption'));
    await settled(page);
    const hour = () => Number(new Intl.DateTimeFormat('en', { timeZone: 'Europe/Berlin', hour: '2-digit', hourCycle: 'h23' }).format(Date.now()));
    const [before, points, after] = [hour(), (await series(page)).length, hour()];
    assert.ok([before + 1, after + 1].includes(points), `${points} hours at ${after}:00`);
    await end();
  },

  async 'all time begins when the first link was created, or with older clicks'() {
    await mock('restart', { kind: 'empty' });
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await page.goto(`${page.url()}/new?destination=https://example.com/`);
    await page.getByLabel('Short link').fill('fresh');
    await page.getByRole('button', { name: 'Create link' }).click();
    await page.getByRole('heading', { name: 'go.example.com/fresh' }).waitFor();
    const today = new Intl.DateTimeFormat('en-US', { timeZone: 'Europe/Berlin', dateStyle: 'medium' }).format(Date.now());
    await page.getByLabel('Time range').selectOption('all');
    await page.getByText(`Since ${today}`).waitFor();
    assert.ok((await series(page)).length <= 2, 'minutes since then');
    await nav(page, 'Overview');
    await page.locator('.u-over').waitFor();
    await page.getByLabel('Time range').selectOption('all');
    await page.getByText(`Since ${today}`).waitFor();
    // Another edge may tell of a click from before the link.
    await mock(`click?slug=fresh&at=${Date.now() - 40 * 86_400_000}`);
    await page.reload();
    await page.getByText('as far back as the Business plan keeps clicks').waitFor();
    await series(page);
    // The chart asks again once the page knows of the first click.
    await page.getByRole('region', { name: 'Series' }).getByText(/by month/).waitFor();
    await settled(page);
    assert.ok([2, 3].includes(await page.getByRole('region', { name: 'Series' }).locator('tbody tr').count()), 'months since the first click');
    await end();
  },

  async 'the numbers of a table stand below their heads'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Overview');
    await series(page);
    const places = await page.getByRole('region', { name: 'Series' }).evaluate((region) => {
      const box = (cell) => {
        const range = document.createRange();
        range.selectNodeContents(cell);
        const { left, right } = range.getBoundingClientRect();
        return [Math.round(left), Math.round(right)];
      };
      const rows = [region.querySelector('thead tr'), region.querySelector('tbody tr')];
      return rows.map((row) => [...row.cells].map(box));
    });
    const [heads, cells] = places;
    assert.equal(heads[0][0], cells[0][0], 'the first column begins where its head begins');
    for (const column of [1, 2]) assert.equal(heads[column][1], cells[column][1], 'numbers end where their head ends');
    await end();
  },

  async 'the largest plan is offered no larger one'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Overview');
    await page.getByLabel('Time range').selectOption('custom');
    await page.getByLabel('From').fill('2020-01-01');
    await page.getByText('The Business plan keeps them for 3 years').waitFor();
    assert.equal(await page.getByText(/larger/i).count(), 0);
    await nav(page, 'Usage and plan');
    await page.getByText('(unlimited)').waitFor();
    await end();
  },

  async 'without the store of the counters there is one calm note, and the page fills itself when it is back'() {
    const { page, end } = await open('light', [401, 503]);
    await signIn(page);
    await mock('set', { down: true });
    await nav(page, 'Overview');
    const note = page.getByText('Statistics aren’t available right now');
    await note.waitFor();
    await settled(page);
    assert.equal(await note.count(), 1);
    await page.getByRole('button', { name: 'Conversions', exact: true }).click();
    assert.equal(await page.getByRole('alert').count(), 0);
    await nav(page, 'Links');
    await note.waitFor();
    assert.equal(await page.getByRole('alert').count(), 0);
    assert.ok((await page.locator('li .short').count()) > 5, 'the links are there');
    await mock('set', { down: false });
    await note.waitFor({ state: 'detached' });
    await page.locator('dd[title="–"]').first().waitFor({ state: 'detached' });
    await mock('set', { down: true });
    await nav(page, 'Overview');
    await note.waitFor();
    await mock('set', { down: false });
    await note.waitFor({ state: 'detached' });
    await page.locator('.u-over').waitFor();
    await settled(page);
    await page.getByRole('region', { name: 'Top links' }).locator('tbody tr').first().waitFor();
    await page.getByRole('region', { name: 'Countries' }).locator('tbody tr').first().waitFor();
    await page.getByRole('region', { name: 'Clicks', exact: true }).locator('tbody tr').first().waitFor();
    await end();
  },
};
