import type { RestoreArchive, RestoreVolumeInfo } from '../../../archive/index.ts';
import { countsOf, type Operation } from '../../../item-operations/index.ts';
import type { Restore } from '../../../kube/index.ts';
import type { OpenBucket } from '../../backups/contract.ts';
import {
  intactResults,
  type LogLine,
  logText,
  mergedResults,
  resultsOf,
} from '../../operations/operation-results.ts';
import type { FinalizerLog } from '../../operations/finalizer-log.ts';
import type { AfterRun } from '../contract.ts';
import { lostOperations } from '../lost-operations.ts';
import { restoreFailureLines } from '../operation-failures.ts';
import { type AfterRunStatus, statusOf } from '../restore-kind.ts';

/**
 * All lines that the log of a restore gets after its run. Errors and warnings are also results.
 * Every try returns the same lines.
 */
export const endLines = (
  restore: Restore,
  operations: readonly Operation[],
  { hooks }: AfterRun,
  said: readonly LogLine[],
): readonly LogLine[] => [
  ...restoreFailureLines(restore, operations),
  ...hooks.failures.map(({ time, namespace, name, message }): LogLine => ({
    time,
    level: 'error',
    message: `pod ${name}: ${message}`,
    about: { resource: 'pods', namespace, name },
  })),
  ...said,
];

/**
 * The final status, without its time. Also counts lost operations, and failed operations that were
 * not counted yet.
 */
export function endStatus(
  restore: Restore,
  operations: readonly Operation[],
  {
    said,
    left: { hooks },
    isPartial,
  }: {
    readonly said: { readonly errors: number; readonly warnings: number };
    readonly left: AfterRun;
    readonly isPartial: boolean;
  },
): AfterRunStatus {
  const before = statusOf(restore);
  const lost = lostOperations(restore, operations);
  const { attempted, completed, failed: failedNow } = countsOf(operations);
  const failed = failedNow + lost;
  const uncounted = Math.max(0, failed - (before.restoreItemOperationsFailed ?? 0));
  const more = uncounted + hooks.failures.length + said.errors;
  const isWell = !isPartial && more === 0;
  return {
    phase: isWell ? 'Completed' : 'PartiallyFailed',
    ...(more > 0 && { errors: (before.errors ?? 0) + more }),
    ...(said.warnings > 0 && { warnings: (before.warnings ?? 0) + said.warnings }),
    // Like Go, leave out zeros.
    ...(attempted + lost > 0 && { restoreItemOperationsAttempted: attempted + lost }),
    ...(completed > 0 && { restoreItemOperationsCompleted: completed }),
    ...(failed > 0 && { restoreItemOperationsFailed: failed }),
    ...(hooks.attempted > 0 && {
      hookStatus: {
        hooksAttempted: hooks.attempted,
        ...(hooks.failed > 0 && { hooksFailed: hooks.failed }),
      },
    }),
  };
}

export interface EndParts {
  readonly archive: RestoreArchive;
  readonly files: OpenBucket['files'] | undefined;
  readonly log: FinalizerLog;
  readonly volumeInfos: readonly RestoreVolumeInfo[] | undefined;
  /** All lines to add to the log, including the current lines of `log`. */
  readonly lines: () => readonly LogLine[];
  /** The status, including the current results of `log`. */
  readonly end: () => AfterRunStatus;
  readonly scratch: string;
  readonly assertLeading: () => void;
  readonly signal: AbortSignal;
}

/**
 * Stores the last lines, results and volume infos of a restore, and publishes its files. If the
 * bucket refuses a file, the results get a single warning. Returns the matching status.
 */
export async function storeEnd(restore: Restore, parts: EndParts): Promise<AfterRunStatus> {
  const { archive, files, log, signal, assertLeading } = parts;
  const { name, uid } = restore.metadata;
  const upload = async (): Promise<string | undefined> =>
    files?.upload({ signal, assertAllowed: assertLeading });
  let said = await upload();
  if (said !== undefined) log.warn(said);
  await storeFiles(restore, parts);
  if (said === undefined) {
    // The bucket may have refused these files first.
    said = await upload();
    if (said !== undefined) {
      log.warn(said);
      await storeFiles(restore, parts);
    }
  }
  const end = parts.end();
  const sealed = await archive.seal(name, { uid, end, signal, assertAllowed: assertLeading });
  if (!archive.isWriteOnce) return sealed;
  // The bucket may also refuse the final names. An earlier server may have decided the end.
  const left = await upload();
  if (left === undefined) return sealed;
  if (said === undefined) log.warn(left);
  const { warnings } = await intactResults(() => archive.results(name, { signal }));
  const isTold = said !== undefined && warnings?.velero?.some((text) => text.endsWith(said));
  if (isTold !== true) await storeFiles(restore, parts);
  return parts.end();
}

async function storeFiles(restore: Restore, parts: EndParts): Promise<void> {
  const { archive, volumeInfos, scratch: directory, signal, assertLeading } = parts;
  const { name } = restore.metadata;
  const lines = parts.lines();
  if (lines.length > 0) {
    assertLeading();
    await archive.setLogTail(name, logText('restore', restore, lines), { directory, signal });
    const stored = await intactResults(() => archive.results(name, { signal }));
    const results = mergedResults(stored, resultsOf(lines, 'sentence'));
    assertLeading();
    await archive.put(name, { results }, { signal });
  }
  if (volumeInfos) {
    assertLeading();
    await archive.put(name, { volumeInfos }, { signal });
  }
}
