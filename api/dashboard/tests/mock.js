/** The browser before the built page, on the mock API. */
import assert from 'node:assert/strict';
import { listen } from '../mock/server.js';
import { browser, openAt } from './browser.js';

const server = await listen(0);
export const origin = `http://127.0.0.1:${server.address().port}`;

/** Opens a page; `expected` are answers that a flow provokes. */
export const open = (look, expected) => openAt(origin, look, { expected });

/** Resets the mock, or adds a click. */
export async function mock(path, body) {
  const response = await fetch(`${origin}/mock/${path}`, {
    method: 'POST',
    headers: { 'Content-Type': 'application/json' },
    body: JSON.stringify(body ?? {}),
  });
  assert.equal(response.status, 200);
  return response.json();
}

const inWorkspace = (page, path) => `${origin}/app/api/workspaces/${new URL(page.url()).pathname.split('/')[2]}${path}`;

/** Sends a request of the page to the mock, in the open workspace. */
export const ask = async (page, path) => (await page.request.get(inWorkspace(page, path))).json();

/** Changes something of the workspace that is open, as another person does. */
export async function change(page, path, data) {
  const response = await page.request.patch(inWorkspace(page, path), { data, headers: { 'X-Requested-With': 'hopline' } });
  assert.equal(response.status(), 200);
}

/** Deletes something of the workspace that is open. */
export const remove = (page, path) => page.request.delete(inWorkspace(page, path), { headers: { 'X-Requested-With': 'hopline' } });

/** Signs in as the member of the mock. */
export async function signIn(page) {
  await page.goto(`${origin}/app/`);
  await page.getByLabel('Email').fill('ada@example.com');
  await page.getByLabel('Password').fill('correct horse battery');
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Links', exact: true }).waitFor();
}

/** Closes the browser and the mock. */
export async function shut() {
  await browser.close();
  server.close();
  server.closeAllConnections();
}
