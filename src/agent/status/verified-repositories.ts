import {
  CodedError,
  formatGoTime,
  isCode,
  type Logger,
  messageOf,
  redactAndCut,
  Stopwatch,
} from '../../base/index.ts';
import type { StorageKind } from '../../config/index.ts';
import {
  BACKUP_REPOSITORIES,
  type BackupRepository,
  EventRecorder,
  type KubeClient,
} from '../../kube/index.ts';
import {
  loadRepositoryAccess,
  type NotedVerification,
  type RepositoryAccess,
  type RepositoryVerdict,
  VERIFICATION_ANNOTATION,
  verificationOf,
} from '../../repository-access/index.ts';
import { unlessRefused } from './serving-agents.ts';

/** On a BackupRepository: start of the last verification, whatever its outcome. */
const BEGUN_ANNOTATION = 'longshore.io/verification-begun';
const DAMAGED_REASON = 'RepositoryDamaged';
const VERIFIED_REASON = 'RepositoryVerified';
const NOT_VERIFIED_REASON = 'RepositoryNotVerified';

export interface VerifiedRepository {
  /** Name of the BackupRepository. */
  readonly name: string;
  readonly verdict?: RepositoryVerdict;
  readonly error?: string;
}

export interface HowToVerify {
  readonly budgetNs: bigint | undefined;
  /** The storage is read-only, so nothing may be recorded there. */
  readonly isReadOnly: boolean;
  /** End of the last sample, if recorded. */
  readonly position: number | undefined;
}

export interface VerifyRepositoriesOptions {
  readonly client: KubeClient;
  readonly namespace: string;
  readonly logger: Logger;
  readonly signal: AbortSignal;
  /** For credential files. */
  readonly directory: string;
  readonly defaultCredentials: (kind: StorageKind) => string | undefined;
  /** Time for all repositories together, divided equally; undefined for no limit. */
  readonly budgetNs?: bigint | undefined;
  /** Host in the source of the Events. */
  readonly host: string;
  readonly verify: (access: RepositoryAccess, how: HowToVerify) => Promise<RepositoryVerdict>;
}

/**
 * Verifies the repositories of a cluster one by one, oldest verification first. Records each result
 * on the BackupRepository and as an Event. Includes repositories that were ready once and are not
 * now, because damage may be the cause. A failure to open one repository does not stop the others.
 * Throws `CANCELED`, and `KUBE_*` errors if the BackupRepositories cannot be listed.
 */
export async function verifyBackupRepositories(
  options: VerifyRepositoriesOptions,
): Promise<VerifiedRepository[]> {
  const { client, namespace, logger, signal, budgetNs, host } = options;
  const found = await client.list(BACKUP_REPOSITORIES, { namespace, signal });
  const ready = found.filter(
    (each) => each.spec.repositoryType === 'kopia' && (isReady(each) || wasReady(each)),
  );
  ready.sort((a, b) => (timeOf(a) < timeOf(b) ? -1 : 1));
  const recorder = new EventRecorder({
    client,
    clock: client.clock,
    logger,
    host,
    component: 'longshore-verify',
  });
  const since = new Stopwatch(client.clock);
  const results: VerifiedRepository[] = [];
  try {
    for (const repository of ready) {
      signal.throwIfAborted();
      const left = budgetNs === undefined ? undefined : budgetNs - since.elapsedNs;
      if (left !== undefined && left <= 0n) {
        logger.info(
          { left: ready.length - results.length },
          'the time is over; the next run goes on',
        );
        break;
      }
      // Time left over by a repository goes to the repositories after it.
      const part = left && left / BigInt(ready.length - results.length);
      results.push(await verifyOne(repository, options, recorder, part));
    }
  } finally {
    await recorder.flush();
  }
  return results;
}

async function verifyOne(
  repository: BackupRepository,
  options: VerifyRepositoriesOptions,
  recorder: EventRecorder,
  budgetNs: bigint | undefined,
): Promise<VerifiedRepository> {
  const { client, namespace, logger, signal, directory, defaultCredentials } = options;
  const { name } = repository.metadata;
  const { volumeNamespace, backupStorageLocation: storageLocation } = repository.spec;
  try {
    // Recorded first, so that a failing repository does not use up the next run's time as well.
    await annotateWith(
      repository,
      { [BEGUN_ANNOTATION]: formatGoTime(client.clock.nowNs()) },
      options,
    );
    const load = (isWriting: boolean): Promise<RepositoryAccess> =>
      loadRepositoryAccess({
        client,
        namespace,
        volumeNamespace,
        storageLocation,
        signal,
        isWriting,
        directory,
        defaultCredentials,
      });
    let isReadOnly = false;
    const access = await load(true).catch((error: unknown) => {
      if (!isCode(error, 'STORAGE_READ_ONLY')) throw error;
      isReadOnly = true;
      return load(false);
    });
    const before = verificationOf(repository);
    const found = await options.verify(access, {
      budgetNs,
      isReadOnly,
      position: before?.position,
    });
    const verdict = isReadOnly ? withKnown(found, before) : found;
    await annotate(repository, verdict, options);
    if (verdict.problem === undefined) {
      recorder.record(repository, VERIFIED_REASON, 'no problems found');
    } else recorder.record(repository, DAMAGED_REASON, verdict.problem, 'Warning');
    return { name, verdict };
  } catch (error) {
    signal.throwIfAborted();
    const text = redactAndCut(messageOf(error));
    logger.error({ repository: name, error: text }, 'a repository could not be verified');
    recorder.record(repository, NOT_VERIFIED_REASON, text, 'Warning');
    return { name, error: text };
  }
}

const isReady = ({ status }: BackupRepository): boolean => status?.phase === 'Ready';
/** Maintenance, which the status records, runs only on repositories that were ready. */
const wasReady = ({ status }: BackupRepository): boolean =>
  status?.phase === 'NotReady' && status.lastMaintenanceTime != null;

/**
 * Keeps the first problem until verifications have read as much as all packs hold. In read-only
 * storage only this annotation remembers it.
 */
function withKnown(
  verdict: RepositoryVerdict,
  before: NotedVerification | undefined,
): RepositoryVerdict & Pick<NotedVerification, 'keptFor'> {
  if (verdict.problem !== undefined) return { ...verdict, keptFor: 1 };
  const keptFor = (before?.keptFor ?? 0) - verdict.readShare;
  if (before?.problem === undefined || keptFor <= 0) return verdict;
  const { damagedContents, damagedPacks, damagedSnapshots, problem } = before;
  return { ...verdict, damagedContents, damagedPacks, damagedSnapshots, problem, keptFor };
}

/** The Event has the same result, so a missing right here does not fail the verification. */
async function annotate(
  repository: BackupRepository,
  verdict: RepositoryVerdict,
  options: VerifyRepositoriesOptions,
): Promise<void> {
  const time = formatGoTime(options.client.clock.nowNs());
  const value = JSON.stringify({ time, ...verdict });
  await annotateWith(repository, { [VERIFICATION_ANNOTATION]: value }, options);
}

async function annotateWith(
  { metadata }: BackupRepository,
  annotations: Readonly<Record<string, string>>,
  { client, namespace, logger }: VerifyRepositoriesOptions,
): Promise<void> {
  const patch = { metadata: { annotations } };
  try {
    await client.patch(BACKUP_REPOSITORIES, { namespace, name: metadata.name }, patch);
  } catch (error) {
    if (!isCode(error, 'KUBE_FORBIDDEN', 'KUBE_NOT_FOUND')) throw error;
    const fields = { repository: metadata.name, error: messageOf(error) };
    logger.warn(fields, 'what was found could not be noted on the BackupRepository');
  }
}

/** Start of the last verification; '' for a repository that was never verified. */
const timeOf = (repository: BackupRepository): string =>
  repository.metadata.annotations?.[BEGUN_ANNOTATION] ?? verificationOf(repository)?.time ?? '';

/** A sentence for each damaged repository; empty if BackupRepositories cannot be read. */
export async function describeDamage(client: KubeClient, namespace: string): Promise<string[]> {
  const found = await unlessRefused(client.list(BACKUP_REPOSITORIES, { namespace }));
  return (found ?? []).flatMap((repository) => {
    const noted = verificationOf(repository);
    if (noted?.problem === undefined) return [];
    const { time, damagedContents, damagedSnapshots, problem } = noted;
    return `repository ${repository.metadata.name} is damaged: ${damagedContents} contents, ${damagedSnapshots} snapshots concerned (verified ${time}): ${problem}`;
  });
}

/** Throws `VERIFY_FAILED` if a repository is damaged or could not be verified. */
export function assertVerified(results: readonly VerifiedRepository[]): void {
  const bad = results.filter(
    ({ verdict }) => verdict === undefined || verdict.problem !== undefined,
  );
  const [first] = bad;
  if (!first) return;
  const others = bad.length > 1 ? ` (and ${bad.length - 1} more repositories)` : '';
  const what = first.verdict?.problem ?? `it could not be verified: ${first.error ?? ''}`;
  throw new CodedError('VERIFY_FAILED', `repository ${first.name}: ${what}${others}`);
}
