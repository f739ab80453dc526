/** What would go wrong unnoticed: a token in an address, changes that are not saved, links that are over. */
import assert from 'node:assert/strict';
import { nav } from './browser.js';
import { mock, open, origin, signIn } from './mock.js';

const form = (page) => page.getByRole('heading', { name: /^(New|Edit) link$/ });
const question = (page) => page.getByRole('dialog').getByText('Discard unsaved changes?');

export const safety = {
  async 'the address that ./dev up prints sets a deployment up without asking for the token'() {
    await mock('restart', { kind: 'fresh' });
    const { page, end } = await open('light', [401, 403]);
    const begin = async (token) => {
      await page.goto('about:blank');
      await page.goto(`${origin}/app/#setup_token=${token}`);
      await page.getByText('Create the owner account to get started.').waitFor();
      assert.equal(page.url(), `${origin}/app/`, 'the token is gone from the address');
      assert.equal(await page.getByLabel('Setup token').count(), 0);
      await page.getByLabel('Your name').fill('Ada');
      await page.getByLabel('Email').fill('ada@example.com');
      await page.getByLabel('Password').fill('correct horse battery');
      await page.getByRole('button', { name: 'Create account' }).click();
    };
    await begin('of-another-server');
    await page.getByRole('alert').filter({ hasText: 'token is wrong' }).waitFor();
    await page.getByLabel('Setup token').waitFor();
    await begin('let-me-in');
    await page.getByText('Create your first short link').waitFor();
    await end();
  },

  async 'changes that are not saved are asked about on every way out, and nothing else is'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await page.getByRole('link', { name: 'go.example.com/spring' }).click();
    await page.getByRole('link', { name: 'Edit' }).click();
    await form(page).waitFor();
    await page.goBack();
    await page.locator('.u-over').waitFor();
    assert.equal(await question(page).count(), 0, 'nothing has changed');
    await page.goForward();
    await page.getByLabel(/^Name/).fill('Another name');
    // By the navigation.
    await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: 'Usage' }).click();
    await question(page).waitFor();
    await page.getByRole('button', { name: 'Keep editing' }).click();
    assert.equal(await page.getByLabel(/^Name/).inputValue(), 'Another name');
    // By the browser.
    await page.goBack();
    await question(page).waitFor();
    await page.keyboard.press('Escape');
    assert.equal(await page.getByLabel(/^Name/).inputValue(), 'Another name');
    assert.match(page.url(), /\/edit$/);
    // By another workspace.
    await page.getByLabel('Workspace', { exact: true }).selectOption({ label: 'Ada Lovelace' });
    await question(page).waitFor();
    await page.getByRole('button', { name: 'Keep editing' }).click();
    assert.equal(await page.getByLabel('Workspace', { exact: true }).evaluate((select) => select.selectedOptions[0].text), 'Acme marketing');
    // By closing or reloading: the browser asks.
    const asked = page.waitForEvent('dialog');
    await page.reload();
    assert.equal((await asked).type(), 'beforeunload');
    await page.getByLabel(/^Name/).fill('Another name');
    await page.goBack();
    await question(page).waitFor();
    await page.getByRole('button', { name: 'Discard changes' }).click();
    await page.locator('.u-over').waitFor();
    await page.getByRole('link', { name: 'Edit' }).click();
    assert.notEqual(await page.getByLabel(/^Name/).inputValue(), 'Another name');
    // Saving leaves without a question.
    await page.getByLabel(/^Name/).fill('Spring');
    await page.getByRole('button', { name: 'Save changes' }).click();
    await page.getByText('Changes saved.').waitFor();
    await page.locator('.u-over').waitFor();
    assert.equal(await question(page).count(), 0);
    await end();
  },

  async 'a link whose expiry has passed is asked about, and shown as expired'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await page.getByRole('link', { name: 'New link' }).click();
    await page.getByLabel('Destination', { exact: true }).fill('https://example.com/over');
    await page.getByLabel('Short link').fill('over');
    await page.getByText('Available.').waitFor();
    await page.getByText('More options').click();
    await page.getByLabel('Expires').fill('2026-01-01T10:00');
    await page.getByText('Expired: this time is in the past').waitFor();
    await page.getByRole('button', { name: 'Create link' }).click();
    await page.getByText('The short link won’t redirect: it returns 410 Gone.').waitFor();
    await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
    await form(page).waitFor();
    await page.getByRole('button', { name: 'Create link' }).click();
    await page.getByRole('button', { name: 'Create anyway' }).click();
    await page.getByText('go.example.com/over has expired and doesn’t redirect.').waitFor();
    assert.equal(await page.getByText('is live').count(), 0);
    await page.locator('header').getByText(/^Expired/).waitFor();
    await nav(page, 'Links');
    await page.locator('li').filter({ hasText: 'go.example.com/over' }).getByText(/^Expired/).waitFor();
    // What was saved before is not asked about again.
    await page.getByRole('link', { name: 'go.example.com/over' }).click();
    await page.getByRole('link', { name: 'Edit' }).click();
    await page.getByText('Expired: this time is in the past').waitFor();
    await page.getByLabel(/^Name/).fill('Over');
    await page.getByRole('button', { name: 'Save changes' }).click();
    await page.getByText('Changes saved. go.example.com/over has expired').waitFor();
    await end();
  },

  async 'a key without a name is called API key'() {
    const { page, end } = await open('light', [401]);
    const key = { id: 'key_00000000000000000000000001', name: '', prefix: 'hop_live_aaaa', scope: 'read', created_at: new Date().toISOString(), expires_at: null, last_used_at: null, revoked_at: null };
    await mock('set', { keys: [key] });
    await signIn(page);
    await nav(page, 'Developers');
    await page.getByRole('cell', { name: 'API key', exact: true }).waitFor();
    await page.getByRole('button', { name: 'Revoke API key' }).click();
    await page.getByRole('dialog').getByText('API key').first().waitFor();
    await end();
  },
};
