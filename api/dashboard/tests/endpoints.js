/** Webhook endpoints: what fails is seen from everywhere, and what is sent is followed to its end. */
import assert from 'node:assert/strict';
import { nav } from './browser.js';
import { mock, open, signIn } from './mock.js';

const badge = (page, text) =>
  page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: text ? `Webhooks (${text})` : /^Webhooks$/ });

export const endpoints = {
  async 'an endpoint is created, tested and its secret rotated'() {
    const { page, end } = await open('light', [400, 401]);
    await signIn(page);
    await nav(page, 'Webhooks');
    await page.getByRole('button', { name: 'New endpoint' }).click();
    await page.getByLabel('URL').fill('http://inside.example.com/');
    await page.getByRole('button', { name: 'Create endpoint' }).click();
    await page.getByText('must be https').waitFor();
    await page.getByLabel('URL').fill('https://new.example.com/');
    await page.getByRole('button', { name: 'Create endpoint' }).click();
    assert.match(await page.getByLabel('Signing secret', { exact: true }).last().inputValue(), /^whsec_/);
    await page.getByRole('link', { name: 'Open endpoint' }).click();
    await page.getByText('No failed deliveries').waitFor();
    assert.equal(await page.locator('dt', { hasText: 'Last success' }).locator('xpath=following-sibling::dd').textContent(), 'Never');
    await page.getByRole('button', { name: 'Send test event' }).click();
    await page.getByText('Test event delivered.').waitFor();
    await page.locator('dd').filter({ hasText: /ago|now/ }).first().waitFor();
    await page.getByRole('button', { name: 'More actions for this endpoint' }).click();
    await page.getByRole('menuitem', { name: 'Rotate secret' }).click();
    await page.getByRole('button', { name: 'Rotate secret' }).click();
    assert.match(await page.getByLabel('Signing secret', { exact: true }).last().inputValue(), /^whsec_/);
    await end();
  },

  async 'a failed test shows its next attempt, and a rejected one that it is final'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Webhooks');
    await page.getByRole('link', { name: 'https://hooks.example.com' }).click();
    await mock('set', { answers: [500, 204, 410] });
    await page.getByRole('button', { name: 'Send test event' }).click();
    await page.getByText('Attempt 1 failed with status 500. Next attempt in').waitFor();
    await page.getByText('Test event delivered.').waitFor();
    await page.getByRole('button', { name: 'Send test event' }).click();
    await page.getByText('Test event failed with status 410. It won’t be retried.').waitFor();
    await page.getByText('This endpoint is failing. The last attempt failed with status 410').waitFor();
    await badge(page, '3 endpoints need attention').waitFor();
    await end();
  },

  async 'an endpoint that fails or is disabled is seen from every page, with the reason and the way out'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await badge(page, '2 endpoints need attention').waitFor();
    await nav(page, 'Webhooks');
    const notes = page.getByRole('list', { name: 'Endpoints that need attention' });
    await notes.getByText('CRM is disabled: 15 deliveries in a row used up their attempts. Fix your server').waitFor();
    await notes.getByText('Partner is failing').waitFor();
    const row = page.getByRole('listitem').filter({ hasText: 'https://partner.example.net' });
    await row.getByText('Failing', { exact: true }).waitFor();
    await page.getByRole('link', { name: 'https://partner.example.net' }).click();
    await page.getByText('The last attempt failed with status 400').waitFor();
    assert.equal(await page.locator('li summary').count(), 19);
    await page.goBack();
    await page.getByRole('link', { name: 'enable the endpoint' }).click();
    await page.getByText('This endpoint is disabled').waitFor();
    await page.getByRole('button', { name: 'Enable endpoint' }).click();
    await page.getByText('This endpoint is disabled').waitFor({ state: 'detached' });
    await badge(page, '1 endpoint needs attention').waitFor();
    await end();
  },

  async 'what is sent again shows its result as it comes, alone and with all others'() {
    const { page, end } = await open('light', [401]);
    await signIn(page);
    await nav(page, 'Webhooks');
    await page.getByRole('link', { name: 'https://crm.example.org' }).click();
    await page.getByRole('button', { name: 'Enable endpoint' }).click();
    const log = page.getByRole('region', { name: 'Failed deliveries' });
    await log.locator('summary').filter({ hasText: 'Status 500' }).first().click();
    await page.getByText('<script>alert("from a receiver")</script>').first().waitFor();
    assert.equal(await log.getByText('Delivered', { exact: true }).count(), 1);
    await log.getByRole('button', { name: 'Resend', exact: true }).first().click();
    await page.getByText('Event delivered.').waitFor();
    await log.getByText('Delivered', { exact: true }).nth(1).waitFor();
    await page.getByRole('button', { name: 'Resend all' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Resend all' }).click();
    await log.getByText('Delivered', { exact: true }).nth(5).waitFor();
    await log.getByText('in progress').waitFor({ state: 'detached' });
    await end();
  },
};
