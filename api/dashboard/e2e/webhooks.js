/** The long way of an endpoint: as long as five attempts take, nearly three minutes. */
import assert from 'node:assert/strict';
import { verify } from '../../../docs/examples/verify/verify.mjs';
import { look } from '../tests/browser.js';
import { HOSTILE, ask, open, run } from './person.js';
import { api, listen, until, visit } from './stack.js';

/** As many deliveries in a row as disable an endpoint, and the attempts of each. */
const DELIVERIES = 15;
const ATTEMPTS = 5;
/** Waits of 10, 20, 40 and 80 seconds and a tenth, and what the machine takes. */
const LONGEST = 240;

const ids = (attempts) => [...new Set(attempts.map(({ id }) => id))].sort();

export async function fails() {
  const attempts = [];
  let status = 500;
  const receiver = await listen((request, response, body) => {
    attempts.push({ id: request.headers['x-service-delivery'], signature: request.headers['x-service-signature'], body, status });
    response.writeHead(status).end(`<h1>Out of order</h1>${HOSTILE}`);
  });
  const { page, end } = await open('light');
  // A separate workspace, without other events.
  const { id: workspace } = await ask(page, 'POST', '/workspaces', { name: `Webhooks ${run}`, kind: 'organization' }, '');
  const inside = `/workspaces/${workspace}`;
  const slug = `event-${run}`;
  await ask(page, 'POST', '/links', { name: 'Event', slug, destination: 'https://example.com/' }, inside);
  await page.goto(`${api}/app/${workspace}/webhooks`);
  await page.getByRole('button', { name: 'New endpoint' }).first().click();
  await page.getByLabel('URL').fill(`${receiver.url}/hooks`);
  await page.getByLabel('Description').fill('Warehouse');
  await page.getByRole('button', { name: 'Create endpoint' }).click();
  const secret = await page.getByLabel('Signing secret', { exact: true }).last().inputValue();
  await page.getByRole('link', { name: 'Open endpoint' }).click();
  await page.getByText('No failed deliveries').waitFor();
  const endpoint = page.url().split('/').at(-1);

  for (let n = 0; n < DELIVERIES; n++) await visit(slug);
  const failures = page.getByRole('region', { name: 'Failed deliveries' });
  const refresh = () => page.getByRole('button', { name: 'Refresh' }).click();
  await until('every failure is seen', async () => {
    await refresh();
    return (await failures.locator('summary').count()) === DELIVERIES;
  });
  await failures.locator('summary').first().click();
  await failures.getByText('Status 500').first().waitFor();
  await failures.getByText(`<h1>Out of order</h1>${HOSTILE}`).first().waitFor();

  await until(
    'the endpoint is disabled',
    async () => (await ask(page, 'GET', `/webhooks/${endpoint}`, null, inside)).status === 'disabled',
    LONGEST,
  );
  await page.reload();
  await page.getByText('This endpoint is disabled').waitFor();
  await page.getByText(`${DELIVERIES} deliveries in a row used up their attempts`).waitFor();
  await failures.getByText('no more retries').nth(DELIVERIES - 1).waitFor();
  await look(page, 'webhook-disabled');
  const failed = ids(attempts);
  assert.deepEqual(
    failed.map((id) => attempts.filter((attempt) => attempt.id === id).length),
    Array(DELIVERIES).fill(ATTEMPTS),
    'every delivery was tried five times',
  );
  await page.getByRole('link', { name: 'Webhooks', exact: true }).first().click();
  await page.getByText('Disabled', { exact: true }).waitFor();
  await page.goBack();

  status = 204;
  await page.getByRole('button', { name: 'Enable endpoint' }).click();
  await page.getByText('This endpoint is disabled').waitFor({ state: 'detached' });
  await page.getByRole('button', { name: 'Resend all' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Resend all', exact: true }).click();
  const arrived = () => attempts.filter((attempt) => attempt.status === 204);
  await until('what failed has arrived', () => failed.every((id) => arrived().some((attempt) => attempt.id === id)));
  const before = arrived().length;
  await visit(slug);
  await until('what happens now arrives too', () => arrived().length > before);
  assert.deepEqual(arrived().map(({ id }) => failed.includes(id)), [...Array(DELIVERIES).fill(true), false], 'each arrives once');
  for (const attempt of attempts) {
    const sent = Number(/t=(\d+)/.exec(attempt.signature)[1]);
    assert.ok(verify(secret, attempt.signature, attempt.body, sent), 'the secret that was shown once signs every request');
  }
  await until('the page says so', async () => {
    await refresh();
    return (await failures.getByText('Delivered', { exact: true }).count()) === DELIVERIES;
  });
  await end();
  receiver.close();
}
