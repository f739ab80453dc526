/** What fits on a screen: a dense list on a laptop, and nothing out of reach on a narrow phone. */
import assert from 'node:assert/strict';
import { look, nav, settled } from './browser.js';
import { ask, open, remove, signIn } from './mock.js';

export const layout = {
  async 'a laptop shows twelve links, with their conversions and the day they were created'() {
    const { page, end } = await open('laptop', [401]);
    await signIn(page);
    // Without the locked link there is no note about it above the list.
    const [locked] = (await ask(page, '/links?is_locked=true')).links;
    await remove(page, `/links/${locked.id}`);
    await page.reload();
    await page.locator('.spark path').first().waitFor({ state: 'attached' });
    await settled(page);
    const rows = page.getByRole('list', { name: 'Links' }).getByRole('listitem');
    const seen = await rows.evaluateAll((all) => all.filter((row) => row.getBoundingClientRect().bottom <= innerHeight).length);
    assert.ok(seen >= 12, `${seen} links are whole`);
    const numbers = await rows.filter({ hasText: '/spring' }).locator('dd').allTextContents();
    assert.equal(numbers.length, 4);
    assert.match(numbers[2], /^[\d,.]+K?$/);
    assert.match(numbers[3], /^[A-Z][a-z]{2} \d+, 20\d\d$/);
    await look(page, 'laptop-links', { full: false });
    await end();
  },

  async 'a narrow phone reaches every column, and the button that revokes a key'() {
    const { page, end } = await open('narrow', [401]);
    await signIn(page);
    await look(page, 'narrow-links');
    for (const name of ['Conversions', 'Created']) {
      const box = await page.locator('li dt', { hasText: name }).first().boundingBox();
      assert.ok(box.width > 20 && box.x >= 0 && box.x + box.width <= 360, `${name} is on the screen`);
    }
    await nav(page, 'Developers');
    await page.getByText('hop_live_8Fk2').waitFor();
    const cells = await page.locator('tbody tr').first().locator('td, button').evaluateAll((all) => all.map((one) => one.getBoundingClientRect().right));
    assert.ok(Math.max(...cells) <= 360, `${cells}`);
    await look(page, 'narrow-developers');
    await nav(page, 'Overview');
    await page.locator('.u-over').waitFor();
    await look(page, 'narrow-overview');
    // Tables that are wider than the screen end where scrolling ends.
    const last = await page.getByRole('region', { name: 'Clicks', exact: true }).evaluate((region) => {
      region.scrollLeft = region.scrollWidth;
      return region.querySelector('tbody td:last-child').getBoundingClientRect().right;
    });
    assert.ok(last <= 360, `${last}`);
    await end();
  },
};
