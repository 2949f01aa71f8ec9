import { afterAll, beforeAll, describe } from 'vitest';
import { DocumentedCluster } from '../../support/docs/documented-cluster.ts';
import { followPage, type PageScript } from '../../support/docs/follow-page.ts';
import { hasStore } from '../../support/object-stores.ts';
import { hasPeers, hasRealApi } from '../../support/real-api.ts';

/** For a page, or what is made before it, on a machine with many times its usual load. */
export const LIMIT_MS = 1_200_000;

const hasAll = (): boolean =>
  hasRealApi() &&
  (['minio', 'azurite', 'fake-gcs-server'] as const).every(hasStore) &&
  hasPeers('velero', 'velero-plugin-for-aws', 'helm', 'kopia', 'fwd');

/** Follows one page; called in a test. */
export type Follow = (script: (cluster: DocumentedCluster) => PageScript) => Promise<void>;

/**
 * Pages that are followed one after the other in a cluster of their own, with the application of
 * all pages and nothing of Longshore or Velero. `name`: of the group of tests. `pages` declares
 * their tests; what it hands to `before` runs when the cluster is there.
 */
export function followedPages(
  name: string,
  port: number,
  pages: (
    follow: Follow,
    before: (prepare: (cluster: DocumentedCluster) => Promise<void>) => void,
  ) => void,
): void {
  describe.skipIf(!hasAll())(name, { timeout: LIMIT_MS }, () => {
    const parts = new AsyncDisposableStack();
    let cluster: DocumentedCluster;
    beforeAll(async () => {
      cluster = parts.use(await DocumentedCluster.start(port));
      await cluster.makeShop();
    }, LIMIT_MS);
    afterAll(() => parts[Symbol.asyncDispose](), LIMIT_MS);
    pages(
      async (scriptOf) => {
        const script = scriptOf(cluster);
        await using shell = cluster.shell(script.page.replaceAll('/', '-'));
        await followPage(script, shell);
      },
      (prepare) => beforeAll(() => prepare(cluster), LIMIT_MS),
    );
  });
}
