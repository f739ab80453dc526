import { gzipSync } from 'node:zlib';
import { readFileSync } from 'node:fs';
import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

/** What a first visit may weigh, compressed: the page, its script, its style and its font. */
const FIRST_PAGE = 150_000;

/** Fails a build whose first page grew too heavy, and prints what it weighs. */
function weighed() {
  return {
    name: 'weighed',
    apply: 'build',
    generateBundle(_, bundle) {
      const size = ({ fileName, code, source }) =>
        fileName.endsWith('.woff2') ? source.length : gzipSync(code ?? source).length;
      const entry = Object.values(bundle).find((file) => file.isEntry);
      const latin = Object.keys(bundle).filter((name) => /inter-latin-wght.*\.woff2$/.test(name));
      const first = [entry.fileName, ...entry.imports, ...(entry.viteMetadata?.importedCss ?? []), ...latin];
      const total = first.reduce((sum, name) => sum + size(bundle[name]), 0);
      this.info(`first page: ${(total / 1000).toFixed(1)} kB compressed in ${first.length} files`);
      if (total > FIRST_PAGE) this.error(`the first page is heavier than ${FIRST_PAGE / 1000} kB`);
    },
  };
}

/** Puts the licence of the font beside those of the bundled packages: that a font is used, Vite cannot see. */
function fontLicence() {
  return {
    name: 'font-licence',
    apply: 'build',
    generateBundle() {
      const source = readFileSync('node_modules/@fontsource-variable/inter/LICENSE', 'utf8');
      this.emitFile({ type: 'asset', fileName: 'licences/inter.txt', source });
    },
  };
}

export default defineConfig({
  base: '/app/',
  plugins: [svelte(), weighed(), fontLicence()],
  build: {
    target: 'es2022',
    // light-dark() stays as it is written.
    cssTarget: ['chrome123', 'firefox120', 'safari17.5'],
    // A data: URL of a font or a script would need a hole in the Content-Security-Policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    license: { fileName: 'licences/packages.md' },
  },
  server: { proxy: { '/app/api': 'http://127.0.0.1:4100' } },
  test: { include: ['tests/unit/**/*.test.ts'] },
});
