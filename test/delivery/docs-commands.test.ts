import * as fs from 'node:fs';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { DocumentedCluster } from '../support/docs/documented-cluster.ts';
import {
  followPage,
  isRun,
  NOT_RUN,
  type PageScript,
  readPage,
} from '../support/docs/follow-page.ts';
import { partsOf } from '../support/docs/page-parts.ts';
import { hasStore, type ObjectStore, startStore } from '../support/object-stores.ts';
import { hasPeers, hasRealApi } from '../support/real-api.ts';
import {
  backupsPage,
  dataMoversPage,
  restorePage,
  singleFilePage,
} from './docs-pages/backing-up.ts';
import { commandLinePage } from './docs-pages/command-line.ts';
import { inPlacePage } from './docs-pages/in-place.ts';
import { installPage } from './docs-pages/install.ts';
import { alertsPage, objectLockPage, policiesPage, statusPagePage } from './docs-pages/looking.ts';
import { installLongshore, makeBackup, uninstallLongshore } from './docs-pages/prepared.ts';
import { type OtherStores, readmePage, storagePage } from './docs-pages/storing.ts';
import { installVelero, operatingPage, switchPage, withVeleroPage } from './docs-pages/velero.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const PORT = 29_600;
const hasAll = (): boolean =>
  hasRealApi() &&
  (['minio', 'azurite', 'fake-gcs-server'] as const).every(hasStore) &&
  hasPeers('velero', 'velero-plugin-for-aws', 'helm', 'kopia', 'fwd');

/** Another test follows it, with a cluster of its own. */
const FOLLOWED_ELSEWHERE: Readonly<Record<string, string>> = {
  'docs/try-kubernetes.md': 'test/cli/try-kubernetes.test.ts',
};

describe('pages with commands', () => {
  const pages = ['README.md', ...fs.globSync('docs/**/*.md', { cwd: ROOT })].sort();
  const statements = pages.flatMap((page) =>
    partsOf(readPage(page)).flatMap((part) =>
      part.kind === 'statement' ? [{ page, text: part.text, isRun: isRun(part) }] : [],
    ),
  );

  it('are followed, each of them', () => {
    const own = fs.readFileSync(new URL(import.meta.url), 'utf8');
    const followed = [...own.matchAll(/it\('([^']+\.md)', \(\) => follow/g)].map(
      ([, page]) => page,
    );
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

/** All pages together take some ten minutes: they are a part of `npm run soak`. */
const describeInSoak =
  process.env.SOAK === '1' ? describe.skipIf(!hasAll()) : (...unused: unknown[]) => unused;

/** What a page or a set-up takes on a machine with many times its usual load. */
const LIMIT_MS = 600_000;

describeInSoak('commands of the pages do what is said of them', { timeout: LIMIT_MS }, () => {
  const parts = new AsyncDisposableStack();
  let cluster: DocumentedCluster;
  let azure: ObjectStore;
  let google: ObjectStore;
  beforeAll(async () => {
    azure = parts.use(await startStore('azurite'));
    google = parts.use(await startStore('fake-gcs-server'));
    cluster = parts.use(await DocumentedCluster.start(PORT));
    await cluster.makeShop();
    cluster.env.AZURE_STORAGE_KEY = azure.environment.AZURE_STORAGE_KEY;
  }, LIMIT_MS);
  afterAll(() => parts[Symbol.asyncDispose](), LIMIT_MS);

  const follow = async (script: PageScript): Promise<void> => {
    await using shell = cluster.shell(script.page.replaceAll('/', '-'));
    await followPage(script, shell);
  };
  const stores = (): OtherStores => ({
    azure: azure.location('cluster-1'),
    google: google.location('cluster-1'),
    azureKey: azure.environment.AZURE_STORAGE_KEY ?? '',
  });

  it('docs/install.md', () => follow(installPage(cluster)));

  describe('where Longshore is installed', () => {
    beforeAll(async () => {
      await installLongshore(cluster);
      await makeBackup(cluster, 'nightly-20261126');
    }, LIMIT_MS);

    it('docs/storage.md', () => follow(storagePage(cluster, stores())));
    it('README.md', () => follow(readmePage(cluster, stores())));
    it('docs/restore-in-place.md', () => follow(inPlacePage(cluster)));
    it('docs/backups.md', () => follow(backupsPage(cluster)));
    it('docs/restore.md', () => follow(restorePage(cluster)));
    it('docs/single-file.md', () => follow(singleFilePage(cluster)));
    it('docs/volume-policies.md', () => follow(policiesPage(cluster)));
    it('docs/alerts.md', () => follow(alertsPage(cluster)));
    it('docs/status-page.md', () => follow(statusPagePage()));
    it('docs/object-lock.md', () => follow(objectLockPage(cluster)));
    it('docs/cli.md', () => follow(commandLinePage(cluster)));
  });

  describe('where Velero runs', () => {
    beforeAll(async () => {
      await uninstallLongshore(cluster);
      await installVelero(cluster);
    }, LIMIT_MS);

    it('docs/with-velero.md', () => follow(withVeleroPage(cluster)));
    it('docs/data-movers.md', () => follow(dataMoversPage(cluster)));
    it('docs/operating.md', () => follow(operatingPage(cluster)));
    it('docs/switch-from-velero.md', () => follow(switchPage(cluster)));
  });
});
