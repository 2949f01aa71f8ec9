import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { BackupArchive, readTarball } from '../archive/index.ts';
import { silentLogger } from '../base/index.ts';
import { openBucket } from '../blob/index.ts';
import { STAND_IN, STORAGE_CLASS } from '../dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CONFIG_MAPS,
  DATA_UPLOADS,
  type KubeObject,
  NAMESPACES,
  type Pod,
  PODS,
  PVCS,
  ReadsAhead,
  waitFor,
} from '../kube/index.ts';
import { SharedBackups } from '../server/index.ts';
import { bucketLocation, parseBackupStorageLocation } from '../config/index.ts';
import { makeSample } from './demo-volume.ts';
import { DEV_NAMESPACE, type DevEnvironment } from './dev-environment.ts';
import { backupSettingsOf, openBackups } from './server-backups.ts';
import { ServerPlugins } from './server-plugins.ts';
import { printLine } from './terminal.ts';

const WAIT_MS = 60_000;
const LARGE_FILE_BYTES = 128 << 20;
const SMALL_FILES = 300;
const FINAL = /^(Completed|PartiallyFailed|Failed|FailedValidation)$/;

interface BackupStatus {
  readonly phase?: string;
  readonly progress?: { readonly totalItems?: number; readonly itemsBackedUp?: number };
  readonly backupItemOperationsAttempted?: number;
  readonly backupItemOperationsCompleted?: number;
  readonly validationErrors?: readonly string[];
  readonly failureReason?: string;
}

/** `npm run demo -- backup`: a whole backup, from the Backup that `velero backup create` makes to `Completed`. */
export async function demoBackup(
  environment: DevEnvironment,
  directory: string,
  nodes: readonly string[],
): Promise<void> {
  const { client } = environment;
  printLine(`2. node-agents start (${nodes.join(', ')}), and the server that makes backups`);
  for (const node of nodes) environment.startAgent(node);
  const scratch = join(directory, 'server');
  await mkdir(scratch);
  const reads = new ReadsAhead(client);
  const plugins = ServerPlugins.begin({
    ...{
      client: reads.client,
      logger: silentLogger,
      folder: join(directory, 'plugins'),
      features: 'EnableCSI',
    },
    ...{ makesBackups: true, flags: [] },
  });
  const common = { client, reads, logger: silentLogger, namespace: DEV_NAMESPACE, host: 'demo' };
  const { controllers } = await openBackups(
    {
      ...{ ...common, registry: new Registry(), directory: scratch, plugins },
      backups: new SharedBackups(common),
    },
    { features: 'EnableCSI' },
    {
      ...backupSettingsOf({
        ...{ concurrentBackups: '1', itemBlockWorkerCount: '1' },
        ...{ itemOperationSyncFrequency: '1s', defaultBackupTtl: '720h0m0s' },
        ...{ defaultItemOperationTimeout: '4h0m0s', fsBackupTimeout: '4h0m0s' },
        ...{ resourceTimeout: '10m0s', volumeGroupSnapshotLabelKey: 'velero.io/volume-group' },
        ...{ logLevel: 'info', logFormat: 'text', features: 'EnableCSI' },
      }),
      isDeletionHere: true,
    },
    () => Promise.resolve(true),
  );
  const abort = new AbortController();
  const running = Promise.all(
    Object.values(controllers).map((each) => each.run(abort.signal, () => undefined)),
  );
  try {
    await application(environment);
    printLine('4. a Backup, as `velero backup create nightly --snapshot-move-data` makes it');
    await client.create(BACKUPS, {
      metadata: { namespace: DEV_NAMESPACE, name: 'nightly' },
      spec: { includedNamespaces: ['app'], snapshotMoveData: true, storageLocation: 'default' },
    } as never);
    await follow(environment);
    await show(environment);
  } finally {
    abort.abort();
    await running;
    await plugins.close();
  }
}

async function application(environment: DevEnvironment): Promise<void> {
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
  const isRunning = (now: Pod | undefined): true | undefined =>
    now?.status?.phase === 'Running' ? true : undefined;
  await waitFor(client, PODS, pod.metadata, isRunning, { timeoutMs: WAIT_MS });
}

async function follow({ client }: DevEnvironment): Promise<void> {
  const row = (...cells: string[]): string =>
    cells
      .map((cell, i) => cell.padEnd([30, 12, 12][i] ?? 0))
      .join('')
      .trimEnd();
  printLine(row('STATUS', 'ITEMS', 'OPERATIONS'));
  let shown = '';
  const ref = { namespace: DEV_NAMESPACE, name: 'nightly' };
  const look = (now: KubeObject | undefined): BackupStatus | undefined => {
    const status = (now as { status?: BackupStatus } | undefined)?.status ?? {};
    const { phase = 'New', progress, backupItemOperationsAttempted: begun = 0 } = status;
    const { backupItemOperationsCompleted: done = 0 } = status;
    const items =
      progress?.totalItems === undefined
        ? ''
        : `${progress.itemsBackedUp ?? 0}/${progress.totalItems}`;
    const text = row(phase, items, begun === 0 ? '' : `${done}/${begun}`);
    if (text !== shown) printLine(text);
    shown = text;
    return FINAL.test(phase) ? status : undefined;
  };
  const { phase, validationErrors, failureReason } = await waitFor(client, BACKUPS, ref, look, {
    timeoutMs: WAIT_MS,
  });
  if (phase === 'Completed') return;
  throw new Error(
    `the backup ended as ${phase ?? ''}: ${validationErrors?.join('; ') ?? failureReason ?? ''}`,
  );
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
