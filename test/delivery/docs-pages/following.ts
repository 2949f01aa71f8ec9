import { afterAll, beforeAll, describe } from 'vitest';
import { DocumentedCluster } from '../../support/docs/documented-cluster.ts';
import { followPage, type PageScript } from '../../support/docs/follow-page.ts';
import { hasStore } from '../../support/object-stores.ts';
import { hasPeers, hasRealApi } from '../../support/real-api.ts';

/** Time limit of a page or its preparation, on a machine with many times its usual load. */
export const LIMIT_MS = 1_200_000;

const hasAll = (): boolean =>
  hasRealApi() &&
  (['minio', 'azurite', 'fake-gcs-server'] as const).every(hasStore) &&
  hasPeers('velero', 'velero-plugin-for-aws', 'helm', 'kopia', 'fwd');

/** Follows one page; called in a test. */
export type Follow = (script: (cluster: DocumentedCluster) => PageScript) => Promise<void>;

/**
 * Follows pages one after the other in their own cluster. The cluster has the application of all
 * pages, without Longshore or Velero. `name`: the group of tests. `pages` declares their tests.
 * Functions passed to `before` run when the cluster is ready.
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
