import * as fs from 'node:fs';
import { join } from 'node:path';
import { expect, it } from 'vitest';

const root = new URL('../..', import.meta.url).pathname;
const sourcesIn = (folder: string, name: RegExp): string[] =>
  fs.readdirSync(join(root, folder)).flatMap((file) => (name.test(file) ? join(folder, file) : []));

/** Where the errors of maintenance and of listings are made. */
const SOURCES = [
  ...sourcesIn('src/repository/maintenance', /\.ts$/),
  ...sourcesIn('src/repository/content', /^epoch-.*\.ts$/),
  'src/blob/http/listing.ts',
  'src/snapshot/snapshot-manifest.ts',
];

it('each error code of maintenance and of listings is explained to operators', () => {
  const documented = fs.readFileSync(join(root, 'docs/verify-repositories.md'), 'utf8');
  const codes = new Set(
    SOURCES.flatMap((path) => {
      const text = fs.readFileSync(join(root, path), 'utf8');
      const made = text.matchAll(/(?:new CodedError|indexRefusal)\(\s*'([A-Z_]+)'/g);
      return [...made].map(([, code = '']) => code);
    }),
  );
  // A word on the command line was wrong, and the message says all there is to say.
  for (const usage of ['SNAPSHOT_NOT_FOUND', 'BAD_TAG']) codes.delete(usage);
  expect(codes.size).toBeGreaterThan(8);
  expect([...codes].filter((code) => !documented.includes(`\`${code}\``))).toEqual([]);
});
