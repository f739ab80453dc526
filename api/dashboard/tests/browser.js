/** A real browser, whose every complaint fails what it is used for. */
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { join } from 'node:path';
import axe from 'axe-core';
import { chromium } from 'playwright-core';

const shots = process.env.SHOTS;
if (shots) mkdirSync(shots, { recursive: true });

export const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});

export const LOOKS = {
  light: { colorScheme: 'light', viewport: { width: 1360, height: 900 } },
  dark: { colorScheme: 'dark', viewport: { width: 1360, height: 900 } },
  phone: { colorScheme: 'light', viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 },
  'phone-dark': { colorScheme: 'dark', viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 },
};

/** Screens whose room is counted. */
const SIZES = {
  laptop: { viewport: { width: 1280, height: 800 } },
  narrow: { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 },
};

/**
 * Opens a page of the server at `origin`.
 *
 * `end` fails when a script or the Content-Security-Policy complained, when something typed ran, or when another host
 * was asked. `expected` are the statuses that a flow provokes; `state` is what an earlier page has kept, its cookie.
 */
export async function openAt(origin, look, { expected = [], state } = {}) {
  const context = await browser.newContext({
    ...(LOOKS[look] ?? SIZES[look]),
    locale: 'en-US',
    timezoneId: 'Europe/Berlin',
    permissions: ['clipboard-read', 'clipboard-write'],
    storageState: state,
  });
  const page = await context.newPage();
  page.setDefaultTimeout(20_000);
  const complaints = [];
  page.on('console', (message) => {
    if (!['error', 'warning'].includes(message.type())) return;
    if (expected.some((status) => message.text().includes(`status of ${status}`))) return;
    complaints.push(message.text());
  });
  page.on('pageerror', (error) => complaints.push(error.stack));
  page.on('dialog', async (dialog) => {
    // Only the browser's own question before a page is left is no script's.
    if (dialog.type() === 'beforeunload') return dialog.accept();
    complaints.push(`something typed ran: ${dialog.message()}`);
    await dialog.dismiss();
  });
  page.on('request', (request) => {
    if (!request.url().startsWith(`${origin}/`) && !request.url().startsWith('blob:')) complaints.push(`asked ${request.url()}`);
  });
  return {
    page,
    async end() {
      assert.deepEqual(complaints, []);
      await context.close();
    },
  };
}

/** Everything has come, and nothing is loading any more. */
export const settled = (page) =>
  page.waitForFunction(() => !document.querySelector('.bone, [aria-busy=true]') && document.fonts.status === 'loaded');

/** How many pages axe has looked at. */
export let checked = 0;
/** Takes a picture, and looks for what is too wide and for what axe finds serious. */
export async function look(page, name, { full = true } = {}) {
  await settled(page);
  if (shots) await page.screenshot({ path: join(shots, `${name}.png`), fullPage: full });
  // Against the screen and not the window: a phone's grows with what is too wide for it.
  const { width } = page.viewportSize();
  const wide = await page.evaluate(
    (width) => (document.documentElement.scrollWidth <= width ? [] : [...document.body.querySelectorAll('*')]
      .filter((element) => element.getBoundingClientRect().right > width + 1)
      .map((element) => `${element.tagName}.${element.className} ${Math.round(element.getBoundingClientRect().right)}`)),
    width,
  );
  assert.deepEqual(wide.slice(0, 12), [], `${name} is wider than its screen`);
  await page.evaluate(axe.source);
  const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
  const bad = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  assert.deepEqual(
    bad.map(({ id, nodes }) => [id, nodes.map(({ html }) => html.slice(0, 160))]),
    [],
    `axe, ${name}`,
  );
  checked += 1;
}

/** Goes to an area by the navigation, which on a phone is a drawer. */
export const nav = async (page, text) => {
  const menu = page.getByRole('button', { name: 'Navigation', exact: true });
  if (await menu.isVisible()) await menu.click();
  await page.getByRole('navigation', { name: 'Main' }).getByRole('link', { name: text }).click();
  // A drawer has moved out of sight.
  await page.waitForFunction(() => {
    const box = document.querySelector('.side')?.getBoundingClientRect();
    return !box || (box.left === 0 ? innerWidth > 860 : box.right <= 0);
  });
};
