/**
 * Goes through the dashboard on a running stack: `./dev up --detach`, then `npm run e2e`.
 *
 * `npm run e2e -- words` takes the flows whose names have the words. CHROMIUM names the browser, SHOTS a folder for
 * pictures. Each run signs in as somebody new, in a separate workspace. Checked are what each flow shows and, on every
 * page, that axe finds no serious fault, that nothing is wider than its screen, that the Content-Security-Policy is kept
 * to, that no other host is asked, and that nothing which people or visitors wrote runs.
 */
import { join } from 'node:path';
import { LOOKS, browser, checked } from '../tests/browser.js';
import { flows, first, last, long } from './flows.js';
import { pages } from './pages.js';

const only = process.argv[2];
let failed = 0;

async function test(name, run) {
  const began = Date.now();
  try {
    await run();
    process.stdout.write(`ok   ${name} (${((Date.now() - began) / 1000).toFixed(1)} s)\n`);
  } catch (error) {
    failed += 1;
    process.stdout.write(`FAIL ${name}\n${error.stack}\n`);
    await picture();
  }
}

/** What was on the screens when a flow failed. */
async function picture() {
  if (!process.env.SHOTS) return;
  const open = browser.contexts().flatMap((context) => context.pages());
  for (const [at, page] of open.entries()) await page.screenshot({ path: join(process.env.SHOTS, `failed-${failed}-${at}.png`) });
}

const wanted = ([name]) => !only || name.includes(only);
const all = (group) => Object.entries(group).filter(wanted);

// Nothing can be tried by somebody who is not in.
for (const [name, run] of Object.entries(first)) await test(name, run);
if (failed === 0) {
  // Flows that take minutes, because of retries, run beside the others.
  const waiting = Promise.all(all(long).map(([name, run]) => test(name, run)));
  for (const [name, run] of all(flows)) await test(name, run);
  for (const kind of Object.keys(LOOKS)) {
    const name = `every page, ${kind}`;
    if (wanted([name])) await test(name, () => pages(kind));
  }
  await waiting;
  for (const [name, run] of all(last)) await test(name, run);
}
process.stdout.write(`${checked} pages without a serious fault of axe\n`);
await browser.close();
process.exit(failed === 0 ? 0 : 1);
