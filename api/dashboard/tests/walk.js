/**
 * Walks through the built page in a real browser, on the mock API.
 *
 * `npm run build` first. CHROMIUM names the browser, SHOTS a folder for pictures of every page. Held are: what each
 * flow shows, that axe finds no serious fault, that nothing is wider than its screen, that the Content-Security-Policy
 * is kept to, that nothing asks another host, and that nothing people typed runs.
 */
import { LOOKS, checked } from './browser.js';
import { mock, shut } from './mock.js';
import { safety } from './safety.js';
import { flows } from './flows.js';
import { pages } from './pages.js';
import { reports } from './reports.js';
import { layout } from './layout.js';
import { endpoints } from './endpoints.js';

const only = process.argv[2];
let failed = 0;
const everything = [
  ...Object.keys(LOOKS).map((kind) => [`every page, ${kind}`, () => pages(kind)]),
  ...[flows, reports, endpoints, safety, layout].flatMap((group) => Object.entries(group)),
];
for (const [name, run] of everything) {
  if (only && !name.includes(only)) continue;
  await mock('restart', {});
  try {
    await run();
    process.stdout.write(`ok   ${name}\n`);
  } catch (error) {
    failed += 1;
    process.stdout.write(`FAIL ${name}\n${error.stack}\n`);
  }
}
process.stdout.write(`${checked} pages without a serious fault of axe\n`);
await shut();
process.exit(failed === 0 ? 0 : 1);
