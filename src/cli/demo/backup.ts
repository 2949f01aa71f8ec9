import { BackupArchive, readTarball } from '../../archive/index.ts';
import { openBucket } from '../../blob/index.ts';
import { bucketLocation, parseBackupStorageLocation } from '../../config/index.ts';
import { STAND_IN, STORAGE_CLASS } from '../../dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DATA_UPLOADS,
  NAMESPACES,
  PODS,
  PVCS,
} from '../../kube/index.ts';
import { followRun, type RunStatus, whenRunning } from './progress.ts';
import { withDemoServer } from './server.ts';
import { makeSample } from './volume.ts';
import { DEV_NAMESPACE, type DevEnvironment } from './dev-environment.ts';
import { printLine } from '../output/terminal.ts';

const LARGE_FILE_BYTES = 128 << 20;
const SMALL_FILES = 300;

interface BackupStatus extends RunStatus {
  readonly progress?: { readonly totalItems?: number; readonly itemsBackedUp?: number };
  readonly backupItemOperationsAttempted?: number;
  readonly backupItemOperationsCompleted?: number;
}

/** `npm run demo -- backup`: a whole backup, from the creation of the Backup to `Completed`. */
export async function demoBackup(
  environment: DevEnvironment,
  directory: string,
  nodes: readonly string[],
): Promise<void> {
  printLine(`2. node-agents start (${nodes.join(', ')}), and the server that makes backups`);
  for (const node of nodes) environment.startAgent(node);
  await withDemoServer(environment, directory, async () => {
    await makeApplication(environment);
    await backUp(environment);
    await show(environment);
  });
}

/** Creates the namespace `app` with a ConfigMap, and a pod whose volume has files. */
export async function makeApplication(environment: DevEnvironment): Promise<void> {
  const { client } = environment;
  printLine('3. an application: a ConfigMap, and a pod that has a volume mounted');
  await client.create(NAMESPACES, { metadata: { name: 'app' } });
  await client.create(CONFIG_MAPS, {
    metadata: { namespace: 'app', name: 'settings' },
    data: { colour: 'blue' },
  });
  await client.create(PVCS, {
    metadata: { name: 'data', namespace: 'app' },
    spec: {
      accessModes: ['ReadWriteOnce'],
      storageClassName: STORAGE_CLASS,
      resources: { requests: { storage: '1Gi' } },
    },
  });
  const volume = await environment.volumeOf('app', 'data');
  await makeSample(volume, { largeFileBytes: LARGE_FILE_BYTES, smallFiles: SMALL_FILES });
  const pod = await client.create(PODS, {
    metadata: { name: 'web-0', namespace: 'app', annotations: { [STAND_IN]: 'true' } },
    spec: {
      nodeName: 'node-1',
      containers: [
        { name: 'web', image: 'application', volumeMounts: [{ name: 'data', mountPath: '/data' }] },
      ],
      volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'data' } }],
    },
  });
  await whenRunning(client, pod);
}

/** Creates the Backup `nightly` and waits for it. Throws unless it is `Completed`. */
export async function backUp({ client }: DevEnvironment): Promise<void> {
  printLine('4. a Backup, as `velero backup create nightly --snapshot-move-data` makes it');
  await client.create(BACKUPS, {
    metadata: { namespace: DEV_NAMESPACE, name: 'nightly' },
    spec: { includedNamespaces: ['app'], snapshotMoveData: true, storageLocation: 'default' },
  });
  await followRun(client, BACKUPS, 'nightly', (status: BackupStatus) => ({
    items: [status.progress?.itemsBackedUp, status.progress?.totalItems],
    operations: [status.backupItemOperationsCompleted, status.backupItemOperationsAttempted],
  }));
}

async function show({ client }: DevEnvironment): Promise<void> {
  printLine('5. what moved its volume, and what is in the bucket now:');
  for (const { spec, status } of await client.list(DATA_UPLOADS, { namespace: DEV_NAMESPACE })) {
    const { sourceNamespace, sourcePVC } = spec;
    printLine(
      `   ${sourceNamespace}/${sourcePVC}: ${status?.phase ?? ''}, ${status?.progress?.bytesDone ?? 0} bytes, snapshot ${status?.snapshotID ?? ''}`,
    );
  }
  const location = await client.get(BACKUP_STORAGE_LOCATIONS, {
    namespace: DEV_NAMESPACE,
    name: 'default',
  });
  const parsed = parseBackupStorageLocation({ ...location, kind: 'BackupStorageLocation' });
  await using bucket = await openBucket(bucketLocation(parsed));
  for await (const key of bucket.list('backups/nightly/')) printLine(`   ${key}`);
  const archive = await new BackupArchive(bucket).open('nightly');
  printLine('   and in its tarball:');
  for await (const { path } of readTarball(archive.read('contents'), 'contents')) {
    if (!path.includes('-preferredversion/')) printLine(`   ${path}`);
  }
}
