import { execFileSync } from 'node:child_process';
import * as fs from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { formatBytes, lookup, silentLogger } from '../../base/index.ts';
import { STAND_IN, STORAGE_CLASS } from '../../dev/index.ts';
import {
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type DataDownload,
  type DataUpload,
  isMovementOver,
  type KubeClient,
  NAMESPACES,
  type Pod,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  type PodVolumeBackup,
  type PodVolumeRestore,
  PVCS,
  type Resource,
  RESTORE_NAME,
  VOLUME_SNAPSHOTS,
  waitFor,
} from '../../kube/index.ts';
import { demoBackup } from './backup.ts';
import { WAIT_MS, whenRunning } from './progress.ts';
import { demoRestore } from './restore.ts';
import { makeSample } from './volume.ts';
import { DEV_NAMESPACE, DEV_PASSWORD, DevEnvironment } from './dev-environment.ts';
import { printLine } from '../output/terminal.ts';

/**
 * `npm run demo [-- fs-backup|backup|restore]`: moves a volume of a cluster to a repository and
 * back. Needs npm only, and less than a minute. `fs-backup` reads the volume in its pod, without a
 * snapshot. `backup` shows a whole backup by our server, and `restore` restores a deleted
 * namespace.
 */
const LARGE_FILE_BYTES = 256 << 20;
const SMALL_FILES = 1000;
const NODES = ['node-1', 'node-2'];
const root = new URL('../../..', import.meta.url).pathname;

async function createClaim(
  client: KubeClient,
  namespace: string,
  isTarget: boolean,
): Promise<void> {
  // Velero's plugin leaves a PVC for a restore in this form: no provisioner creates a volume for
  // it.
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

type Moved = DataUpload | DataDownload | PodVolumeBackup | PodVolumeRestore;
type Status = NonNullable<DataUpload['status']>;

const COLUMNS = [14, 12, 12, 12, 8];
const row = (cells: readonly string[]): string =>
  cells
    .map((cell, i) => cell.padEnd(COLUMNS[i] ?? 0))
    .join(' ')
    .trimEnd();

/** Prints changes like `kubectl get -w`. Resolves with the CR at its final phase. */
async function follow<T extends Moved>(
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
      const { phase = '', progress, node = '' } = (now?.status ?? {}) as Status;
      const { bytesDone, totalBytes } = progress ?? {};
      const text = row([name, phase, String(bytesDone ?? ''), String(totalBytes ?? ''), node]);
      if (text !== shown) printLine(text);
      shown = text;
      return isMovementOver(phase) ? now : undefined;
    },
    { timeoutMs: WAIT_MS },
  );
}

function assertCompleted({ status, kind }: Moved): void {
  if (status?.phase === 'Completed') return;
  throw new Error(
    `the ${kind ?? 'operation'} ended as ${status?.phase ?? ''}: ${status?.message ?? ''}`,
  );
}

async function demo(environment: DevEnvironment): Promise<void> {
  const { client } = environment;
  printLine(`2. two node-agents start: ${NODES.join(', ')}`);
  for (const node of NODES) environment.startAgent(node);
  for (const name of ['app', 'app-restored'])
    await client.create(NAMESPACES, { metadata: { name } });

  printLine('3. an application has a volume, and a CSI snapshot of it is taken');
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

  printLine('5. a DataDownload: its volume is bound to a PVC that is waiting for it');
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

  await compare(environment, source, uploaded);
}

async function compare(
  environment: DevEnvironment,
  source: string,
  { status }: DataUpload | PodVolumeBackup,
): Promise<void> {
  printLine('6. comparing the two volumes');
  const target = await environment.volumeOf('app-restored', 'data');
  execFileSync('diff', ['-r', '--no-dereference', source, target]);
  const bytes = formatBytes(status?.progress?.bytesDone ?? 0);
  printLine(`   ${bytes} in ${SMALL_FILES + 1} files: every byte is the same`);
}

/**
 * The Restore that Velero's server would create, with the UID that it passes to the waiting pod.
 */
const RESTORE = { name: 'restore-1', uid: '5f0c2b52-9c0f-4e3e-8a65-0e5d6f1c2a10' };

/** A pod of an application with the volume `data`. `waits`: in the form of Velero's restores. */
function createPod(
  client: KubeClient,
  namespace: string,
  { node, waits }: { node: string; waits: boolean },
): Promise<Pod> {
  const container = (mountPath: string): object => ({
    image: 'application',
    volumeMounts: [{ name: 'data', mountPath }],
  });
  return client.create(PODS, {
    metadata: {
      name: 'web-0',
      namespace,
      annotations: { [STAND_IN]: 'true' },
      ...(waits && { labels: { [RESTORE_NAME]: RESTORE.name } }),
    },
    spec: {
      nodeName: node,
      containers: [{ name: 'web', ...container('/data') }],
      ...(waits && {
        initContainers: [
          { name: 'restore-wait', args: [RESTORE.uid], ...container('/restores/data') },
        ],
      }),
      volumes: [{ name: 'data', persistentVolumeClaim: { claimName: 'data' } }],
    },
  });
}

async function fsBackup(environment: DevEnvironment): Promise<void> {
  const { client } = environment;
  printLine(`2. two node-agents start: ${NODES.join(', ')}`);
  for (const node of NODES) environment.startAgent(node);
  for (const name of ['app', 'app-restored'])
    await client.create(NAMESPACES, { metadata: { name } });

  printLine('3. a pod of an application runs on node-1, and has a volume mounted');
  await createClaim(client, 'app', false);
  const source = await environment.volumeOf('app', 'data');
  await makeSample(source, { largeFileBytes: LARGE_FILE_BYTES, smallFiles: SMALL_FILES });
  const pod = await whenRunning(
    client,
    await createPod(client, 'app', { node: 'node-1', waits: false }),
  );

  printLine(
    '4. a PodVolumeBackup, as Velero creates it: the agent of node-1 claims it, a data mover reads the volume where it is mounted',
  );
  const refOf = ({
    metadata: { namespace = '', name, uid },
  }: Pod): PodVolumeBackup['spec']['pod'] => ({ kind: 'Pod', namespace, name, uid });
  const common = {
    volume: 'data',
    backupStorageLocation: 'default',
    repoIdentifier: '',
    uploaderType: 'kopia' as const,
  };
  await client.create(POD_VOLUME_BACKUPS, {
    metadata: {
      name: 'backup-1',
      namespace: DEV_NAMESPACE,
      annotations: { 'velero.io/pvc-name': 'data' },
    },
    spec: { ...common, node: 'node-1', pod: refOf(pod) },
  });
  const backup = await follow(client, POD_VOLUME_BACKUPS, 'backup-1');
  assertCompleted(backup);

  printLine(
    '5. a PodVolumeRestore: a pod on node-2 waits for its data, and begins when it is there',
  );
  await createClaim(client, 'app-restored', false);
  await environment.volumeOf('app-restored', 'data');
  const waiting = await createPod(client, 'app-restored', { node: 'node-2', waits: true });
  await client.create(POD_VOLUME_RESTORES, {
    metadata: {
      name: 'restore-1',
      namespace: DEV_NAMESPACE,
      ownerReferences: [
        { apiVersion: 'velero.io/v1', kind: 'Restore', ...RESTORE, controller: true },
      ],
    },
    spec: {
      ...common,
      snapshotID: backup.status?.snapshotID ?? '',
      sourceNamespace: 'app',
      pod: refOf(waiting),
    },
  });
  assertCompleted(await follow(client, POD_VOLUME_RESTORES, 'restore-1'));
  await whenRunning(client, waiting);
  await compare(environment, source, backup);
}

const DEMOS: Readonly<Record<string, (environment: DevEnvironment) => Promise<void>>> = {
  snapshot: demo,
  'fs-backup': fsBackup,
  backup: async (environment) => demoBackup(environment, directory, NODES),
  restore: async (environment) => demoRestore(environment, directory, NODES),
};
const [which = 'snapshot', ...others] = process.argv.slice(2);
const chosen = lookup(DEMOS, which);
if (!chosen || others.length > 0) {
  printLine(`usage: npm run demo [-- ${Object.keys(DEMOS).join('|')}]`);
  process.exit(2);
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
  await chosen(environment);
  repository = join(environment.cluster.storageDirectory, 'kopia', 'app');
  await fs.access(repository);
}
printLine('');
printLine(
  'Look into the repository, start a cluster that stays up (bin/longshore dev up), or remove everything:',
);
printLine(`  LONGSHORE_PASSWORD=${DEV_PASSWORD} bin/longshore snapshot list --repo ${repository}`);
printLine(`  rm -r ${directory}`);
