import { afterAll, beforeAll, describe, it } from 'vitest';
import { DocumentedCluster } from '../support/docs/documented-cluster.ts';
import { followPage, type PageScript } from '../support/docs/follow-page.ts';
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

const PORT = 29_600;
const hasAll = (): boolean =>
  hasRealApi() &&
  (['minio', 'azurite', 'fake-gcs-server'] as const).every(hasStore) &&
  hasPeers('velero', 'velero-plugin-for-aws', 'helm', 'kopia', 'fwd');

describe.skipIf(!hasAll())(
  'commands of the pages do what is said of them',
  { timeout: 300_000 },
  () => {
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
    });
    afterAll(() => parts[Symbol.asyncDispose]());

    const follow = async (script: PageScript): Promise<void> => {
      await using shell = cluster.shell(script.page.replaceAll('/', '-'));
      await followPage(script, shell).catch(async (e: unknown) => {
        console.log(
          await cluster
            .sh(
              'kubectl -n velero get bsl default -o jsonpath={.status}; kubectl -n velero logs -l name=longshore-server --tail 300 | grep -i unavail | cut -c1-500 || true; kubectl -n velero logs longshore-test || true',
            )
            .catch(String),
        );
        throw e;
      });
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
      });

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
      });

      it('docs/with-velero.md', () => follow(withVeleroPage(cluster)));
      it('docs/data-movers.md', () => follow(dataMoversPage(cluster)));
      it('docs/operating.md', () => follow(operatingPage(cluster)));
      it('docs/switch-from-velero.md', () => follow(switchPage(cluster)));
    });
  },
);
