import { mkdtempSync, rmSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { Registry } from 'prom-client';
import { environment } from '../config/index.ts';
import { createServerLogger, serveStatus } from '../observability/index.ts';
import { RepositoryController, Server } from '../server/index.ts';
import { type ClusterFlags, clusterOf } from './cluster.ts';
import { interruptSignal } from './context.ts';
import { openRepositoryStorage } from './storage-options.ts';
import { durationFlagMs, UsageError } from './usage-error.ts';

export interface ServerFlags extends ClusterFlags {
  controllers: string;
  logLevel: string;
  logFormat: string;
  metricsAddress: string;
  defaultRepoMaintainFrequency: string;
  backupRepositoryConfigmap?: string;
  repoMaintenanceJobConfigmap?: string;
  concurrentMaintenance: string;
  deployment: string;
  maintenanceJobCommand: string;
}

const CONTROLLERS = ['repository'];
const FREQUENCY = '--default-repo-maintain-frequency';

/** Runs the server until it is told to end. */
export async function runServer(flags: ServerFlags): Promise<void> {
  assertKnown(flags.controllers);
  const jobsMax = Number(flags.concurrentMaintenance);
  if (!/^[1-9]\d{0,3}$/.test(flags.concurrentMaintenance)) {
    const text = `--concurrent-maintenance "${flags.concurrentMaintenance}" is not a whole number from 1 to 9999`;
    throw new UsageError(text);
  }
  const frequency = frequencyOf(flags.defaultRepoMaintainFrequency);
  const logger = createServerLogger(flags.logLevel, flags.logFormat);
  const missing = environment.forgetMissingCredentials();
  if (missing.length > 0) {
    logger.info({ variables: missing }, "no credentials file: using the cloud's own identity");
  }
  const { client, namespace } = clusterOf(flags, 'longshore-server');
  const directory = mkdtempSync(join(tmpdir(), 'longshore-server-'));
  const registry = new Registry();
  const host = hostname();
  const repositories = new RepositoryController({
    ...{ client, logger, namespace, registry, host },
    connection: {
      openStorage: (repo, { create }) =>
        openRepositoryStorage({ repo }, logger, { cache: false, create }),
      directory,
      defaultCredentials: (kind) => environment.credentialsFile(kind),
      frequency,
      configMap: flags.backupRepositoryConfigmap,
    },
    jobs: {
      configMap: flags.repoMaintenanceJobConfigmap,
      jobsMax,
      deployment: flags.deployment,
      command: flags.maintenanceJobCommand.split(' ').filter((word) => word !== ''),
      logLevel: flags.logLevel,
      logFormat: flags.logFormat,
    },
  });
  const server = new Server({
    ...{ client, logger, namespace, host, registry },
    controllers: [repositories],
  });
  const interrupt = interruptSignal();
  try {
    await using status = await serveStatus(flags.metricsAddress, {
      metrics: () => registry.metrics(),
      notReady: () => server.notReady(),
    });
    logger.info({ address: status.address }, 'serving metrics and health');
    await server.run(interrupt.signal);
  } finally {
    interrupt.dispose();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

function assertKnown(text: string): void {
  const names = text.split(',').map((name) => name.trim());
  const unknown = names.find((name) => !CONTROLLERS.includes(name));
  if (unknown === undefined) return;
  throw new UsageError(
    `--controllers: there is no controller "${unknown}"; there is: ${CONTROLLERS.join(', ')}`,
  );
}

/** As Velero's flag: 0 is Kopia's own, an hour. */
function frequencyOf(text: string): string {
  if (/^0s?$/.test(text)) return '1h0m0s';
  durationFlagMs(FREQUENCY, text, '1h0m0s');
  // Go knows no days.
  return text.replaceAll(/(\d+(?:\.\d+)?)d/g, (_, days: string) => `${Number(days) * 24}h`);
}
