import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { formatBytes, silentLogger } from '../base/index.ts';
import { STORAGE_CLASS } from '../dev/index.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  type DataUpload,
  type KubeClient,
  NAMESPACES,
  PVCS,
  type Resource,
  VOLUME_SNAPSHOTS,
  waitFor,
} from '../kube/index.ts';
import { makeSample } from './demo-volume.ts';
import { DEV_NAMESPACE, DEV_PASSWORD, DevEnvironment } from './dev-environment.ts';
import { printLine } from './terminal.ts';

/** `npm run demo`: a volume of a cluster into a repository and back, with npm alone and in well under a minute. */
const LARGE_FILE_BYTES = 256 << 20;
const SMALL_FILES = 1000;
const NODES = ['node-1', 'node-2'];
const WAIT_MS = 60_000;
const root = new URL('../..', import.meta.url).pathname;

async function createClaim(
  client: KubeClient,
  namespace: string,
  isTarget: boolean,
): Promise<void> {
  // As Velero's plugin leaves a PVC that is to be restored: no provisioner makes a volume for it.
  const label = { 'velero.io/dynamic-pv-restore': `${namespace}.data.x` };
  await client.create(PVCS, {
    metadata: { name: 'data', namespace },
    spec: {
      accessModes: ['ReadWriteOnce'],
      storageClassName: STORAGE_CLASS,
      resources: { requests: { storage: '1Gi' } },
      ...(isTarget && { selector: { matchLabels: label } }),
    },
  });
}

const COLUMNS = [14, 12, 12, 12, 8];
const row = (cells: readonly string[]): string =>
  cells
    .map((cell, i) => cell.padEnd(COLUMNS[i] ?? 0))
    .join(' ')
    .trimEnd();

/** One line for each change that `kubectl get -w` would show; resolves with the CR when its phase is final. */
async function follow<T extends DataUpload | DataDownload>(
  client: KubeClient,
  resource: Resource<T>,
  name: string,
): Promise<T> {
  printLine(row(['NAME', 'STATUS', 'BYTES DONE', 'TOTAL BYTES', 'NODE']));
  let shown = '';
  return waitFor(
    client,
    resource,
    { namespace: DEV_NAMESPACE, name },
    (now) => {
      const { phase = '', progress, node = '' } = now?.status ?? {};
      const { bytesDone, totalBytes } = progress ?? {};
      const text = row([name, phase, String(bytesDone ?? ''), String(totalBytes ?? ''), node]);
      if (text !== shown) printLine(text);
      shown = text;
      return ['Completed', 'Failed', 'Canceled'].includes(phase) ? now : undefined;
    },
    { timeoutMs: WAIT_MS },
  );
}

function assertCompleted({ status, kind }: DataUpload | DataDownload): void {
  if (status?.phase === 'Completed') return;
  throw new Error(
    `the ${kind ?? 'operation'} ended ${status?.phase ?? ''}: ${status?.message ?? ''}`,
  );
}

async function demo(environment: DevEnvironment): Promise<void> {
  const { client } = environment;
  printLine(`2. two node-agents start: ${NODES.join(', ')}`);
  for (const node of NODES) environment.startAgent(node);
  for (const name of ['app', 'app-restored'])
    await client.create(NAMESPACES, { metadata: { name } });

  printLine('3. an application has a volume; a CSI snapshot of it is made');
  await createClaim(client, 'app', false);
  const source = await environment.volumeOf('app', 'data');
  await makeSample(source, { largeFileBytes: LARGE_FILE_BYTES, smallFiles: SMALL_FILES });
  const ref = { namespace: 'app', name: 'snapshot-1' };
  await client.create(VOLUME_SNAPSHOTS, {
    metadata: ref,
    spec: { source: { persistentVolumeClaimName: 'data' } },
  });

  printLine(
    '4. a DataUpload, as Velero creates it: one agent claims it, a data mover runs beside the volume',
  );
  const upload = { namespace: DEV_NAMESPACE, name: 'backup-1' };
  await client.create(DATA_UPLOADS, {
    metadata: upload,
    spec: {
      snapshotType: 'CSI',
      csiSnapshot: { volumeSnapshot: ref.name, storageClass: STORAGE_CLASS, snapshotClass: '' },
      sourcePVC: 'data',
      sourceNamespace: 'app',
      backupStorageLocation: 'default',
      operationTimeout: '10m0s',
    },
  });
  const uploaded = await follow(client, DATA_UPLOADS, upload.name);
  assertCompleted(uploaded);

  printLine('5. a DataDownload: its volume becomes the one of a PVC that waits for it');
  await createClaim(client, 'app-restored', true);
  const download = { namespace: DEV_NAMESPACE, name: 'restore-1' };
  await client.create(DATA_DOWNLOADS, {
    metadata: download,
    spec: {
      targetVolume: { namespace: 'app-restored', pvc: 'data', pv: '' },
      snapshotID: uploaded.status?.snapshotID ?? '',
      sourceNamespace: 'app',
      backupStorageLocation: 'default',
      operationTimeout: '10m0s',
    },
  });
  assertCompleted(await follow(client, DATA_DOWNLOADS, download.name));

  printLine('6. comparing the two volumes');
  const target = await environment.volumeOf('app-restored', 'data');
  execFileSync('diff', ['-r', '--no-dereference', source, target]);
  const bytes = formatBytes(uploaded.status?.progress?.bytesDone ?? 0);
  printLine(`   ${bytes} in ${SMALL_FILES + 1} files: every byte is the same`);
}

const directory = await fs.mkdtemp(join(tmpdir(), 'longshore-demo-'));
printLine(
  '1. a Kubernetes API server in this process, and a CSI driver whose volumes are directories',
);
let repository = '';
{
  await using environment = await DevEnvironment.start({
    directory,
    nodes: NODES,
    command: [join(root, 'bin/longshore')],
    environment: { HOME: join(directory, 'home'), PATH: '/usr/bin:/bin' },
    logger: silentLogger,
  });
  await demo(environment);
  repository = join(environment.cluster.storageDirectory, 'kopia', 'app');
  await fs.access(repository);
}
printLine('');
printLine(
  'Look into the repository, start such a cluster to stay (bin/longshore dev up), or remove it all:',
);
printLine(`  LONGSHORE_PASSWORD=${DEV_PASSWORD} bin/longshore snapshot list --repo ${repository}`);
printLine(`  rm -r ${directory}`);
