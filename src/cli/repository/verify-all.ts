import { mkdtempSync, rmSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import { assertVerified, verifyBackupRepositories } from '../../agent/index.ts';
import type { Logger } from '../../base/index.ts';
import { environment } from '../../config/index.ts';
import type { VerifyCounters } from '../../repository/index.ts';
import type { RepositoryAccess, RepositoryVerdict } from '../../repository-access/index.ts';
import { newTreeCounters, verifyRepository } from '../../snapshot/index.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { createLogger, interruptSignal, openContext } from '../context.ts';
import { budgetOf, problemOf, shareOf } from './verify-options.ts';
import { printJson, printLine } from '../output/terminal.ts';

export interface VerifyAllFlags extends ClusterFlags {
  share: string;
  budget?: string;
  json?: boolean;
  verbose?: boolean;
  memoryLimit?: string;
}

/** Verifies a sample of all repositories of a cluster. Throws `VERIFY_FAILED`. */
export async function verifyAll(flags: VerifyAllFlags): Promise<void> {
  const share = shareOf(flags.share);
  const budgetNs = budgetOf(flags.budget);
  const logger = await createLogger({ repo: '', ...flags });
  environment.forgetMissingCredentials();
  const { client, namespace } = clusterOf(flags);
  const directory = mkdtempSync(join(tmpdir(), 'longshore-verify-'));
  const interrupt = interruptSignal();
  try {
    const results = await verifyBackupRepositories({
      client,
      namespace,
      logger,
      directory,
      budgetNs,
      signal: interrupt.signal,
      host: environment.nodeName ?? hostname(),
      defaultCredentials: (kind) => environment.credentialsFile(kind),
      verify: (access, how) =>
        verifyOne(access, { share, ...how, flags, logger, signal: interrupt.signal }),
    });
    if (flags.json === true) printJson(results);
    else if (results.length === 0) printLine(`no repository is ready in namespace ${namespace}`);
    else {
      for (const { name, verdict, error } of results) {
        printLine(`${name}: ${error ?? verdict?.problem ?? 'no problems found'}`);
      }
    }
    assertVerified(results);
  } finally {
    interrupt.dispose();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

interface OneOptions {
  readonly share: number;
  readonly budgetNs: bigint | undefined;
  /** Writes nothing to the storage, not even the record of damage. */
  readonly isReadOnly: boolean;
  readonly position: number | undefined;
  readonly flags: VerifyAllFlags;
  readonly logger: Logger;
  readonly signal: AbortSignal;
}

async function verifyOne(
  { location, password }: RepositoryAccess,
  { share, budgetNs, isReadOnly, position, flags, logger, signal }: OneOptions,
): Promise<RepositoryVerdict> {
  const { memoryLimit } = flags;
  const common = {
    repo: location,
    client: 'default@default',
    ...(memoryLimit !== undefined && { memoryLimit }),
  };
  await using context = await openContext(common, { cache: false, password, logger });
  const counters: VerifyCounters = { contents: 0, packs: 0, bytesRead: 0 };
  const report = await verifyRepository(context.repository, {
    share,
    budgetNs,
    position,
    record: !isReadOnly,
    signal,
    logger,
    counters,
    treeCounters: newTreeCounters(),
  });
  const { damagedContents, damagedPacks, concerned, readShare } = report;
  return {
    damagedContents,
    damagedPacks,
    readShare,
    position: report.position,
    packBytes: counters.packBytes,
    damagedSnapshots: concerned.damaged.length + concerned.notNamed,
    problem: problemOf(report),
  };
}
