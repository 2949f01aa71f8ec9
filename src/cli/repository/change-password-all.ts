import { randomUUID } from 'node:crypto';
import { mkdtempSync, rmSync } from 'node:fs';
import { hostname, tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Secret } from '../../base/index.ts';
import { environment } from '../../config/index.ts';
import type { KubeClient } from '../../kube/index.ts';
import {
  changeAllPasswords,
  type ChangeAllReport,
  type ChangedRepository,
  isPasswordChangeBegun,
} from '../../server/index.ts';
import { countOf } from '../output/numbers.ts';
import { type ClusterFlags, clusterOf } from '../cluster.ts';
import { createLogger, interruptSignal } from '../context.ts';
import { NewPassword, PasswordPrompt } from '../password.ts';
import { openRepositoryStorage } from '../storage-options.ts';
import { printable, printJson, printLine, printTable } from '../output/terminal.ts';
import { UsageError } from '../usage-error.ts';

export interface ChangePasswordAllFlags extends ClusterFlags {
  newPasswordFile?: string;
  undo?: boolean;
  dryRun?: boolean;
  json?: boolean;
  verbose?: boolean;
}

const STATES: Readonly<Record<ChangedRepository['had'], string>> = {
  from: 'would be changed',
  to: 'has it already',
  nothing: 'not created yet',
};

/** Throws the errors of {@link changeAllPasswords}. */
export async function changeAll(flags: ChangePasswordAllFlags): Promise<void> {
  if (flags.undo === true && flags.newPasswordFile !== undefined) {
    throw new UsageError('--undo and --new-password-file contradict each other');
  }
  const logger = await createLogger({ repo: '', ...flags });
  environment.forgetMissingCredentials();
  const { client, namespace } = clusterOf(flags, 'longshore-change-password');
  const directory = mkdtempSync(join(tmpdir(), 'longshore-passwords-'));
  const interrupt = interruptSignal();
  const { signal } = interrupt;
  const dryRun = flags.dryRun === true;
  try {
    const report = await changeAllPasswords({
      client,
      namespace,
      logger,
      directory,
      signal,
      dryRun,
      clock: client.clock,
      defaultCredentials: (kind) => environment.credentialsFile(kind),
      openStorage: (repo) => openRepositoryStorage({ repo }, logger, { cache: false }),
      identity: `${hostname()}_${randomUUID()}`,
      newPassword: await newPasswordOf(flags, client, namespace, signal),
      undo: flags.undo === true,
      onStep: (text) => {
        process.stderr.write(`longshore: ${printable(text)}\n`);
      },
    });
    if (flags.json === true) printJson({ dryRun, ...report });
    else if (dryRun) await printPlan(report);
    else printReport(report, flags.undo === true);
  } finally {
    interrupt.dispose();
    client.close();
    rmSync(directory, { recursive: true, force: true });
  }
}

/** Undefined if an unfinished earlier run has already chosen a password. */
async function newPasswordOf(
  { newPasswordFile: file, undo }: ChangePasswordAllFlags,
  client: KubeClient,
  namespace: string,
  signal: AbortSignal,
): Promise<Secret | undefined> {
  if (undo === true) return undefined;
  const value = environment.newPassword;
  const isNamed = file !== undefined || value !== undefined;
  if (!isNamed && (await isPasswordChangeBegun({ client, namespace, signal }))) return undefined;
  const [flag, variable] = ['--new-password-file', 'LONGSHORE_NEW_PASSWORD'];
  using prompt = new PasswordPrompt();
  return await new NewPassword({ flag, variable, file, value }).read(prompt);
}

async function printPlan({ repositories, inTheWay }: ChangeAllReport): Promise<void> {
  await printTable(
    ['REPOSITORY', 'PASSWORD'],
    repositories.map(({ name, had }) => [name, STATES[had]]),
  );
  if (inTheWay.length === 0) return;
  printLine(`it would be refused now: repositories are in use by ${inTheWay.join(', ')}`);
}

function printReport({ repositories, lifted }: ChangeAllReport, isUndone: boolean): void {
  const count = countOf(repositories.filter(({ had }) => had !== 'nothing').length, 'repositories');
  printLine(`${count} and the Secret have the ${isUndone ? 'old' : 'new'} password`);
  if (lifted.length === 0) return;
  const text = `these were declared ready by another server on the way, which may have let a backup or a restore begin with the wrong password: ${lifted.join(', ')}; look whether one has failed`;
  process.stderr.write(`longshore: ${printable(text)}\n`);
}
