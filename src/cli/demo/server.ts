import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { silentLogger } from '../../base/index.ts';
import { ReadsAhead } from '../../kube/index.ts';
import {
  type Common,
  openBackups,
  openRestores,
  ServerPlugins,
} from '../../server/compose/index.ts';
import { OperationMetrics, SharedBackups } from '../../server/index.ts';
import { DEV_NAMESPACE, type DevEnvironment } from './dev-environment.ts';
import { repositoryOpener } from '../server/run-server.ts';
import { backupSettingsOf, restoreSettingsOf } from '../server/settings.ts';
import { VERSION } from '../version.ts';

const FEATURES = { features: 'EnableCSI' };

/** Runs the server in this process, with the controllers of backups and restores, during `work`. */
export async function withDemoServer(
  { client }: DevEnvironment,
  directory: string,
  work: () => Promise<void>,
): Promise<void> {
  const scratch = join(directory, 'server');
  await mkdir(scratch);
  const reads = new ReadsAhead(client);
  const plugins = ServerPlugins.begin({
    client: reads.client,
    logger: silentLogger,
    folder: join(directory, 'plugins'),
    ...FEATURES,
    makesBackups: true,
    makesRestores: true,
    flags: [],
    host: 'demo',
  });
  const cluster = { client, reads, logger: silentLogger, namespace: DEV_NAMESPACE, host: 'demo' };
  const registry = new Registry();
  const common: Common = {
    ...cluster,
    registry,
    directory: scratch,
    plugins,
    operationMetrics: new OperationMetrics({ registry, clock: client.clock }),
    backups: new SharedBackups(cluster),
    openRepository: repositoryOpener(silentLogger),
    version: VERSION,
  };
  const settings = backupSettingsOf({
    concurrentBackups: '1',
    itemBlockWorkerCount: '1',
    itemOperationSyncFrequency: '1s',
    defaultBackupTtl: '720h0m0s',
    defaultItemOperationTimeout: '4h0m0s',
    fsBackupTimeout: '4h0m0s',
    resourceTimeout: '10m0s',
    volumeGroupSnapshotLabelKey: 'velero.io/volume-group',
    ...FEATURES,
    logLevel: 'info',
    logFormat: 'text',
  });
  const backups = await openBackups(common, FEATURES, { ...settings, isDeletionHere: true }, () =>
    Promise.resolve(true),
  );
  const restores = openRestores(common, FEATURES, {
    ...settings,
    ...restoreSettingsOf({ deployment: 'longshore-server' }),
  });
  const abort = new AbortController();
  const running = Promise.all(
    [...Object.values(backups.controllers), ...Object.values(restores.controllers)].map((each) =>
      each.run(abort.signal, () => undefined),
    ),
  );
  try {
    await work();
  } finally {
    abort.abort();
    await running;
    await plugins.close();
  }
}
