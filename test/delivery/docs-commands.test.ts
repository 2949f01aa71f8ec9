import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { isRun, NOT_RUN, readPage } from '../support/docs/follow-page.ts';
import { partsOf } from '../support/docs/page-parts.ts';
import { type ObjectStore, startStore } from '../support/object-stores.ts';
import { backupsPage, restorePage, singleFilePage } from './docs-pages/backing-up.ts';
import { followedPages, LIMIT_MS } from './docs-pages/following.ts';
import { inPlacePage } from './docs-pages/in-place.ts';
import { installPage } from './docs-pages/install.ts';
import { alertsPage, objectLockPage, policiesPage, statusPagePage } from './docs-pages/looking.ts';
import { installLongshore, makeBackup } from './docs-pages/prepared.ts';
import { type OtherStores, readmePage, storagePage } from './docs-pages/storing.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const PORT = 29_600;

/** Pages that another test follows in its own cluster. */
const FOLLOWED_ELSEWHERE: Readonly<Record<string, string>> = {
  'docs/try-kubernetes.md': 'test/cli/demo/try-kubernetes.test.ts',
};

describe('pages with commands', () => {
  const pages = ['README.md', ...fs.globSync('docs/**/*.md', { cwd: ROOT })].sort();
  const statements = pages.flatMap((page) =>
    partsOf(readPage(page)).flatMap((part) =>
      part.kind === 'statement' ? [{ page, text: part.text, isRun: isRun(part) }] : [],
    ),
  );

  it('are followed, each of them', () => {
    const tests = fs.globSync('test/delivery/docs-commands*.test.ts', { cwd: ROOT });
    const followed = tests.flatMap((test) => {
      const text = fs.readFileSync(join(ROOT, test), 'utf8');
      return [...text.matchAll(/it\('([^']+\.md)', \(\) => follow/g)].map(([, page]) => page);
    });
    for (const test of Object.values(FOLLOWED_ELSEWHERE)) {
      expect(fs.existsSync(join(ROOT, test)), test).toBe(true);
    }
    const run = new Set(statements.filter((each) => each.isRun).map(({ page }) => page));
    expect([...followed, ...Object.keys(FOLLOWED_ELSEWHERE)].sort()).toEqual([...run].sort());
    expect(statements.length).toBeGreaterThan(300);
  });

  it('name what is not run, and nothing that is gone', () => {
    for (const beginning of Object.keys(NOT_RUN)) {
      expect(
        statements.some(({ text }) => text.startsWith(beginning)),
        beginning,
      ).toBe(true);
    }
    expect(statements.filter((each) => !each.isRun).length).toBeLessThan(30);
  });

  it('have no command in a fence that is not of a shell', () => {
    // The reference shows the forms of its verbs.
    const others = pages.filter((page) => page !== 'docs/cli.md');
    const wrong = others.filter((page) =>
      /^ *```(?!sh$)\w*\n(?:longshore|velero|kubectl|helm|kopia|bin\/longshore) /m.test(
        readPage(page),
      ),
    );
    expect(wrong).toEqual([]);
  });
});

followedPages('commands of the pages do what is said of them', PORT, (follow, before) => {
  const parts = new AsyncDisposableStack();
  let azure: ObjectStore;
  let google: ObjectStore;
  beforeAll(async () => {
    azure = parts.use(await startStore('azurite'));
    google = parts.use(await startStore('fake-gcs-server'));
  }, LIMIT_MS);
  afterAll(() => parts[Symbol.asyncDispose](), LIMIT_MS);
  const stores = (): OtherStores => ({
    azure: azure.location('cluster-1'),
    google: google.location('cluster-1'),
    azureKey: azure.environment.AZURE_STORAGE_KEY ?? '',
  });

  it('docs/install.md', () => follow(installPage));

  describe('where Longshore is installed', () => {
    before(async (cluster) => {
      cluster.env.AZURE_STORAGE_KEY = azure.environment.AZURE_STORAGE_KEY;
      await installLongshore(cluster);
      await makeBackup(cluster, 'nightly-20261126');
    });

    it('docs/storage.md', () => follow((cluster) => storagePage(cluster, stores())));
    it('docs/restore-in-place.md', () => follow(inPlacePage));
    it('docs/backups.md', () => follow(backupsPage));
    it('docs/restore.md', () => follow(restorePage));
    it('docs/single-file.md', () => follow(singleFilePage));
    it('docs/volume-policies.md', () => follow(policiesPage));
    it('docs/alerts.md', () => follow(alertsPage));
    it('docs/status-page.md', () => follow(statusPagePage));
    it('docs/object-lock.md', () => follow(objectLockPage));
    // This page replaces the installed agents by others.
    it('README.md', () => follow((cluster) => readmePage(cluster, stores())));
  });
});
