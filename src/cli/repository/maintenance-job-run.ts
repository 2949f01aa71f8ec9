import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { environment } from '../../config/index.ts';
import { connectToCluster, REFUSED_MS } from '../../kube/index.ts';
import { createServerLogger } from '../../observability/index.ts';
import { runMaintenance } from '../../repository/index.ts';
import { runMaintenanceJob } from '../../server/index.ts';
import { planGarbageCollection } from '../../snapshot/index.ts';
import { interruptSignal, openContext } from '../context.ts';
import { printText } from '../output/streams.ts';
import { UsageError } from '../usage-error.ts';
import { VERSION } from '../version.ts';

export interface RepoMaintenanceFlags {
  repoName: string;
  backupStorageLocation: string;
  repoType: string;
  logLevel: string;
  logFormat: string;
  kubeconfig?: string;
}

/** The main task of a maintenance Job. Sets the exit code of the process. */
export async function maintainRepository(flags: RepoMaintenanceFlags): Promise<void> {
  if (flags.repoType !== 'kopia') {
    throw new UsageError(`--repo-type "${flags.repoType}": only kopia repositories are maintained`);
  }
  const logger = createServerLogger(flags.logLevel, flags.logFormat);
  const missing = environment.forgetMissingCredentials();
  if (missing.length > 0) {
    logger.info({ variables: missing }, "no credentials file: using the cloud's own identity");
  }
  const directory = mkdtempSync(join(tmpdir(), 'longshore-maintenance-'));
  const interrupt = interruptSignal();
  const client = connectToCluster({
    kubeconfig: flags.kubeconfig,
    userAgent: `longshore-repo-maintenance/${VERSION}`,
    refusedMs: REFUSED_MS,
  });
  const { jobName: name, jobUid: uid } = environment;
  try {
    process.exitCode = await runMaintenanceJob({
      client,
      logger,
      namespace: environment.veleroNamespace,
      volumeNamespace: flags.repoName,
      storageLocation: flags.backupStorageLocation,
      job: name === undefined ? undefined : { name, uid },
      terminationLog: environment.terminationLog,
      printText: (text) => {
        printText(`${text}\n`);
      },
      directory,
      defaultCredentials: (kind) => environment.credentialsFile(kind),
      openRepository: ({ location, password }) =>
        openContext({ repo: location, client: 'default@default' }, { password, logger }),
      maintain: (repository, signal) =>
        runMaintenance(repository, {
          mode: 'auto',
          safety: 'full',
          force: false,
          dryRun: false,
          signal,
          logger,
          collectGarbage: planGarbageCollection,
        }),
      signal: interrupt.signal,
    });
  } finally {
    interrupt.dispose();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
}
